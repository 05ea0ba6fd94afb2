"""What a host is: facts that are read once, and checks that hold them against a launch's needs.

It knows no launch file, and imports nothing of preflight/.
"""
