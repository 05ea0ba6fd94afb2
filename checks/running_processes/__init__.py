"""What the kernel tells of processes that run. Nothing is attached to, signalled or written."""
