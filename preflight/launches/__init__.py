"""Shell scripts, container runs, Compose and Kubernetes files as commands.

It reads the launch's files, and executes nothing.
"""
