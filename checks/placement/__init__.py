"""How NUMA nodes, GPUs and NICs sit to each other, and Mooncake's own choice among them.

Pure but for one call, which asks the installed library.
"""
