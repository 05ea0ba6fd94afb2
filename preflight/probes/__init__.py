"""What a device really takes, found by trying in a process of its own.

It registers memory, gives all of it back, and may keep the result in a file.
"""
