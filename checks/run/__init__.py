"""Reads all topics side by side, within a time, and runs every check.

What fails or hangs is unknown, and hides no other.
"""
