"""Who will set the HugeTLB pools after a reboot, in the order in which they act.

The kernel command line that the host boots next with is read as GRUB reads it.
Sources: Documentation/admin-guide/kernel-parameters.txt (hugepages=, hugepagesz=), sysctl.d(5),
sysctl.conf(5), tuned-main.conf(5), GRUB's manual (Simple configuration, default, grubenv), the Boot
Loader Specification (entries of /boot/loader/entries, which Fedora's and RHEL's GRUB shows by
blscfg).
"""

import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from checks.base.root import Root
from checks.base.units import GIB, KIB, MIB
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
    """A line's place to have the last word. origin: the file to copy first, or ""."""

    path: str = DROP_IN
    origin: str = ""


def read_sysctl_files(root: Root, *, lasting: bool = False) -> tuple[SysctlFile, ...]:
    """Return the sysctl files in the order in which they act; of one name only the one that
    counts.

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

    If its first separator is a slash, slashes separate the parts and dots belong to them.
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
    """Return where to add a line. last: the file that would overrule our own, or "".

    A file of a package or of the boot is copied to /etc first, to last.
    """
    if last == SYSCTL_CONF:
        return DropIn(SYSCTL_CONF)
    name = (last or DROP_IN).rpartition("/")[2]
    path = f"{SYSCTL_FOLDERS[0]}/{name}"
    there = next((file for file in files if file.path.rpartition("/")[2] == name), None)
    if there is None or (there.path == path and not there.masked):
        return DropIn(path)
    return DropIn(path, _NOTHING if there.masked else there.path)


GRUB_FOLDERS = ("/boot/grub", "/boot/grub2")
BLS_ENTRIES = "/boot/loader/entries"
_LINUX = ("linux", "linux16", "linuxefi")


class BootEntry(NamedTuple):
    """One entry of the menu. names: of the entry and the submenus above it, the outermost first:
    number, id and title of each. words: of the kernel command line."""

    names: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]


def read_next_words(root: Root) -> tuple[str, ...] | Unknown:
    """Return the kernel command line of the next boot; Unknown if no menu says it."""
    missing = Unknown("")
    for folder in GRUB_FOLDERS:
        path = f"{folder}/grub.cfg"
        menu = root.text(path)
        if isinstance(menu, Unknown):
            missing = menu
            continue
        text = root.text(f"{folder}/grubenv")
        lines = [] if isinstance(text, Unknown) else text.splitlines()
        saved = dict(x.split("=", 1) for x in lines if "=" in x and not x.startswith("#"))
        entries = _bls(root, saved) if "blscfg" in menu else parse_menu(menu)
        return _chosen(entries, _default(menu, saved), path)
    return Unknown(f"no menu of a boot loader is read here: {missing.reason}", missing.absent)


def parse_menu(text: str) -> list[BootEntry]:
    """Return the entries of a grub.cfg, in order."""
    entries: list[BootEntry] = []
    above: list[tuple[str, ...] | None] = []  # None: of a function, which is no menu
    counts = [0]
    for line in text.splitlines():
        words = _words(line)
        if not words:
            continue
        if words[0] in ("menuentry", "submenu") and words[-1] == "{" and len(words) > 2:
            ids = [after for word, after in pairwise(words) if "id_option" in word]
            above.append((str(counts[-1]), *ids, words[1]))
            counts[-1] += 1
            counts.append(0)
        elif words[-1] == "{":
            above.append(None)
            counts.append(0)
        elif words == ["}"] and above:
            above.pop()
            counts.pop()
        elif words[0] in _LINUX and len(words) > 1 and above and above[-1] is not None:
            names = tuple(each for each in above if each is not None)
            entries.append(BootEntry(names, tuple(words[2:])))
    return entries


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote over several lines: no line that is looked for
        return []


def _default(menu: str, saved: dict[str, str]) -> str:
    """Return the entry that the menu starts by default, as ``_chosen`` takes it."""
    if "next_entry" in menu and saved.get("next_entry"):
        return saved["next_entry"]
    defaults = [each for each in re.findall(r'set default="([^"]*)"', menu) if "next_" not in each]
    default = defaults[-1] if defaults else "0"
    return saved.get("saved_entry", "0") if "saved_entry" in default else default


def _chosen(entries: list[BootEntry], default: str, source: str) -> tuple[str, ...] | Unknown:
    """Return the kernel's words of the entry that ``default`` names ("1>2" or an id)."""
    wanted = default.split(">")
    for entry in entries:
        fits = (name in names for name, names in zip(wanted, entry.names, strict=False))
        if len(entry.names) >= len(wanted) and all(fits):
            return entry.words  # of a submenu alone the first, which is its own default
    return Unknown(f"{source}: no entry is {default!r}")


