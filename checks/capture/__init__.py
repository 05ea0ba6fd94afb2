"""A host in one file, with names and addresses replaced.

It reads what the checks would read, and writes that file alone.
"""
