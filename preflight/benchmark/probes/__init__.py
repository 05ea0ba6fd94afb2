"""What a device really takes, found by trying in a child process.

It registers memory, gives all memory back, and may keep the result in a file.
"""
