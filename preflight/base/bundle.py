"""This program as one zip file that a Python alone can run."""

import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from preflight.base.exit_codes import DEFECT
from preflight.base.usage_error import UsageError

# What this program needs of others to check a launch that is read already: Python alone, PyYAML
# without its C half. psutil has C for any Python 3 of this machine's kind; on another, addresses
# are unknown.
OWN = ("checks", "mooncake_preflight", "preflight")
OTHERS = tuple("ClusterShell click markupsafe packaging psutil tabulate tomli yaml pynvml".split())
# Python 3.11 has it under another name; 3.10 does not, and may be what a node has.
_OWN_NAMES = {"tomli": "tomllib"}
# Python and tables; no C that is for this machine's Python alone, and no notes of an editor.
_SUFFIXES = (".py", ".md", ".toml", ".json", ".txt", ".gz", ".js", ".css", ".html", ".svg", "")
_ANY_PYTHON = ".abi3.so"
# What reads shell scripts is C. tree-sitter's is for one release of Python each: what lies in its
# folder is carried, which is that of the Python here, and of each other that was put beside it.
READERS = ("tree_sitter", "tree_sitter_bash")
# 1980-01-01, the first that a zip can write: the same bytes for the same content.
_WHEN = (1980, 1, 1, 0, 0, 0)

OLD_PYTHON = "needs Python 3.10 or newer, this is "
# Tables are read as files, so the archive unpacks itself.
_RUN = f"""\
import sys
if sys.version_info < (3, 10):
    sys.exit("mooncake-preflight: {OLD_PYTHON}" + sys.version.split()[0])
import io
import shutil
import tempfile
import zipfile
def unpack_into(*places):
    for place in places:
        try:
            return tempfile.TemporaryDirectory(prefix="mooncake-preflight.", dir=place)
        except OSError as error:
            why = error
    print("mooncake-preflight: no folder to unpack itself into: " + str(why), file=sys.stderr)
    sys.exit({DEFECT})
# A container's root may be read-only, and its /dev/shm is not.
with unpack_into(None, "/dev/shm") as folder:
    with zipfile.ZipFile({{archive}}) as archive:
        archive.extractall(folder)
    sys.path[0] = folder
    sys.dont_write_bytecode = True
    # What becomes the server leaves no folder behind.
    sys.addaudithook(lambda event, _: event == "os.exec" and shutil.rmtree(folder, True))
    from preflight.cli.main import run
    code = run(sys.argv[1:])
    sys.stdout.flush()
sys.exit(code)
"""
_MAIN = _RUN.format(archive="sys.path[0]")
CARRIED = _RUN.format(archive="io.BytesIO(given.read(int(given.readline())))")


def readers() -> tuple[str, ...]:
    """Return the packages that read scripts, () if they are not installed here."""
    return READERS if all(map(find_spec, READERS)) else ()


def script_pythons() -> list[str]:
    """Return the releases of Python for which tree-sitter is here, as 3.11."""
    names = [inside for name in readers()[:1] for _, inside in _package_files(name)]
    found = (re.search(r"\.cpython-3(\d+)", name) for name in names)
    return [f"3.{minor}" for minor in sorted({int(each[1]) for each in found if each})]


@cache
def zipapp(*more: str) -> bytes:
    """Return this program as a zip that Python can run.

    Args:
        more: Packages to carry beside those that a launch needs that is read already.

    Raises:
        UsageError: If a part is no file.
    """
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in _files(more):
            archive.writestr(zipfile.ZipInfo(name, _WHEN), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files(more: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the archive: its start, this program and its packages."""
    yield "__main__.py", _MAIN.encode()
    for name in (*OWN, *OTHERS, *more):
        for path, inside in _package_files(name):
            yield inside, Path(path).read_bytes()


def _package_files(name: str) -> Iterator[tuple[str, str]]:
    """Yield the Python and data files of a package or module, in order, as (path here, name in the
    archive).

    Raises:
        UsageError: If the package is not installed as files.
    """
    spec = find_spec(name) or find_spec(_OWN_NAMES.get(name, name))
    origin = None if spec is None else spec.origin
    if origin is None or not os.path.isfile(origin):
        instead = "install it with pip, or give fleet check --carry never"
        raise UsageError(f"{name} is not a file here that could be carried: {instead}")
    if spec is None or not spec.submodule_search_locations:
        yield origin, os.path.basename(origin)
        return
    # Not by the name of its first file: that of a compiled package is C, beside the same in Python.
    (top, *_) = spec.submodule_search_locations
    compiled = ".so" if name in READERS else _ANY_PYTHON
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        for file in sorted(files):
            if os.path.splitext(file)[1] in _SUFFIXES or file.endswith(compiled):
                path = os.path.join(folder, file)
                yield path, os.path.join(name, os.path.relpath(path, top))
