"""The machine as a whole: kernel, distribution, container and capabilities of a process."""
