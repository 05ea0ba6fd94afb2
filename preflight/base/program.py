"""The program's version, and the folder of its tables."""

import os


def program_version() -> str:
    """Return the version that ``pyproject.toml`` has; a test holds the two together."""
    return "0.1.0"


_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")


def data_file(name: str) -> str:
    """Return the path of ``preflight/data/name``."""
    return os.path.join(_FOLDER, name)
