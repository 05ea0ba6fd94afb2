"""Nodes asked over ssh, by ClusterShell: ``fleet check``, and the engine that ``pairs`` has too.

``engine`` alone imports ClusterShell, which is an extra. Starts ssh; writes no file.
"""
