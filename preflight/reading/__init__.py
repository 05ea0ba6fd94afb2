"""What was understood of a launch: every process with its settings, and what was not read.

It judges nothing, and goes by the very records that ``check`` judges.
"""
