"""One launch held against one host, and the checks of the launch itself. It prints nothing."""
