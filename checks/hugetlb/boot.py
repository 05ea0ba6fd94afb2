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

from checks.framework.root import Root
from checks.framework.units import GIB, KIB, MIB
from checks.framework.unknown import Unknown
from checks.limits.runtimes import conf_files

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


class SysctlFile(NamedTuple):
    """One sysctl file.

    Attributes:
        settings: Name, with dots, and value of each line, in order.
        masked: It is a link to /dev/null, which hides the files of the same name in later folders.
    """

    path: str
    settings: tuple[tuple[str, str], ...] = ()
    masked: bool = False


def read_sysctl_files(root: Root, *, lasting: bool = False) -> tuple[SysctlFile, ...]:
    """Read the sysctl files in the order in which they act.

    Of several files with one name only the one in the earliest folder is read.

    Args:
        lasting: Leave out /run, whose files are gone after a boot that does not write them again.
    """
    folders = [folder for folder in SYSCTL_FOLDERS if not (lasting and folder == RUN)]
    files = []
    for path in (*conf_files(root, folders), SYSCTL_CONF):
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
            name = name.removeprefix("-").strip()
            # If the first separator is a slash, slashes separate and dots belong to the parts.
            if next((letter for letter in name if letter in "./"), ".") == "/":
                name = name.translate(str.maketrans("./", "/."))
            yield name, value.strip()


def is_sysctl_file(path: str) -> bool:
    """Tell whether sysctl reads a file at boot, by its path."""
    return path == SYSCTL_CONF or path.rpartition("/")[0] in SYSCTL_FOLDERS


def acts_before_drop_in(path: str) -> bool:
    """Tell whether a sysctl file is our drop-in, or is read before it and so overruled."""
    folder, _, name = path.rpartition("/")
    return folder in SYSCTL_FOLDERS and name <= DROP_IN.rpartition("/")[2]


def choose_sysctl_file(files: Sequence[SysctlFile], last: str = "") -> tuple[str, str]:
    """Choose the sysctl file that a line is added to.

    Return its path, and the file to copy to that path first, or "".

    Args:
        files: Those of ``read_sysctl_files``.
        last: The file that would overrule our drop-in, or "". If ``last`` lies outside of /etc, it
            is copied to /etc first, so that its other lines stay.
    """
    if last == SYSCTL_CONF:
        return SYSCTL_CONF, ""
    name = (last or DROP_IN).rpartition("/")[2]
    path = f"{SYSCTL_FOLDERS[0]}/{name}"
    same_name = next((file for file in files if file.path.rpartition("/")[2] == name), None)
    if same_name is None or (same_name.path == path and not same_name.masked):
        return path, ""
    return path, "/dev/null" if same_name.masked else same_name.path


GRUB_FOLDERS = ("/boot/grub", "/boot/grub2")
BLS_ENTRIES = "/boot/loader/entries"
_LINUX = ("linux", "linux16", "linuxefi")


class BootEntry(NamedTuple):
    """One entry of the menu.

    Attributes:
        names: Of the entry and the submenus above it, the outermost first: number, id and title of
            each.
        words: Of the kernel command line.
    """

    names: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]


def read_next_words(root: Root) -> tuple[str, ...] | Unknown:
    """Return the words of the kernel command line of the next boot.

    Returns:
        Unknown if no menu of GRUB can be read, or its default entry is missing.
    """
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
        entries = _read_bls_entries(root, saved) if "blscfg" in menu else parse_menu(menu)
        return _entry_words(entries, _default_entry(menu, saved), path)
    return Unknown(f"no menu of a boot loader is read here: {missing.reason}", missing.absent)


def parse_menu(text: str) -> list[BootEntry]:
    """Return the entries of a grub.cfg that start Linux, in order, those of submenus included."""
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


def _default_entry(menu: str, saved: dict[str, str]) -> str:
    """Return the name of the entry that the menu starts by default: a number, id or title, or
    ``1>2`` for an entry of a submenu.

    Args:
        saved: The variables of grubenv.
    """
    if "next_entry" in menu and saved.get("next_entry"):
        return saved["next_entry"]
    defaults = [each for each in re.findall(r'set default="([^"]*)"', menu) if "next_" not in each]
    default = defaults[-1] if defaults else "0"
    return saved.get("saved_entry", "0") if "saved_entry" in default else default


