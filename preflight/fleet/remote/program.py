"""What is sent to a node on standard input: the launch, a small script, and maybe this program.

A tar, because every node can unpack one, and its size before it. The command line that ssh hands
over is constant and on one line, whatever the launch is called and whatever the login shell is.
Nothing of the launch is executed there: the script starts ``fleet node``, which reads it.

Standard input stays open while the node works. It ends when the connection does, and with it what
was started there: a process without a terminal is told nothing else.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from preflight.base.usage_error import UsageError

# How lines of the script differ from those of a login shell's banner and of the report itself.
SAYS = "@mooncake-preflight"
SAYS_START, SAYS_END = f"{SAYS} start".encode(), f"{SAYS} end ".encode()
# What the script says at its end where the program never ran; else its exit code.
NO_FOLDER, NO_PYTHON, OLD_PYTHON, NO_TOOL = "no-folder", "no-python", "old-python", "no-tool"
# Or where the node was reached at another address than it said before.
NO_ADDRESS = "no-address"
LEAST_PYTHON = (3, 10)
TOOL = "tool.pyz"
SCRIPT = "run.sh"

# It says ``no-folder`` where nothing can be unpacked: no mktemp, no tar, no room.
COMMAND = (
    "exec sh -c 'umask 077; read size; "
    'd=`mktemp -d "${TMPDIR:-/tmp}/mooncake-preflight.XXXXXXXX"` && '
    # Some tars read on after their archive's end, for an end that only comes with the connection.
    'head -c "$size" | tar -xf - -C "$d" && '
    f'exec sh "$d/{SCRIPT}" "$d" || '
    '{ test -z "$d" || rm -rf "$d"; '
    f"echo {SAYS} end {NO_FOLDER}; }}'"
)

_SCRIPT = """\
d=$1
# Nobody may be left to read what is printed here: the folder goes all the same.
trap '' 13
trap 'rm -rf "$d"' 0
trap 'exit 143' 1 2 15
cd "$d" || exit 1
echo '{says} start'
exec 3<&0
{find}
own=`command -v setsid 2>/dev/null`
TMPDIR=$d $own "$@" </dev/null 3<&- &
tool=$!
# The connection's end, which is that of standard input, ends the program and what it started.
( cat <&3 >/dev/null
  kill -15 -$tool || kill -15 $tool
  sleep 1
  kill -9 -$tool || kill -9 $tool ) >/dev/null 2>&1 &
watch=$!
wait $tool
code=$?
kill $watch 2>/dev/null
{{ echo; echo "{says} end $code"; }} 2>/dev/null
"""

_CARRIED = """\
python=`command -v {python} 2>/dev/null` || {{ echo '{says} end {no_python}'; exit 0; }}
"$python" -c 'import sys; sys.exit(sys.version_info < {least})' || {{
    echo "{says} end {old_python} `"$python" -c 'import sys; print(sys.version.split()[0])'`"
    exit 0
}}
set -- "$python" {tool} {words}"""

_FOUND = """\
command -v {first} >/dev/null 2>&1 || {{ echo '{says} end {no_tool}'; exit 0; }}
set -- {tool} {words}"""

# What this program needs of others is Python alone: click, packaging, tabulate, PyYAML without its
# C half, pynvml. psutil is C; a node without it asks the kernel by ``psutil_stand_in``. Tables are
# read as files, so the archive unpacks itself into a folder of its own, and removes it.
OWN = ("checks", "mooncake_preflight", "preflight")
OTHERS = ("click", "markupsafe", "packaging", "tabulate", "tomli", "yaml", "pynvml")
# Python 3.11 has it under another name; 3.10 does not, and may be what a node has.
_OWN_NAMES = {"tomli": "tomllib"}
STAND_IN = "stand_in/psutil.py"
# Python and tables; no C, which is for this machine's Python alone, and no notes of an editor.
_SUFFIXES = (".py", ".md", ".toml", ".json", ".txt", ".gz", ".js", ".css", ".html", ".svg", "")
# 1980-01-01, the first that a zip can write: the same bytes for the same content.
_WHEN = (1980, 1, 1, 0, 0, 0)

_MAIN = """\
import sys
if sys.version_info < (3, 10):
    sys.exit("mooncake-preflight: needs Python 3.10 or newer, this is " + sys.version.split()[0])
import shutil
import tempfile
import zipfile
with tempfile.TemporaryDirectory(prefix="mooncake-preflight.") as folder:
    with zipfile.ZipFile(sys.path[0]) as archive:
        archive.extractall(folder)
    sys.path[0] = folder
    sys.path.append(folder + "/stand_in")
    sys.dont_write_bytecode = True
    # What becomes the server leaves no folder behind.
    sys.addaudithook(lambda event, _: event == "os.exec" and shutil.rmtree(folder, True))
    from preflight.cli.main import run
    code = run(sys.argv[1:])
    sys.stdout.flush()
