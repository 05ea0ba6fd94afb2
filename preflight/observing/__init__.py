"""What runs, held against what it was predicted to take: the answer of ``observe``.

It reads /proc and asks nobody; ``checks.running`` reads, this package compares.
"""
