"""Addresses, ports, routes, and a launch's services: calls bind and connect, and join nothing."""
