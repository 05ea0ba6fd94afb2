"""The commands: one file each, whose function's signature is its request.

It reads words and prints answers; all else is asked of other packages.
"""
