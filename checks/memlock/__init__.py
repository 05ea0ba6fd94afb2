"""How much memory a launch pins, held against what it may lock.

Arithmetic over the facts of other topics: it reads nothing.
"""
