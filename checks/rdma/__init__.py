"""RDMA devices: facts, those that Mooncake uses, and what registering takes."""
