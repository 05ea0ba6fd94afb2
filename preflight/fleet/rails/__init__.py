"""Which NIC of one node reaches which of another, by addresses, prefixes and routes alone.

``lanes`` holds two ports against each other, ``findings`` the kinds of nodes of a whole fleet.
Touches nothing; whether packets get through is what ``pairs`` tries.
"""
