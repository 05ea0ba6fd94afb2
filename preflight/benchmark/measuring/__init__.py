"""How fast the launch's own library is on this host: memory, transfers, store, NICs, storage.

It starts processes that die with the command, and listens where it is told to; the files that it
writes have no name, so that nothing is left whatever ends it.
"""
