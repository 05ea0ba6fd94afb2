"""Who will set the HugeTLB pools after a reboot, in the order in which they act.

Sources: Documentation/admin-guide/kernel-parameters.txt (hugepages=, hugepagesz=), sysctl.d(5)
(order and masking of drop-ins), tuned-main.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.base.root import Root
from checks.base.units import GIB, KIB, MIB
from checks.base.unknown import Unknown

# sysctl.d(5): a file of an earlier folder masks one of the same name in a later folder; all of
# them are applied in the order of their names, wherever they stand.
SYSCTL_FOLDERS = (
    "/etc/sysctl.d",
    "/run/sysctl.d",
    "/usr/local/lib/sysctl.d",
    "/usr/lib/sysctl.d",
    "/lib/sysctl.d",
)
# procps' ``sysctl --system`` reads it last; systemd only through a drop-in that links to it.
SYSCTL_CONF = "/etc/sysctl.conf"
# Our own; the name is that of Mooncake's guide.
DROP_IN = "/etc/sysctl.d/90-mooncake-hugepages.conf"
_UNITS = "/etc/systemd/system"
OWN_UNIT = f"{_UNITS}/mooncake-hugepages.service"
COMMAND_LINE = "kernel command line"
_UNIT_SCALE = {"K": KIB, "M": MIB, "G": GIB}


class PoolWriter(NamedTuple):
    """One thing that sets a pool at boot.

    page_size_bytes: None for the kernel's default size. node: None for all. pages: None where it
    writes the pool by a script whose number is not read.
    """

    source: str
    page_size_bytes: int | None
    node: int | None
    pages: int | None


def read_pool_writers(root: Root) -> tuple[PoolWriter, ...]:
    """In the order in which they act: the kernel command line, sysctl, TuneD, systemd units."""
    return (
        *_command_line(root),
        *_sysctl(root),
        *_tuned(root),
        *_units(root),
    )


def pages_after_boot(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> tuple[int, str] | None:
    """``(pages, source)`` of the last writer of a whole pool; None where nobody sets it."""
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
    """Pages of each of ``nodes``: the kernel spreads a whole pool evenly over those with memory."""
    last, own = _last_writers(writers, page_size_bytes, default_page_bytes)
    even = 0 if last is None or not nodes or own else last[0] // len(nodes)
    return {node: own[node][0] if node in own else even for node in nodes}


def _last_writers(
    writers: tuple[PoolWriter, ...], page_size_bytes: int, default_page_bytes: int | Unknown
) -> tuple[tuple[int, str] | None, dict[int, tuple[int, str]]]:
    """Who wrote the whole pool last, and who wrote its nodes after that."""
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
    """The source of the last writer of a pool where its number is not read, else ""."""
    last = ""
    for writer in writers:
        size = writer.page_size_bytes
        if (default_page_bytes if size is None else size) == page_size_bytes:
            last = writer.source if writer.pages is None else ""
    return last


def overruling(
    writers: Sequence[PoolWriter], pages: int, default_page_bytes: int | Unknown
) -> tuple[PoolWriter, ...]:
    """Return who sets the default pool after our drop-in: to less, or by a script."""
    return tuple(
        writer
        for writer in writers
        if writer.page_size_bytes in (None, default_page_bytes)
        and _acts_after_drop_in(writer.source)
        and (writer.pages is None or (writer.node is None and writer.pages < pages))
    )


def _acts_after_drop_in(source: str) -> bool:
    """sysctl.d(5): by the names of files, whatever their folder; then TuneD and units."""
    if source in (COMMAND_LINE, OWN_UNIT):
        return False
    folder, _, name = source.rpartition("/")
    if source != SYSCTL_CONF and folder in SYSCTL_FOLDERS:
        return name > DROP_IN.rpartition("/")[2]
    return True


def parse_command_line(text: str, source: str) -> tuple[PoolWriter, ...]:
    """``default_hugepagesz=1G hugepagesz=2M hugepages=512`` or ``hugepages=0:256,1:256``."""
    found: list[PoolWriter] = []
    size: int | None = None
    for word in text.split():
        name, _, value = word.partition("=")
        if name in ("hugepagesz", "default_hugepagesz"):
            size = _size(value)
        elif name == "hugepages":
            found += _counts(value, size, source)
    return tuple(found)


def _counts(value: str, size: int | None, source: str) -> Iterator[PoolWriter]:
    for part in value.split(","):
        node, colon, pages = part.partition(":")
        if not colon:
            node, pages = "", part
        if pages.isdecimal() and (not colon or node.isdecimal()):
            yield PoolWriter(source, size, int(node) if colon else None, int(pages))


def _size(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,12})([KMG]?)", text.strip().upper())
    return int(match[1]) * _UNIT_SCALE.get(match[2], 1) if match else None


def _command_line(root: Root) -> Iterator[PoolWriter]:
    content = root.text("/proc/cmdline")
    if not isinstance(content, Unknown):
        yield from parse_command_line(content, COMMAND_LINE)


def _sysctl(root: Root) -> Iterator[PoolWriter]:
    chosen: dict[str, str] = {}
    for folder in SYSCTL_FOLDERS:
        names = root.names(folder)
        for name in () if isinstance(names, Unknown) else names:
            if name.endswith(".conf"):
                chosen.setdefault(name, f"{folder}/{name}")
    files = [chosen[name] for name in sorted(chosen)]
    for path in dict.fromkeys((*files, SYSCTL_CONF)):
        content = root.text(path)
        if not isinstance(content, Unknown):
            yield from parse_sysctl(content, path)


def parse_sysctl(text: str, source: str) -> Iterator[PoolWriter]:
    """The lines of one file that set the pool of the default page size."""
    for line in text.splitlines():
        name, equals, value = line.strip().lstrip("-").partition("=")
        key = name.strip().replace("/", ".")
        if equals and key in ("vm.nr_hugepages", "vm.nr_hugepages_mempolicy"):
            pages = value.strip()
            yield PoolWriter(source, None, None, int(pages) if pages.isdecimal() else None)


def _tuned(root: Root) -> Iterator[PoolWriter]:
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
    """Units of this host's own that write ``nr_hugepages``: ``tee``, ``echo >`` and the like."""
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
