"""The nodes' reports held against each other, and the one answer that every way of asking gives.

``fleet`` and what it imports are pure; ``command`` prints, and writes the files that it is told to.
"""
