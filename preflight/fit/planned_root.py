"""The host as it will be once a plan has been applied: its pools set, and the memory gone to them.

Everything else is as the host behind it says. ``apply`` never lowers a pool, and neither does this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checks.base.recording import RecordingRoot
from checks.base.root import Root
from checks.base.units import KIB
from checks.base.unknown import Unknown
from checks.hugetlb.pools import POOLS, Pool
from checks.numa.meminfo import read_meminfo, read_node_meminfo
from checks.numa.nodes import NODES
from preflight.settings.records import PoolTarget

MEMINFO = "/proc/meminfo"
# Rows of a node's meminfo that give way to pages once its free memory is used up, in that order.
_CACHE = ("Inactive(file)", "Active(file)", "SReclaimable")


class PlannedRoot(RecordingRoot):
    """``inner`` with other texts in place of some files."""

    def __init__(self, inner: Root, texts: dict[str, str]) -> None:
        super().__init__(inner)
        self.texts = texts

    def text(self, name: str) -> str | Unknown:
        planned = self.texts.get(name)
        return super().text(name) if planned is None else planned


def planned_root(root: Root, pools: Iterable[PoolTarget], default_page_bytes: int) -> Root:
    """Return ``root`` with ``pools`` set; the same where none of them has to grow.

    Pages that are bound to no node come from all nodes evenly, and from the others where one has no
    memory left, as the kernel takes them (mm/hugetlb.c, alloc_pool_huge_folio).
    """
    grown = [target for target in pools if target.pages > (target.now_pages or 0)]
    if not grown:
        return root
    texts: dict[str, str] = {}
    now = PlannedRoot(root, texts)
    free, cache = _node_memory(root)
    for target in grown:
        size, added = target.page_bytes, target.pages - (target.now_pages or 0)
        name = f"hugepages-{size // KIB}kB"
        if target.node is not None:
            shares = {target.node: added}
        else:
            room = {}
            for node in free:
                there = root.integer(f"{NODES}/node{node}/hugepages/{name}/nr_hugepages")
                if not isinstance(there, Unknown) or not there.absent:
                    room[node] = (free[node] + cache[node]) // size
            shares = _spread(added, room)
        _add(now, f"{POOLS}/{name}", added)
        for node, pages in shares.items():
            _add(now, f"{NODES}/node{node}/hugepages/{name}", pages)
            taken = min(free.get(node, 0), pages * size)
            if node in free:
                free[node] -= taken
                cache[node] = max(0, cache[node] - (pages * size - taken))
            _take_node(now, node, pages * size)
        rows = {"MemFree": -added * size, "MemAvailable": -added * size}
        if size == default_page_bytes:
            rows |= {"HugePages_Total": added, "HugePages_Free": added}
            _more(now, "/proc/sys/vm/nr_hugepages", added)
        rows["Hugetlb"] = added * size
        _change_rows(now, MEMINFO, rows)
    return now


def released_root(root: Root, pools: Iterable[Pool]) -> Root:
    """Return ``root`` with every page that nobody has given back to the memory of its node."""
    now = PlannedRoot(root, {})
    for pool in pools:
        size, name = pool.page_size_bytes, f"hugepages-{pool.page_size_bytes // KIB}kB"
        # Which node a reservation will be met on is not known: so many stay on each.
        shares = {
            node: max(0, share.free_pages - pool.reserved_pages)
            for node, share in pool.nodes.items()
        }
        given = sum(shares.values())
        if not given:
            continue
        _add(now, f"{POOLS}/{name}", -given)
        for node, pages in shares.items():
            _add(now, f"{NODES}/node{node}/hugepages/{name}", -pages)
            _change_rows(now, f"{NODES}/node{node}/meminfo", {"MemFree": pages * size})
        rows = {"MemFree": given * size, "MemAvailable": given * size}
        _change_rows(now, MEMINFO, rows)
    return now


def _node_memory(root: Root) -> tuple[dict[int, int], dict[int, int]]:
    """Return the free memory by node, and the page cache that gives way, in bytes.

    Of the one node where none are shown.
    """
    free: dict[int, int] = {}
    cache: dict[int, int] = {}
    for node, table in read_node_meminfo(root).items():
        value = table if isinstance(table, Unknown) else table.value("MemFree")
        if isinstance(table, Unknown) or isinstance(value, Unknown):
            continue
        free[node] = value
        rows = (table.value(name) for name in _CACHE)
        cache[node] = sum(row for row in rows if isinstance(row, int))
    if not free:
        meminfo = read_meminfo(root)
        available = meminfo if isinstance(meminfo, Unknown) else meminfo.value("MemAvailable")
        free, cache = {0: available if isinstance(available, int) else 0}, {0: 0}
    return free, cache


def _spread(pages: int, room: Mapping[int, int]) -> dict[int, int]:
    """Return ``pages`` spread over nodes in turn, a full one left out.

    What no node has room for goes evenly.
    """
    shares = dict.fromkeys(room, 0)
    left, open_nodes = pages, [node for node in room if room[node] > 0]
    while left and open_nodes:
        each, rest = divmod(left, len(open_nodes))
        for index, node in enumerate(open_nodes):
            given = min(each + (index < rest), room[node] - shares[node])
            shares[node] += given
            left -= given
        open_nodes = [node for node in open_nodes if shares[node] < room[node]]
    for index, node in enumerate(shares):
        shares[node] += left // len(shares) + (index < left % len(shares))
    return shares


def _add(now: PlannedRoot, folder: str, pages: int) -> None:
    for name in ("nr_hugepages", "free_hugepages"):
        _more(now, f"{folder}/{name}", pages)


def _more(now: PlannedRoot, name: str, pages: int) -> None:
    count = now.integer(name)
    if not isinstance(count, Unknown):
        now.texts[name] = f"{count + pages}\n"


def _take_node(now: PlannedRoot, node: int, size: int) -> None:
    """Take bytes of the node's free memory first, then of its page cache."""
    name = f"{NODES}/node{node}/meminfo"
    table = read_node_meminfo(now).get(node, Unknown("no such node"))
    if isinstance(table, Unknown):
        return
    rows: dict[str, int] = {}
    for row in ("MemFree", *_CACHE):
        value = table.value(row)
        if isinstance(value, int):
            rows[row] = -min(value, size)
            size += rows[row]
    _change_rows(now, name, rows)


def _change_rows(now: PlannedRoot, name: str, changes: Mapping[str, int]) -> None:
    """Change rows of a meminfo table by so many bytes or pages; none below zero, none added."""
    content = now.text(name)
    if isinstance(content, Unknown):
        return
    lines = []
    for line in content.splitlines():
        label, colon, amount = line.partition(":")
        words, key = amount.split(), (label.split() or [""])[-1]
        if colon and key in changes and words and words[0].isdigit():
            scale = KIB if words[1:] == ["kB"] else 1
            # Rounded down: where it is less, to the side of less.
            value = max(0, int(words[0]) + changes[key] // scale)
            unit = " kB" if scale == KIB else ""
            line = f"{label}: {value}{unit}"
        lines.append(line)
    now.texts[name] = "\n".join(lines) + "\n"
