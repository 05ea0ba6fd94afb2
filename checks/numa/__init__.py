"""NUMA nodes: CPUs, memory, distances, and what this process may use of them.

It reads /sys and /proc, and tries memory policies in a child.
"""