def _bls(root: Root, saved: dict[str, str]) -> list[BootEntry]:
    """Read the entries that have a file each, the newest version first, as in GRUB's blscfg."""
    entries = []
    for name in root.listed(BLS_ENTRIES):
        text = root.text(f"{BLS_ENTRIES}/{name}")
        if isinstance(text, Unknown) or not name.endswith(".conf"):
            continue
        keys = dict(
            line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) > 1
        )
        options = keys.get("options", "").replace("$kernelopts", saved.get("kernelopts", ""))
        order = [int(part) if part.isdecimal() else -1 for part in re.split(r"[.-]", name)]
        entries.append((order, name.removesuffix(".conf"), keys.get("title", ""), options))
    entries.sort(reverse=True)
    return [
        BootEntry(((str(at), stem, title),), tuple(options.split()))
        for at, (_, stem, title, options) in enumerate(entries)
    ]


_UNITS = "/etc/systemd/system"
OWN_UNIT = f"{_UNITS}/mooncake-hugepages.service"
COMMAND_LINE = "kernel command line"
_UNIT_SCALE = {"K": KIB, "M": MIB, "G": GIB}


class PoolWriter(NamedTuple):
    """One thing that sets a pool at boot.

    page_size_bytes: None for the kernel's default size. node: None for all. pages: None if it
    writes the pool by a script whose number is not read.
    """

    source: str
    page_size_bytes: int | None
    node: int | None
    pages: int | None


def read_pool_writers(root: Root, files: Sequence[SysctlFile]) -> tuple[PoolWriter, ...]:
    """Read everything that sets pools at boot, in the order of the boot.

    That is: the kernel command line, sysctl, TuneD, systemd units.
    """
    return (
        *_command_line(root),
        *(writer for file in files for writer in _of_settings(file.settings, file.path)),
        *_tuned(root),
        *_units(root),
    )


