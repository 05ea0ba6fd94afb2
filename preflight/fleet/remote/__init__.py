"""Nodes asked over ssh: the launch and this program on their way to a node, and the reply.

``engine`` starts ssh, by ClusterShell. On a node nothing is written but one temporary folder, which
goes when the program ends.
"""
