"""What a launch needs, and whether the pages fit, at both bounds of what is not known exactly.

Launch and host are handed in; it changes nothing.
"""
