"""GPUs as NVML, CUDA and sysfs show them, and which GPUs a process uses."""
