"""What changes between two answers: of two releases, two launches, or two hosts.

An answer is one flat table, made from the records that check, sizing and plan show; the difference
is of these tables alone. It prints nothing.
"""
