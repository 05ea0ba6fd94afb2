"""Which Mooncake wheels are installed beside this program, without importing any."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

PREFIX = "mooncake_transfer_engine"


def installed_mooncake(search_path: Iterable[str] | None = None) -> tuple[tuple[str, str], ...]:
    """``(distribution, version)`` of each Mooncake wheel on the import path, first found first.

    The folders' names say it all; importlib.metadata would cost a third of this command's start.
    """
    found: dict[str, str] = {}
    for folder in sys.path if search_path is None else search_path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            stem, dot, kind = name.rpartition(".")
            if dot and kind == "dist-info" and stem.lower().startswith(PREFIX):
                distribution, _, version = stem.rpartition("-")
                found.setdefault(distribution.lower().replace("_", "-"), version)
    return tuple(found.items())
