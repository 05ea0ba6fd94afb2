"""The program's version, and the files that it ships."""

import os


def program_version() -> str:
    """Return the version that ``pyproject.toml`` has; a test holds the two together."""
    return "0.1.0"


_PREFLIGHT = os.path.dirname(os.path.dirname(__file__))
TABLES = os.path.join("engines", "tables")


def data_file(name: str, folder: str = TABLES) -> str:
    """Return the path of a file that this program ships.

    Args:
        name: The name of the file.
        folder: Its folder below ``preflight``: the tables of the engines if none is given.
    """
    return os.path.join(_PREFLIGHT, folder, name)
