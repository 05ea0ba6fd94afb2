"""This program's own version, without importlib.metadata, which costs a third of a start."""

from __future__ import annotations


def program_version() -> str:
    """Return the version that ``pyproject.toml`` has; a test holds the two together."""
    return "0.1.0"
