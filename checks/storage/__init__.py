"""Folders of a launch: their room, their file system, O_DIRECT.

It tries on files without a name, and leaves nothing behind.
"""
