"""The recorded machines of ../shared/captures, extracted; a test that needs one skips without."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from tests.paths import ROOT

CAPTURES = ROOT.parent / "shared" / "captures"

# Most of each archive: memory blocks, and the CPUs' caches, which nothing here reads.
NOT_READ = re.compile(r"/(memory\d+|cpu\d+)(/|$)|/system/memory")


def recorded(name: str, folder: Path) -> Path:
    """The root of the recorded machine ``name``, extracted below ``folder``."""
    archive = CAPTURES / f"{name}.tar.bz2"
    if not archive.exists():
        pytest.skip(f"no {archive.name} in ../shared/captures")
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if not NOT_READ.search(member.name)]
        tar.extractall(folder, members)
    (root,) = folder.iterdir()
    return root
