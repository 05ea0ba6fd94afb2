"""Recorded requests: read in many formats, and replayed against caches of any size.

Pure over lines and numbers; ``formats`` alone opens a file. Knows no launch: sizes come in tokens.
"""
