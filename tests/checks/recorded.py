"""The recorded machines of ../shared/captures, extracted; a test that needs one skips without."""

import atexit
import functools
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.paths import ROOT

CAPTURES = ROOT.parent / "shared" / "captures"

# Most of each archive: memory blocks, and the CPUs' caches, which nothing here reads.
NOT_READ = re.compile(r"/(memory\d+|cpu\d+)(/|$)|/system/memory")


@functools.cache
def recorded(name: str) -> Path:
    """Return the root of the recorded machine, extracted once: nothing may write below it."""
    archive = CAPTURES / f"{name}.tar.bz2"
    if not archive.exists():
        pytest.skip(f"no {archive.name} in ../shared/captures")
    folder = Path(tempfile.mkdtemp(prefix="recorded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if not NOT_READ.search(member.name)]
        tar.extractall(folder, members, filter="fully_trusted")
    (root,) = folder.iterdir()
    return root
