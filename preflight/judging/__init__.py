"""One launch held against one host, and the checks of the launch itself.

It reads the host through checks.run, and prints nothing.
"""
