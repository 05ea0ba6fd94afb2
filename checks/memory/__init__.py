"""Host memory, /dev/shm, mappings and memory cgroups.

Facts and calls read /proc and /sys/fs/cgroup; the checks are pure.
"""
