"""Which Mooncake and which engines are installed beside this program, without importing one."""

import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple


class Installed(NamedTuple):
    """What a machine has: ``(distribution, version)`` of each Mooncake, and SGLang's version."""

    mooncake: tuple[tuple[str, str], ...]
    sglang: str | None
    interpreter: str = ""  # for which they are installed, "" if that is not told (a capture)
    in_image: bool = False  # what runs comes with an image: nothing else is known then
    others: tuple[tuple[str, str], ...] = ()  # name and version of each engine beside SGLang


# Distributions of the engines beside SGLang whose releases decide what they take.
OTHER_ENGINES = ("vllm", "lmcache")


def installed_mooncake(search_path: Iterable[str] | None = None) -> tuple[tuple[str, str], ...]:
    """Return ``(distribution, version)`` of each Mooncake wheel on the import path, in order."""
    return _installed(is_mooncake, search_path)


def installed_sglang(search_path: Iterable[str] | None = None) -> str | None:
    """Return the version of the SGLang on the import path; None if there is none."""
    installed = _installed(lambda name: name == "sglang", search_path)
    return installed[0][1] if installed else None


def installed_others(search_path: Iterable[str] | None = None) -> tuple[tuple[str, str], ...]:
    """Return name and version of each engine beside SGLang on the import path."""
    versions: dict[str, str] = {}
    for name, version in _installed(OTHER_ENGINES.__contains__, search_path):
        versions.setdefault(name, version)
    return tuple(versions.items())


def _installed(
    accepts: Callable[[str], bool], search_path: Iterable[str] | None
) -> tuple[tuple[str, str], ...]:
    """Return (name, version) of the distributions for whose name ``accepts`` is True, in the order
    of the path (``sys.path`` for None).

    If a name occurs twice, its first version is taken. Unreadable folders are left out.
    """
    versions: dict[str, str] = {}
    for folder in sys.path if search_path is None else search_path:
        try:
            status = os.stat(folder or ".")
            changed = (status.st_dev, status.st_ino, status.st_mtime_ns)
            distributions = _distributions(folder or ".", changed)
        except OSError:
            continue
        for name, version in distributions:
            if accepts(name):
                versions.setdefault(name, version)
    return tuple(versions.items())


@lru_cache(maxsize=64)  # one command asks five times
def _distributions(folder: str, changed: tuple[int, int, int]) -> list[tuple[str, str]]:
    """Return (name, version) of each distribution in a folder, from the file names alone; cached.

    Raises OSError.

    Args:
        changed: The folder's device, inode and time of change, so that a changed folder is read
            again.
    """
    names = os.listdir(folder)
    editable = [name for name in names if "editable" in name]
    every = (distribution_of(name, editable) for name in sorted(names))
    return [distribution for distribution in every if distribution is not None]


def distribution_of(name: str, beside: Iterable[str] = ()) -> tuple[str, str] | None:
    """Return ``(name, version)`` of a ``.dist-info`` entry; None for any other entry.

    Args:
        beside: The folder's entries with "editable" in their names; if one is of this distribution,
            the version is ``0.5.12+editable``.
    """
    stem, dot, suffix = name.rpartition(".")
    distribution, _, version = stem.rpartition("-")
    if not dot or suffix != "dist-info" or not distribution:
        return None
    near = [entry for entry in beside if distribution.lower() in entry.lower()]
    if near and "+" not in version:
        mark = rf"_+editable_.*{re.escape(distribution)}([-.]|_\d).*p(th|y)"
        if any(re.fullmatch(mark, entry, re.I) for entry in near):
            version += "+editable"
    return distribution.lower().replace("_", "-"), version


def is_mooncake(distribution: str) -> bool:
    """Return whether a distribution is a wheel of Mooncake; each installs ``mooncake``."""
    return distribution.startswith("mooncake-transfer-engine")
