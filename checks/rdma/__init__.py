"""RDMA devices: what they are, which of them Mooncake uses, and what registering takes.

Facts and calls read sysfs, netlink and libibverbs; the rest is pure.
"""