def pages_after_boot(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> tuple[int, str] | None:
    """Return ``(pages, source)`` of the last writer of a whole pool; None if nobody sets it."""
    last, nodes = _last_writers(writers, page_size_bytes, default_page_bytes)
    if nodes:
        sources = sorted({source for _, source in nodes.values()})
        return sum(pages for pages, _ in nodes.values()), ", ".join(sources)
    return last


def shares_after_boot(
    writers: tuple[PoolWriter, ...],
    page_size_bytes: int,
    default_page_bytes: int | Unknown,
    nodes: Sequence[int],
) -> dict[int, int]:
    """Return the pages of each of ``nodes``; the kernel spreads a whole pool evenly over them."""
    last, by_node = _last_writers(writers, page_size_bytes, default_page_bytes)
    even = 0 if last is None or not nodes or by_node else last[0] // len(nodes)
    return {node: by_node[node][0] if node in by_node else even for node in nodes}


def _last_writers(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> tuple[tuple[int, str] | None, dict[int, tuple[int, str]]]:
    """Return the last writer of the whole pool, and by node those that wrote a node later."""
    last: tuple[int, str] | None = None
    nodes: dict[int, tuple[int, str]] = {}
    for writer in writers:
        size = writer.page_size_bytes
        if (default_page_bytes if size is None else size) != page_size_bytes:
            continue
        if writer.pages is None:
            continue
        if writer.node is None:
            last, nodes = (writer.pages, writer.source), {}
        else:
            nodes[writer.node] = (writer.pages, writer.source)
    return last, nodes


def unread_after_boot(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> str:
    """Name the last writer of a pool if its number could not be read, else ""."""
    last = ""
    for writer in writers:
        size = writer.page_size_bytes
        if (default_page_bytes if size is None else size) == page_size_bytes:
            last = writer.source if writer.pages is None else ""
    return last


def overruling(
    writers: Sequence[PoolWriter], pages: int, default_page_bytes: int | Unknown
) -> tuple[PoolWriter, ...]:
    """Return the writers after our drop-in that set fewer pages, or an unread number."""
    return tuple(
        writer
        for writer in writers
        if writer.page_size_bytes in (None, default_page_bytes)
        and writer.source not in (COMMAND_LINE, OWN_UNIT)
        and not acts_before_drop_in(writer.source)
        and (writer.pages is None or (writer.node is None and writer.pages < pages))
    )


def parse_command_line(text: str, source: str) -> tuple[PoolWriter, ...]:
    """Read the pools of a kernel command line.

    As ``default_hugepagesz=1G hugepagesz=2M hugepages=512`` or ``hugepages=0:256,1:256``.
    """
    writers: list[PoolWriter] = []
    size: int | None = None
    for word in text.split():
        name, _, value = word.partition("=")
        if name in ("hugepagesz", "default_hugepagesz"):
            match = re.fullmatch(r"(\d{1,12})([KMG]?)", value.strip().upper())
            size = int(match[1]) * _UNIT_SCALE.get(match[2], 1) if match else None
        elif name == "hugepages":
            writers += _counts(value, size, source)
    return tuple(writers)


def _counts(value: str, size: int | None, source: str) -> Iterator[PoolWriter]:
    """Read the pages of ``hugepages=``: one number, or ``node:pages`` each."""
    for part in value.split(","):
        node, colon, pages = part.partition(":")
        if not colon:
            node, pages = "", part
        if pages.isdecimal() and (not colon or node.isdecimal()):
            yield PoolWriter(source, size, int(node) if colon else None, int(pages))


def _command_line(root: Root) -> Iterator[PoolWriter]:
    words = read_next_words(root)  # this boot's own words, where no menu is read
    content = root.text("/proc/cmdline") if isinstance(words, Unknown) else " ".join(words)
    if not isinstance(content, Unknown):
        yield from parse_command_line(content, COMMAND_LINE)


def parse_sysctl(text: str, source: str) -> Iterator[PoolWriter]:
    """Yield the lines of one file that set the pool of the default page size."""
    return _of_settings(parse_settings(text), source)


def _of_settings(settings: Iterable[tuple[str, str]], source: str) -> Iterator[PoolWriter]:
    for name, value in settings:
        if name in ("vm.nr_hugepages", "vm.nr_hugepages_mempolicy"):
            yield PoolWriter(source, None, None, int(value) if value.isdecimal() else None)


def _tuned(root: Root) -> Iterator[PoolWriter]:
    """Read the sysctl lines of tuned's active profiles."""
    active = root.word("/etc/tuned/active_profile")
    if isinstance(active, Unknown):
        return
    for profile in active.split():
        for folder in ("/etc/tuned", "/usr/lib/tuned"):
            path = f"{folder}/{profile}/tuned.conf"
            content = root.text(path)
            if not isinstance(content, Unknown):
                yield from parse_sysctl(content, path)
                break


def _units(root: Root) -> Iterator[PoolWriter]:
    """Read systemd units that write ``nr_hugepages`` with ``tee``, ``echo >`` etc."""
    names = root.names(_UNITS)
    for name in () if isinstance(names, Unknown) else names:
        if not name.endswith(".service"):
            continue
        content = root.text(f"{_UNITS}/{name}")
        if isinstance(content, Unknown) or "nr_hugepages" not in content:
            continue
        for line in content.splitlines():
            yield from _unit_line(line, f"{_UNITS}/{name}")


def _unit_line(line: str, source: str) -> Iterator[PoolWriter]:
    """Read a pool's size from an Exec line of a systemd unit: a sysctl, or an echo into a file."""
    if "nr_hugepages" not in line or not line.lstrip().startswith("Exec"):
        return
    file = re.search(r"(?:node(\d+)/hugepages/)?hugepages-(\d+)kB/nr_hugepages", line)
    count = re.search(r"(?:echo|printf)\s+[\"']?(\d+)", line)
    sysctl = re.search(r"vm[./]nr_hugepages=(\d+)", line)
    if sysctl:
        yield PoolWriter(source, None, None, int(sysctl[1]))
    elif file:
        node = int(file[1]) if file[1] else None
        yield PoolWriter(source, int(file[2]) * KIB, node, int(count[1]) if count else None)
    else:
        yield PoolWriter(source, None, None, int(count[1]) if count else None)
