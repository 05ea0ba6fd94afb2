"""A launch's allocations, made for real by the installed library, and taken back.

It starts processes and ends them by their ids.
"""
