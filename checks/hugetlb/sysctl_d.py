"""The files that set sysctls at boot, in the order in which they act; where a line wins.

Source: sysctl.d(5), sysctl.conf(5).
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown

RUN = "/run/sysctl.d"
# A file of an earlier folder masks one of the same name in a later folder; all of them are applied
# in the order of their names, wherever they stand.
SYSCTL_FOLDERS = (
    "/etc/sysctl.d",
    RUN,
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)
# procps' ``sysctl --system`` reads it last; systemd only through a drop-in that links to it.
SYSCTL_CONF = "/etc/sysctl.conf"
# Our own. "90-mooncake-hugepages.conf", as other guides name theirs, is read before it.
DROP_IN = f"{SYSCTL_FOLDERS[0]}/90-mooncake.conf"
_NOTHING = "/dev/null"


class SysctlFile(NamedTuple):
    """One file. settings: name, with dots, and value of each line, in order.

    masked: it is a link to /dev/null, which hides those of its name in later folders.
    """

    path: str
    settings: tuple[tuple[str, str], ...] = ()
    masked: bool = False


class DropIn(NamedTuple):
    """Where a line has to be added to have the last word.

    origin: what the file there is to be made of first; "" where it is there, or may be new.
    """

    path: str = DROP_IN
    origin: str = ""


def read_sysctl_files(root: Root, *, lasting: bool = False) -> tuple[SysctlFile, ...]:
    """Return the files in the order in which they act; of one name the one that counts.

    lasting: without those of /run, which are gone after a boot that does not write them again.
    """
    chosen: dict[str, str] = {}
    for folder in SYSCTL_FOLDERS:
        if lasting and folder == RUN:
            continue
        names = root.names(folder)
        for name in () if isinstance(names, Unknown) else names:
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{folder}/{name}")
    files = []
    for path in (*(chosen[name] for name in sorted(chosen)), SYSCTL_CONF):
        content = root.text(path)
        if not isinstance(content, Unknown):
            files.append(SysctlFile(path, tuple(parse_settings(content))))
        elif not content.absent:
            mode = root.mode(path)
            device = not isinstance(mode, Unknown) and stat.S_ISCHR(mode)
            files.append(SysctlFile(path, masked=device))
    return tuple(files)


def parse_settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each line: ``-vm/nr_hugepages = 5`` is ``vm.nr_hugepages``, ``5``."""
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith(("#", ";")):
            yield _dotted(name.removeprefix("-").strip()), value.strip()


def _dotted(name: str) -> str:
    """Return a setting's name with dots between its parts.

    Where a slash comes first in it, slashes separate the parts and dots belong to them.
    """
    first = next((letter for letter in name if letter in "./"), ".")
    return name if first == "." else name.translate(str.maketrans("./", "/."))


def is_sysctl_file(path: str) -> bool:
    """Return whether sysctl reads a file."""
    return path == SYSCTL_CONF or path.rpartition("/")[0] in SYSCTL_FOLDERS


def acts_before_drop_in(path: str) -> bool:
    """Return whether a file is our drop-in or one that it overrules."""
    folder, _, name = path.rpartition("/")
    return folder in SYSCTL_FOLDERS and name <= DROP_IN.rpartition("/")[2]


def drop_in(files: Sequence[SysctlFile], last: str = "") -> DropIn:
    """Return where to add a line. last: the file that would overrule our own, "" for none.

    What packages and the boot write is copied to /etc first, where it lasts.
    """
    if last == SYSCTL_CONF:
        return DropIn(SYSCTL_CONF)
    name = (last or DROP_IN).rpartition("/")[2]
    path = f"{SYSCTL_FOLDERS[0]}/{name}"
    there = next((file for file in files if file.path.rpartition("/")[2] == name), None)
    if there is None or (there.path == path and not there.masked):
        return DropIn(path)
    return DropIn(path, _NOTHING if there.masked else there.path)
