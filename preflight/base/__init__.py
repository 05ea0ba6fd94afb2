"""What every command stands on: output, errors, exit codes, quoting for a shell.

It writes to the terminal alone.
"""
