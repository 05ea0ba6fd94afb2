"""HugeTLB pools: how many pages the kernel holds of each size, on each NUMA node, and for whom.

Sources: Documentation/admin-guide/mm/hugetlbpage.rst (the counters),
Documentation/mm/hugetlbfs_reserv.rst (available = free - reserved).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from checks.framework.finding import Evidence
from checks.framework.pages import Pages
from checks.framework.root import Root
from checks.framework.units import GIB, KIB
from checks.framework.unknown import Unknown, or_unknown, require
from checks.numa.nodes import (
    NODES,
    NUMA_STATUS,
    STATUS,
    Meminfo,
    gpu_memory_nodes,
    node_list,
    numa_nodes,
    read_allowed,
)

POOLS = "/sys/kernel/mm/hugepages"
# Pages of this size and above cannot be made on demand: the buddy allocator stops below them
# (MAX_PAGE_ORDER, 4 MiB on x86-64 with 4 KiB pages), so overcommit never yields one.
GIGANTIC_BYTES = GIB


class NodePool(NamedTuple):
    """One node's share of a pool, in pages.

    Reservations are kept for the whole pool only.
    """

    total_pages: int
    free_pages: int


class Pool(NamedTuple):
    """One page size's pool, in pages.

    ``total_pages`` counts surplus pages too. ``reserved_pages`` are promised to a mapping that has
    not touched them yet: free, but not available.

    Attributes:
        overcommit_pages: Not every recording has them.
    """

    page_size_bytes: int
    source: str
    total_pages: int
    free_pages: int
    reserved_pages: int
    surplus_pages: int
    overcommit_pages: int | Unknown
    nodes: Mapping[int, NodePool]

    @property
    def held_pages(self) -> int:
        """Pages in use by, or promised to, somebody."""
        return self.total_pages - self.free_pages + self.reserved_pages

    @or_unknown
    def available_pages(self, memory_available_bytes: int | Unknown) -> int | Unknown:
        """Return the pages that a new mapping can get: those free and not reserved, and the surplus
        pages that the kernel may still make.
        """
        free = max(0, self.free_pages - self.reserved_pages)
        return free + require(self.surplus_allowance_pages(memory_available_bytes))

    def surplus_allowance_pages(self, memory_available_bytes: int | Unknown) -> int | Unknown:
        """Return the surplus pages that the kernel may still make, by overcommit and free memory.

        Returns:
            0 for gigantic pages, or if the available memory is not known. Unknown if the overcommit
            limit is not known.
        """
        if self.page_size_bytes >= GIGANTIC_BYTES:
            return 0
        if isinstance(self.overcommit_pages, Unknown):
            return self.overcommit_pages
        if isinstance(memory_available_bytes, Unknown):
            return 0
        allowed = max(0, self.overcommit_pages - self.surplus_pages)
        return min(allowed, memory_available_bytes // self.page_size_bytes)


class HugeTlb(NamedTuple):
    """Every pool of the host; ``pools`` is Unknown if neither sysfs nor meminfo shows any.

    Attributes:
        page_sizes_complete: False if only /proc/meminfo could be read: the default size alone.
        barred: The NUMA nodes that give a launch from here no pages, each with the evidence.
    """

    default_page_size_bytes: int | Unknown
    pools: Mapping[int, Pool | Unknown] | Unknown
    page_sizes_complete: bool
    barred: Mapping[int, Evidence] | Unknown = MappingProxyType({})

    def usable_nodes(self, hugepages: Pool) -> tuple[int, ...] | Unknown:
        """Return the nodes of a pool that are not barred, ascending."""
        if isinstance(self.barred, Unknown):
            return self.barred if len(hugepages.nodes) > 1 else tuple(hugepages.nodes)
        return tuple(sorted(number for number in hugepages.nodes if number not in self.barred))

    def once_allowed(self, needs: Pages) -> "HugeTlb":
        """Return the pools as if the NUMA nodes that ``needs`` bind pages to were allowed."""
        if isinstance(self.barred, Unknown):
            return self
        bound = {spot.node for spot in needs}
        barred = {number: why for number, why in self.barred.items() if number not in bound}
        return self._replace(barred=barred)

    def pool(self, page_size_bytes: int) -> Pool | Unknown:
        """Return the pool of one page size; an absent Unknown if the kernel has no such size."""
        if isinstance(self.pools, Unknown):
            return self.pools
        missing = f"{POOLS}: unreadable, and /proc/meminfo shows only the default page size"
        if self.page_sizes_complete:
            missing = f"{POOLS}: has no hugepages-{page_size_bytes // KIB}kB"
        return self.pools.get(page_size_bytes, Unknown(missing, self.page_sizes_complete))


def read_hugetlb(root: Root, meminfo: Meminfo | Unknown) -> HugeTlb:
    """Read every pool from sysfs; if sysfs cannot be read, the default pool from ``meminfo``."""
    default = meminfo if isinstance(meminfo, Unknown) else meminfo.value("Hugepagesize")
    folders, barred = root.names(POOLS), _barred_nodes(root)
    if not isinstance(folders, Unknown):
        kib = (name[len("hugepages-") : -2] for name in folders if name.startswith("hugepages-"))
        sizes = sorted(int(size) * KIB for size in kib if size.isdecimal())
        pools = {size: _sysfs_pool(root, size) for size in sizes}
        return HugeTlb(default, pools, True, barred)
    if isinstance(meminfo, Unknown) or isinstance(default, Unknown):
        other = default if isinstance(default, Unknown) else Unknown("no meminfo")
        missing = folders.absent and other.absent
        return HugeTlb(default, Unknown(f"{folders.reason}; {other.reason}", missing), False)
    return HugeTlb(default, {default: _meminfo_pool(root, default, meminfo)}, False, barred)


def _barred_nodes(root: Root) -> Mapping[int, Evidence] | Unknown:
    """Return the NUMA nodes that give no pages, each with the evidence: nodes outside of the
    cpuset, and nodes that are a GPU's memory.

    Returns:
        Unknown if the cpuset is not known.
    """
    allowed, gpus = read_allowed(root), gpu_memory_nodes(root)
    if isinstance(allowed.mems, Unknown):
        return allowed.mems
    source = STATUS if isinstance(root.text(STATUS), str) else allowed.cpuset_source
    mine = Evidence(f"nodes allowed by {source}", node_list(allowed.mems))
    outside = set(numa_nodes(root)).difference(allowed.mems)
    theirs = Evidence(NUMA_STATUS, f"{node_list(gpus)}: memory of GPUs")
    return {**dict.fromkeys(outside, mine), **dict.fromkeys(gpus, theirs)}


@or_unknown
def _sysfs_pool(root: Root, page_size_bytes: int) -> Pool | Unknown:
    """Read one pool from /sys/kernel/mm/hugepages."""
    folder = f"{POOLS}/hugepages-{page_size_bytes // KIB}kB"
    total, free = require(_counts(root, folder))
    reserved, surplus = (
        require(root.count(f"{folder}/{x}_hugepages")) for x in ("resv", "surplus")
    )
    overcommit = root.count(f"{folder}/nr_overcommit_hugepages")
    nodes = require(_node_pools(root, page_size_bytes))
    return Pool(page_size_bytes, folder, total, free, reserved, surplus, overcommit, nodes)


@or_unknown
def _counts(root: Root, folder: str) -> NodePool | Unknown:
    """Read all and free pages of the pool or the node's share in ``folder``."""
    total, free = (require(root.count(f"{folder}/{name}_hugepages")) for name in ("nr", "free"))
    if free > total:
        return Unknown(f"{folder}: {free} pages are free of {total}: read while it changed")
    return NodePool(total, free)


