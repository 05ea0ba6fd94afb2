"""Nodes asked over ssh: the launch and this program on their way there, and what comes back.

``engine`` starts ssh, by ClusterShell. What it makes for a node reads and writes there nothing but
a folder of its own, which goes when the program ends.
"""
