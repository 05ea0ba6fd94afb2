"""RDMA objects by whichever library is installed: pyverbs or ctypes.

It opens devices and registers memory for who asks.
"""
