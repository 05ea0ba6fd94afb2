"""RDMA objects by whichever library is there: pyverbs or ctypes.

It opens devices and registers memory for who asks.
"""
