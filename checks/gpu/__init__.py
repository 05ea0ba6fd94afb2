"""GPUs as NVML, CUDA and sysfs show them, and which of them a process uses.

Calls ask NVIDIA's libraries; the checks are pure.
"""
