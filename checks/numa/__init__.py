"""NUMA nodes: CPUs, memory, distances, and which this process may use (a child tries policies)."""
