"""The answer of topology: what sits where, and which NIC Mooncake takes for it.

It reads the host once, and may ask the installed library.
"""
