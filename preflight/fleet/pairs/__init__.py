"""Nodes that write to each other over RDMA.

``end`` is what runs on a node: it opens devices and sockets. ``rounds`` asks the nodes over ssh.
``outcome`` and ``matrix``, what came of it, are pure.
"""