def _entry_words(entries: list[BootEntry], default: str, source: str) -> tuple[str, ...] | Unknown:
    """Return the kernel's words of the first entry that ``default`` names ("1>2" or an id).

    Args:
        source: The menu's path.

    Returns:
        Unknown if no entry has that name.
    """
    wanted = default.split(">")
    for entry in entries:
        fits = (name in names for name, names in zip(wanted, entry.names, strict=False))
        if len(entry.names) >= len(wanted) and all(fits):
            return entry.words  # of a submenu alone the first, which is its own default
    return Unknown(f"{source}: no entry is {default!r}")


def _read_bls_entries(root: Root, saved: dict[str, str]) -> list[BootEntry]:
    """Read the files of BLS_ENTRIES, one menu entry each, the newest version first, as in GRUB's
    blscfg.

    Args:
        saved: The variables of grubenv.
    """
    entries = []
    for name in root.listed(BLS_ENTRIES):
        text = root.text(f"{BLS_ENTRIES}/{name}")
        if isinstance(text, Unknown) or not name.endswith(".conf"):
            continue
        rows = (line.split(None, 1) for line in text.splitlines())
        keys = {row[0]: row[1] for row in rows if len(row) > 1}
        options = keys.get("options", "").replace("$kernelopts", saved.get("kernelopts", ""))
        order = [int(part) if part.isdecimal() else -1 for part in re.split(r"[.-]", name)]
        entries.append((order, name.removesuffix(".conf"), keys.get("title", ""), options))
    return [
        BootEntry(((str(at), stem, title),), tuple(options.split()))
        for at, (_, stem, title, options) in enumerate(sorted(entries, reverse=True))
    ]


_UNITS = "/etc/systemd/system"
OWN_UNIT = f"{_UNITS}/mooncake-hugepages.service"
COMMAND_LINE = "kernel command line"
_UNIT_SCALE = {"K": KIB, "M": MIB, "G": GIB}


class PoolWriter(NamedTuple):
    """One thing that sets a pool at boot.

    Attributes:
        page_size_bytes: None for the kernel's default size.
        node: None for the whole pool.
        pages: None if a script writes a number that is not read.
    """

    source: str
    page_size_bytes: int | None
    node: int | None
    pages: int | None


def read_pool_writers(root: Root, files: Sequence[SysctlFile]) -> tuple[PoolWriter, ...]:
    """Read everything that sets pools at boot, in the order of the boot: the kernel command line,
    the sysctl ``files``, TuneD, systemd units.
    """
    words = read_next_words(root)  # this boot's own words, if no menu is read
    content = root.text("/proc/cmdline") if isinstance(words, Unknown) else " ".join(words)
    return (
        *(() if isinstance(content, Unknown) else parse_command_line(content, COMMAND_LINE)),
        *(writer for file in files for writer in _writers_of_settings(file.settings, file.path)),
        *_read_tuned(root),
        *_read_units(root),
    )


