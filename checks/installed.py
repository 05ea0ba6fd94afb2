"""Which Mooncake and SGLang are installed beside this program, without importing either."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable


def installed_mooncake(search_path: Iterable[str] | None = None) -> tuple[tuple[str, str], ...]:
    """``(distribution, version)`` of each Mooncake wheel on the import path, first found first."""
    return _installed(lambda name: name.startswith("mooncake-transfer-engine"), search_path)


def installed_sglang(search_path: Iterable[str] | None = None) -> str | None:
    """The version of the SGLang on the import path."""
    found = _installed(lambda name: name == "sglang", search_path)
    return found[0][1] if found else None


def _installed(
    wanted: Callable[[str], bool], search_path: Iterable[str] | None
) -> tuple[tuple[str, str], ...]:
    """The folders' names say it all; importlib.metadata would cost a third of a command's start."""
    found: dict[str, str] = {}
    for folder in sys.path if search_path is None else search_path:
        try:
            names = sorted(os.listdir(folder or "."))
        except OSError:
            continue
        for name in names:
            stem, dot, kind = name.rpartition(".")
            distribution, _, version = stem.rpartition("-")
            normal = distribution.lower().replace("_", "-")
            if dot and kind == "dist-info" and wanted(normal):
                found.setdefault(normal, version)
    return tuple(found.items())
