"""Nodes asked by pods: ``fleet manifest`` prints the objects, ``fleet collect`` reads the logs.

``collect`` alone starts kubectl; nothing here changes a cluster.
"""
