"""What a log means: known lines as tables, and what explains them.

It reads the log that it is given.
"""
