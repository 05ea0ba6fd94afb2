"""Host memory, /dev/shm, mappings and memory cgroups: facts of /proc and /sys/fs/cgroup, judged."""
