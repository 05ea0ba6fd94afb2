"""RDMA objects through libibverbs.

It opens devices and registers memory for who asks.
"""
