"""Hosts as the memory map sees them: three topics, small numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.units import GIB, MIB
from checks.base.unknown import Unknown
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import HugeTlb, NodePool, Pool
from checks.memory.facts import MemoryFacts, MemoryHeadroom
from checks.numa.facts import NumaFacts, NumaNode
from checks.numa.nodes import Meminfo
from checks.run.facts import Facts

PAGE = 2 * MIB
WHY = Unknown("not read by this test")


class MemoryNode(NamedTuple):
    """A node: its memory, and its share of the pool of 2 MiB pages."""

    total: int
    available: int
    pages: int = 0
    free_pages: int = 0


def memory_facts(
    nodes: Mapping[int, MemoryNode],
    *,
    available: int | None = None,
    reserved_pages: int = 0,
    cgroup: int | None = None,
    pools: Unknown | None = None,
) -> Facts:
    """``available``: MemAvailable, without it what the nodes have. One node: no NUMA is shown."""
    total = sum(node.total for node in nodes.values())
    left = sum(node.available for node in nodes.values()) if available is None else available
    meminfo = Meminfo("/proc/meminfo", {"MemTotal": total, "MemAvailable": left})
    pool = Pool(
        PAGE,
        "/sys/kernel/mm/hugepages/hugepages-2048kB",
        sum(node.pages for node in nodes.values()),
        sum(node.free_pages for node in nodes.values()),
        reserved_pages,
        0,
        0,
        {number: NodePool(node.pages, node.free_pages) for number, node in nodes.items()},
    )
    hugetlb = HugeTlb(PAGE, {PAGE: pool} if pools is None else pools, True)
    shown = nodes if len(nodes) > 1 else {}
    headroom = None if cgroup is None else MemoryHeadroom(cgroup, "memory.max")
    return Facts(
        {
            "memory": MemoryFacts(meminfo, headroom, WHY, WHY, WHY, WHY, WHY, False),
            "hugetlb": HugetlbFacts(hugetlb, meminfo, {}, WHY, {}, (), WHY, WHY),
            "numa": NumaFacts(
                tuple(
                    NumaNode(number, (number,), node.total, node.available, 0, WHY)
                    for number, node in shown.items()
                ),
                tuple(shown),
                WHY,
                WHY,
                WHY,
                WHY,
                "",
                WHY,
                WHY,
            ),
        }
    )


# 2 nodes of 64 GiB: 4 GiB in use, a pool of 20 GiB of which others hold 4 GiB.
TWO_NODES = {
    0: MemoryNode(64 * GIB, 40 * GIB, 10240, 8192),
    1: MemoryNode(64 * GIB, 40 * GIB, 10240, 8192),
}
ONE_NODE = {0: MemoryNode(64 * GIB, 60 * GIB)}
