"""How the memory of hosts is best divided, and what a cache of given sizes keeps. Judging a launch
needs none of it.
"""