sys.exit(code)
"""


class Program(NamedTuple):
    """This program on a node. command: the words that start it. carry: auto, always, never.

    python: what runs the program where it is taken along.
    """

    command: tuple[str, ...]
    python: str
    carry: str

    def part(self, words: Sequence[str], carried: bool) -> str:
        """Return the part of a script that makes the program with ``words`` the command to run."""
        if carried:
            return _CARRIED.format(
                python=shlex.quote(self.python),
                says=SAYS,
                no_python=NO_PYTHON,
                old_python=OLD_PYTHON,
                least=LEAST_PYTHON,
                tool=TOOL,
                words=shlex.join(words),
            )
        return _FOUND.format(
            first=shlex.quote(self.command[0]),
            says=SAYS,
            no_tool=NO_TOOL,
            tool=shlex.join(self.command),
            words=shlex.join(words),
        )

    def content(
        self, files: Mapping[str, bytes], words: Sequence[str], carried: bool, before: str = ""
    ) -> bytes:
        """Return what a node gets on standard input.

        before: shell code that the script begins with.
        """
        return packed(files, before + _script(self.part(words, carried)), carried)


class SshNodes(NamedTuple):
    """Which nodes, and how to come to them. timeout_seconds: of one node, from start to end.

    connect_seconds: of that, until ssh is through. fanout None: ClusterShell's own.
    """

    nodes: tuple[str, ...]
    nodes_files: tuple[str, ...]
    exclude: tuple[str, ...]
    timeout_seconds: float
    connect_seconds: float
    fanout: int | None
    user: str | None
    ssh_options: str


def option_words(option: str, text: str, give: str = "") -> tuple[str, ...]:
    """Return the words of an option whose value is a command line.

    Raises UsageError; for none at all too, where ``give`` says what belongs there.
    """
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}") from None
    if give and not found:
        raise UsageError(f"{option} is empty: give {give}")
    return found


def addressed_script(parts: Mapping[str, str]) -> str:
    """Return one script for all nodes; each finds its own part by the address ssh reached it at."""
    cases = [f"{shlex.quote(address)})\n{part}\n;;" for address, part in parts.items()]
    other = f"*) echo '{SAYS} end {NO_ADDRESS}'; exit 0 ;;"
    return _script("\n".join(["set -- $SSH_CONNECTION", 'case "$3" in', *cases, other, "esac"]))


def _script(find: str) -> str:
    return _SCRIPT.format(says=SAYS, find=find)


def packed(files: Mapping[str, bytes], script: str, carried: bool) -> bytes:
    """Return the tar's size on a line, and the tar; for its owner alone once it is unpacked.

    The same bytes for the same content. carried: with this program.
    """
    import io
    import tarfile

    if carried:
        files = {**files, TOOL: zipapp()}
    buffer = io.BytesIO()
    # As every tar reads it: pax and its times and owners are for archives that stay.
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in {SCRIPT: script.encode(), **files}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    content = buffer.getvalue()
    return b"%d\n%s" % (len(content), content)


@cache
def zipapp() -> bytes:
    """Return this program as one file that a node's own Python can run; some hundred kilobytes.

    Raises UsageError where a part of it is not here.
    """
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in _files():
            archive.writestr(zipfile.ZipInfo(name, _WHEN), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.encode()
    for name in (*OWN, *OTHERS):
        for path, inside in _parts(name):
            with open(path, "rb") as file:
                content = file.read()
            yield inside, content
            if inside == "preflight/fleet/remote/psutil_stand_in.py":
                yield STAND_IN, content


def _parts(name: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a package or a module, and their names in the archive, in order."""
    spec = find_spec(name) or find_spec(_OWN_NAMES.get(name, name))
    origin = None if spec is None else spec.origin
    if origin is None or not os.path.isfile(origin):
        raise UsageError(
            f"{name} is not a file here that could be carried: install it with pip, or give "
            "fleet check --carry never"
        )
    if spec is None or not spec.submodule_search_locations:
        yield origin, os.path.basename(origin)
        return
    # Not by the name of its first file: that of a compiled package is C, beside the same in Python.
    (top, *_) = spec.submodule_search_locations
    for folder, folders, files in os.walk(top):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        for file in sorted(files):
            if os.path.splitext(file)[1] in _SUFFIXES:
                path = os.path.join(folder, file)
                yield path, os.path.join(name, os.path.relpath(path, top))
