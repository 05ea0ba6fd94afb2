"""NUMA nodes: CPUs, memory, and which this process may use (a child tries policies)."""
