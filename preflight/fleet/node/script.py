"""What is sent to a node on standard input: the launch, a small script, and maybe this program.

A tar, because every node can unpack one, and its size before it. The command line that ssh hands
over is constant and on one line, whatever the launch is called and whatever the login shell is.
Nothing of the launch is executed there: the script starts ``fleet node``, which reads it.

Standard input stays open while the node works. It ends when the connection does, and with it what
was started there: a process without a terminal is told nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

# How lines of the script differ from those of a login shell's banner and of the report itself.
SAYS = "@mooncake-preflight"
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


def found_script(tool: Sequence[str], words: Sequence[str]) -> str:
    """For a node that has the program: ``tool`` are the words that start it."""
    return _SCRIPT.format(says=SAYS, find=finds(tool, words))


def carried_script(python: str, words: Sequence[str]) -> str:
    """For a node that gets the program with its launch."""
    return _SCRIPT.format(says=SAYS, find=carries(python, words))


def addressed_script(each: Mapping[str, str]) -> str:
    """One for all nodes, in which each finds its own part by the address that ssh reached it at.

    each: address -> what ``finds`` or ``carries`` says.
    """
    parts = [f"{shlex.quote(address)})\n{part}\n;;" for address, part in each.items()]
    other = f"*) echo '{SAYS} end {NO_ADDRESS}'; exit 0 ;;"
    find = "\n".join(["set -- $SSH_CONNECTION", 'case "$3" in', *parts, other, "esac"])
    return _SCRIPT.format(says=SAYS, find=find)


def finds(tool: Sequence[str], words: Sequence[str]) -> str:
    """The part of a script that makes the program there the command to run."""
    return _FOUND.format(
        first=shlex.quote(tool[0]),
        says=SAYS,
        no_tool=NO_TOOL,
        tool=shlex.join(tool),
        words=shlex.join(words),
    )


def carries(python: str, words: Sequence[str]) -> str:
    """The part of a script that makes the program that was taken along the command to run."""
    return _CARRIED.format(
        python=shlex.quote(python),
        says=SAYS,
        no_python=NO_PYTHON,
        old_python=OLD_PYTHON,
        least=LEAST_PYTHON,
        tool=TOOL,
        words=shlex.join(words),
    )


def packed(files: Mapping[str, bytes], script: str) -> bytes:
    """The tar's size on a line, and the tar; for its owner alone once it is unpacked.

    The same bytes for the same content.
    """
    import io
    import tarfile

    buffer = io.BytesIO()
    # As every tar reads it: pax and its times and owners are for archives that stay.
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in {SCRIPT: script.encode(), **files}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            tar.addfile(member, io.BytesIO(content))
    content = buffer.getvalue()
    return b"%d\n%s" % (len(content), content)
