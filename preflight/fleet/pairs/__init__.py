"""Nodes that write to each other over RDMA: ``pair-listen``, ``pair-connect``; ``pairs`` of all.

On a node: ``verbs`` (opens a device), ``talk``, ``ends``, ``listen``, ``connect`` (open sockets).
Where it is asked: ``meeting`` and ``rounds`` (over ssh); ``outcome``, ``flows`` and ``matrix`` are
pure.
"""
