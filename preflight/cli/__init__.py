"""The commands: they read words and print answers; all else is asked of other packages."""
