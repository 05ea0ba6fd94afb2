"""The replay of Mooncake's allocations, in the library's own order.

Of the host it reads the NUMA nodes of NICs and GPUs, from the root that it is handed.
"""