def pages_after_boot(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> tuple[int, str] | None:
    """Return ``(pages, source)`` of a pool after the boot; None if nobody sets it.

    The pages are the last writer's; if single NUMA nodes were written after that, the sum over
    those nodes. Writers whose number could not be read are left out.
    """
    last, nodes = _last_writers(_writers_of_size(writers, page_size_bytes, default_page_bytes))
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
    """Return the pages that each of ``nodes`` has after the boot.

    The kernel spreads a whole pool evenly; if single nodes are written after that, every other node
    has 0.
    """
    last, by_node = _last_writers(_writers_of_size(writers, page_size_bytes, default_page_bytes))
    even = 0 if last is None or not nodes or by_node else last[0] // len(nodes)
    return {node: by_node[node][0] if node in by_node else even for node in nodes}


def _writers_of_size(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> list[PoolWriter]:
    sizes = (page_size_bytes, None if default_page_bytes == page_size_bytes else page_size_bytes)
    return [writer for writer in writers if writer.page_size_bytes in sizes]


def _last_writers(
    writers: list[PoolWriter],
) -> tuple[tuple[int, str] | None, dict[int, tuple[int, str]]]:
    """Return ``(pages, source)`` of the last writer of the whole pool, or None; and by node, those
    of the last writer after that.

    Writers whose number could not be read are left out.
    """
    last: tuple[int, str] | None = None
    nodes: dict[int, tuple[int, str]] = {}
    for source, _, at, pages in writers:
        if pages is None:
            continue
        if at is None:
            last, nodes = (pages, source), {}
        else:
            nodes[at] = (pages, source)
    return last, nodes


def unread_after_boot(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> str:
    """Return the source of a pool's last writer if its number could not be read, else ""."""
    last = _writers_of_size(writers, page_size_bytes, default_page_bytes)[-1:]
    return last[0].source if last and last[0].pages is None else ""


def overruling_writers(
    writers: Sequence[PoolWriter], pages: int, default_page_bytes: int | Unknown
) -> tuple[PoolWriter, ...]:
    """Return the writers that set the whole default pool below ``pages`` after our drop-in, or to a
    number that was not read.

    The kernel command line and our unit are left out.
    """
    return tuple(
        writer
        for writer in writers
        if writer.page_size_bytes in (None, default_page_bytes)
        and writer.source not in (COMMAND_LINE, OWN_UNIT)
        and not acts_before_drop_in(writer.source)
        and (writer.pages is None or (writer.node is None and writer.pages < pages))
    )


def parse_command_line(text: str, source: str) -> tuple[PoolWriter, ...]:
    """Read the pools that a kernel command line sets: ``default_hugepagesz=1G hugepagesz=2M
    hugepages=512``, or by NUMA node ``hugepages=0:256,1:256``.
    """
    writers: list[PoolWriter] = []
    size: int | None = None
    for word in text.split():
        name, _, value = word.partition("=")
        if name in ("hugepagesz", "default_hugepagesz"):
            match = re.fullmatch(r"(\d{1,12})([KMG]?)", value.strip().upper())
            size = int(match[1]) * _UNIT_SCALE.get(match[2], 1) if match else None
        elif name == "hugepages":  # one number, or node:pages each
            for part in value.split(","):
                before, colon, after = part.partition(":")
                at, pages = (before, after) if colon else ("", before)
                if pages.isdecimal() and (not colon or at.isdecimal()):
                    writers.append(PoolWriter(source, size, int(at) if colon else None, int(pages)))
    return tuple(writers)


def parse_sysctl(text: str, source: str) -> Iterator[PoolWriter]:
    """Yield a writer for each line of a file that sets the pool of the default page size."""
    return _writers_of_settings(parse_settings(text), source)


def _writers_of_settings(settings: Iterable[tuple[str, str]], source: str) -> Iterator[PoolWriter]:
    for name, value in settings:
        if name in ("vm.nr_hugepages", "vm.nr_hugepages_mempolicy"):
            yield PoolWriter(source, None, None, int(value) if value.isdecimal() else None)


def _read_tuned(root: Root) -> Iterator[PoolWriter]:
    """Read the pool sizes that TuneD's active profiles set by sysctl."""
    active = root.word("/etc/tuned/active_profile")
    for profile in () if isinstance(active, Unknown) else active.split():
        for folder in ("/etc/tuned", "/usr/lib/tuned"):
            path = f"{folder}/{profile}/tuned.conf"
            content = root.text(path)
            if not isinstance(content, Unknown):
                yield from parse_sysctl(content, path)
                break


def _read_units(root: Root) -> Iterator[PoolWriter]:
    """Read systemd units whose Exec lines write a pool: a sysctl, or an echo into a file."""
    for path in (f"{_UNITS}/{name}" for name in root.listed(_UNITS) if name.endswith(".service")):
        content = root.text(path)
        for line in () if isinstance(content, Unknown) else content.splitlines():
            if "nr_hugepages" not in line or not line.lstrip().startswith("Exec"):
                continue
            file = re.search(r"(?:node(\d+)/hugepages/)?hugepages-(\d+)kB/nr_hugepages", line)
            sysctl = re.search(r"vm[./]nr_hugepages=(\d+)", line)
            count = sysctl or re.search(r"(?:echo|printf)\s+[\"']?(\d+)", line)
            pages = int(count[1]) if count else None
            if sysctl or not file:
                yield PoolWriter(path, None, None, pages)
            else:
                yield PoolWriter(path, int(file[2]) * KIB, int(file[1]) if file[1] else None, pages)
