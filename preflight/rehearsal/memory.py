"""What is left of the host's memory, and pages in use: looked at before and during every step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from checks.base.needs import Spot
from checks.base.root import Root
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.hugetlb.pools import HugeTlb, read_hugetlb
from checks.memory.cgroup import MemoryHeadroom, memory_headroom
from checks.numa.meminfo import Meminfo, read_meminfo, read_node_meminfo

# Of the memory that is not set aside as huge pages, one part in so many is left alone.
LEFT_SHARE = 10


class Room(NamedTuple):
    """How much more may be taken before the limit; below 0 it is passed.

    source: of what. node: the NUMA node that it is of, None for the host and the cgroup.
    """

    bytes: int
    source: str
    node: int | None = None


class MemoryWatch:
    """Asks how much memory may still be taken: of the host, of nodes, and of the cgroup."""

    def __init__(self, root: Root, nodes: Iterable[int]) -> None:
        self._root = root
        self._nodes = frozenset(nodes)
        self._limited = memory_headroom(root) is not None
        self.lowest_bytes: int | None = None

    def room(self) -> Room:
        """The tightest; what cannot be read is no room."""
        tightest = min(self._rooms(), key=lambda room: room.bytes)
        if self.lowest_bytes is None or tightest.bytes < self.lowest_bytes:
            self.lowest_bytes = tightest.bytes
        return tightest

    def too_small(self, need_bytes: Mapping[int | None, int]) -> tuple[int, Room] | None:
        """What of ``need_bytes``, by node (None: in all), there is no room for, and that room."""
        for room in self._rooms():
            need = need_bytes.get(room.node, 0)
            if need > room.bytes:
                return need, room
        return None

    def _rooms(self) -> Iterator[Room]:
        yield _host_room(read_meminfo(self._root))
        if self._nodes:
            tables, hugetlb = read_node_meminfo(self._root), _pools(self._root)
            for node in sorted(self._nodes):
                table = tables.get(node)
                if table is not None and not isinstance(table, Unknown):
                    yield _node_room(node, table, _huge_bytes(hugetlb, node))
        if self._limited:
            yield _cgroup_room(self._root, memory_headroom(self._root))


def _host_room(meminfo: Meminfo | Unknown) -> Room:
    if isinstance(meminfo, Unknown):
        return Room(-1, f"memory cannot be read: {meminfo.reason}")
    available, total = meminfo.value("MemAvailable"), meminfo.value("MemTotal")
    if isinstance(available, Unknown) or isinstance(total, Unknown):
        return Room(-1, "/proc/meminfo: no MemAvailable")
    huge = meminfo.value("Hugetlb")  # since Linux 4.20
    left = (total - (0 if isinstance(huge, Unknown) else huge)) // LEFT_SHARE
    source = f"{format_bytes(left)} of the host's memory is left alone"
    return Room(available - left, source)


def _node_room(node: int, table: Meminfo, huge_bytes: int) -> Room:
    """What is free on a node, and page cache, which goes first; its huge pages are no part."""
    names = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    values = [table.value(name) for name in names]
    free = sum(value for value in values if not isinstance(value, Unknown))
    total = table.value("MemTotal")
    left = 0 if isinstance(total, Unknown) else max(0, total - huge_bytes) // LEFT_SHARE
    return Room(free - left, f"{format_bytes(left)} of node {node}'s memory is left alone", node)


def _huge_bytes(hugetlb: HugeTlb, node: int) -> int:
    """What a node has set aside as huge pages, over all sizes."""
    pools = {} if isinstance(hugetlb.pools, Unknown) else hugetlb.pools
    return sum(
        size * pool.nodes[node].total_pages
        for size, pool in pools.items()
        if not isinstance(pool, Unknown) and node in pool.nodes
    )


def _cgroup_room(root: Root, headroom: MemoryHeadroom | Unknown | None) -> Room:
    if headroom is None:
        return Room(1 << 62, "no cgroup limit")
    if isinstance(headroom, Unknown):
        return Room(-1, f"the cgroup's memory cannot be read: {headroom.reason}")
    limit = root.integer(headroom.source)
    left = 0 if isinstance(limit, Unknown) else limit // LEFT_SHARE
    return Room(
        headroom.left_bytes - left,
        f"{format_bytes(left)} of {headroom.source} is left alone",
    )


def pages_in_use(root: Root) -> dict[Spot, int]:
    """Pages that somebody has, by size: of the host (node None) and of each node."""
    return _in_use(_pools(root))


def _pools(root: Root) -> HugeTlb:
    return read_hugetlb(root, Unknown("not asked"))


def _in_use(hugetlb: HugeTlb) -> dict[Spot, int]:
    used: dict[Spot, int] = {}
    if isinstance(hugetlb.pools, Unknown):
        return used
    for size, pool in hugetlb.pools.items():
        if isinstance(pool, Unknown):
            continue
        used[Spot(size, None)] = pool.total_pages - pool.free_pages
        for node, share in pool.nodes.items():
            used[Spot(size, node)] = share.total_pages - share.free_pages
    return used


def others(root: Root) -> list[str]:
    """Pages that others have, or are promised: what they do meanwhile is no part of a rehearsal."""
    found = []
    pools = _pools(root).pools
    for size, pool in ({} if isinstance(pools, Unknown) else pools).items():
        if isinstance(pool, Unknown) or not pool.held_pages:
            continue
        used = pool.total_pages - pool.free_pages
        found.append(
            f"others use {used} pages of {format_bytes(size)} and {pool.reserved_pages} more are "
            "promised to them: pages that they take or give back meanwhile are counted here too"
        )
    return found


def taken_since(root: Root, before: Mapping[Spot, int]) -> dict[Spot, int]:
    """Pages more than before, by size and node; those that are as before are left out."""
    now = pages_in_use(root)
    return {
        spot: now[spot] - before.get(spot, 0) for spot in now if now[spot] != before.get(spot, 0)
    }


def status_bytes(pid: int) -> dict[str, int]:
    """The sizes in /proc/PID/status (VmPin, VmLck, VmRSS …); empty where it is gone."""
    sizes: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                words = value.split()
                if len(words) == 2 and words[1] == "kB":
                    sizes[name] = int(words[0]) * 1024
    except (OSError, ValueError):
        pass
    return sizes
