"""How many tokens each tier of the cache holds, and what that is worth round by round.

Pure over the sizing.
"""
