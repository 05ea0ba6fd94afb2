"""Addresses, ports, routes, and the services that a launch talks to.

Calls bind ports and connect to services, and join nothing.
"""
