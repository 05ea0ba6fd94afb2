"""What every topic stands on: where facts come from, Unknown, needs, findings, units.

The roots alone read files and make calls.
"""
