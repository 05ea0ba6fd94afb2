"""This program as one file that a node's own Python can run: a zipapp, made in memory.

What it needs of others is Python alone: click, tabulate, PyYAML without its C half, pynvml. psutil
is C; a node without it asks the kernel by ``psutil_stand_in``. Tables are read as files, so the
archive unpacks itself into a folder of its own, and removes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

from preflight.base.usage_error import UsageError
from preflight.fleet.node.asked_nodes import Remote
from preflight.fleet.node.script import TOOL, carried_script, found_script, packed
from preflight.fleet.node.sent_launch import Sent

OWN = ("checks", "mooncake_preflight", "preflight")
OTHERS = ("click", "tabulate", "yaml", "pynvml")
STAND_IN = "stand_in/psutil.py"
# Python and tables; no C, which is for this machine's Python alone, and no notes of an editor.
_SUFFIXES = (".py", ".md", ".toml", ".json", ".txt", ".gz", ".js", ".css", ".html", ".svg", "")
# 1980-01-01, the first that a zip can write: the same bytes for the same content.
_WHEN = (1980, 1, 1, 0, 0, 0)

_MAIN = """\
import sys
if sys.version_info < (3, 10):
    sys.exit("mooncake-preflight: needs Python 3.10 or newer, this is " + sys.version.split()[0])
import tempfile
import zipfile
with tempfile.TemporaryDirectory(prefix="mooncake-preflight.") as folder:
    with zipfile.ZipFile(sys.path[0]) as archive:
        archive.extractall(folder)
    sys.path[0] = folder
    sys.path.append(folder + "/stand_in")
    sys.dont_write_bytecode = True
    from preflight.cli.main import run
    code = run(sys.argv[1:])
    sys.stdout.flush()
sys.exit(code)
"""


def zipapp() -> bytes:
    """The archive, some hundred kilobytes. Raises UsageError where a part of it is not here."""
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in _files():
            archive.writestr(zipfile.ZipInfo(name, _WHEN), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def content(remote: Remote, sent: Sent, carried: bool) -> bytes:
    """What a node gets on standard input: the launch, and this program or how to start it there."""
    if carried:
        script = carried_script(remote.python, sent.words)
        return packed({**sent.files, TOOL: zipapp()}, script)
    return packed(sent.files, found_script(remote.words, sent.words))


def _files() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.encode()
    for name in (*OWN, *OTHERS):
        for path, inside in _parts(name):
            with open(path, "rb") as file:
                content = file.read()
            yield inside, content
            if inside == "preflight/fleet/node/psutil_stand_in.py":
                yield STAND_IN, content


def _parts(name: str) -> Iterator[tuple[str, str]]:
    """The files of a package or a module, and their names in the archive, in order."""
    spec = find_spec(name)
    origin = None if spec is None else spec.origin
    if origin is None or not os.path.isfile(origin):
        raise UsageError(
            f"--carry: {name} is not a file here that could be sent: give --carry never"
        )
    if os.path.basename(origin) != "__init__.py":
        yield origin, os.path.basename(origin)
        return
    top = os.path.dirname(origin)
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        for file in sorted(files):
            if os.path.splitext(file)[1] in _SUFFIXES:
                path = os.path.join(folder, file)
                yield path, os.path.join(name, os.path.relpath(path, top))
