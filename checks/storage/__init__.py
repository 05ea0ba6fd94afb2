"""Folders of a launch: their room, their file system, O_DIRECT; leaves nothing behind."""
