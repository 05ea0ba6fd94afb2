"""Reads all topics side by side, within a time, and runs every check; failures are unknown."""