@or_unknown
def _node_pools(root: Root, page_size_bytes: int) -> Mapping[int, NodePool] | Unknown:
    """Read the share of one page size's pool on each NUMA node that has pools."""
    require(root.entries(NODES))
    pools: dict[int, NodePool] = {}
    for number in numa_nodes(root):
        folder = f"{NODES}/node{number}/hugepages/hugepages-{page_size_bytes // KIB}kB"
        total = root.count(f"{folder}/nr_hugepages")
        # A node without memory has no pools; one that cannot be read is another matter.
        if not (isinstance(total, Unknown) and total.absent):
            pools[number] = require(_counts(root, folder))
    return pools


@or_unknown
def _meminfo_pool(root: Root, page_size_bytes: int, meminfo: Meminfo) -> Pool | Unknown:
    """Read the pool of the default page size: its counts from /proc/meminfo, the overcommit limit
    from /proc/sys/vm, each node's share from sysfs.

    Args:
        page_size_bytes: The default size.
    """
    total, free, reserved = (
        require(meminfo.value(f"HugePages_{row}")) for row in ("Total", "Free", "Rsvd")
    )
    surplus = meminfo.values.get("HugePages_Surp", 0)  # kernels before 2.6.24 make none
    overcommit = root.count("/proc/sys/vm/nr_overcommit_hugepages")
    if isinstance(overcommit, Unknown) and overcommit.absent:
        overcommit = 0  # a kernel without the setting makes no surplus pages
    nodes = require(_node_pools(root, page_size_bytes))
    return Pool(page_size_bytes, meminfo.source, total, free, reserved, surplus, overcommit, nodes)
