"""Where the tables lie that the program reads at run time."""

from __future__ import annotations

import os

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data")


def data_file(name: str) -> str:
    """Return the path of ``preflight/data/name``."""
    return os.path.join(_FOLDER, name)
