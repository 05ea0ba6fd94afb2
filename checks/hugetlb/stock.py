"""What the host's HugeTLB pools can give a new launch, in pages, per pool and NUMA node.

The hugetlb cgroup controller may leave less: a container may see a pool full of free pages and be
allowed none, as Kubernetes sets a limit of 0 if a Pod requests no hugepages. Limits hold
for every ancestor too.
Source: Documentation/admin-guide/cgroup-v2.rst (HugeTLB), cgroup-v1/hugetlb.rst.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from checks.framework.cgroup_mounts import cgroup_limit, own_mount
from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.framework.units import kernel_size
from checks.framework.unknown import Unknown, or_unknown, require
from checks.hugetlb.fit import Stock
from checks.hugetlb.pools import HugeTlb, Pool

# cgroup v1 writes "no limit" as the largest page-aligned signed 64-bit number.
V1_UNLIMITED_BYTES = 1 << 62
# File system -> how its limits and its counters of use end.
_NAMES = {"cgroup2": ("max", "current"), "cgroup": ("limit_in_bytes", "usage_in_bytes")}


class HugeTlbLimit(NamedTuple):
    """The tightest limit that applies: ``left_bytes`` more may be mapped; ``source`` sets it.

    Attributes:
        refuses: A larger mapping fails (``rsvd``); else it is granted, and a bus error ends the
            process that touches more than is left (seen on 6.1 and 6.18).
    """

    left_bytes: int
    source: str
    refuses: bool = True


@or_unknown
def hugetlb_limit(root: Root, page_size_bytes: int) -> HugeTlbLimit | Unknown | None:
    """Return the tightest hugetlb limit of this cgroup and its ancestors; None if none is set."""
    mount = own_mount(root, "hugetlb")
    if mount is None or isinstance(mount, Unknown):
        return mount
    limit_name, used_name = _NAMES[mount.filesystem]
    tightest: HugeTlbLimit | None = None
    for folder in mount.folders:
        for part in ("", "rsvd."):
            stem = f"{folder}/hugetlb.{kernel_size(page_size_bytes)}B.{part}"
            left = require(_bytes_left(root, stem + limit_name, stem + used_name))
            if left is None:
                continue
            if tightest is None or left < tightest.left_bytes:
                tightest = HugeTlbLimit(left, stem + limit_name, bool(part))
            elif part and left == tightest.left_bytes:
                tightest = tightest._replace(refuses=True)
    return tightest


@or_unknown
def _bytes_left(root: Root, limit_file: str, used_file: str) -> int | Unknown | None:
    limit = require(cgroup_limit(root, limit_file))
    if limit is None or limit >= V1_UNLIMITED_BYTES:
        return None
    return max(0, limit - require(root.count(used_file)))


Limits = Mapping[int, HugeTlbLimit | Unknown | None]


def read_stock(
    root: Root, hugetlb: HugeTlb, memory_available_bytes: int | Unknown, spots: Iterable[Spot]
) -> dict[Spot, Stock | Unknown]:
    """Read the pages available at each of ``spots``, within what the cgroup of ``root`` allows."""
    wanted = tuple(spots)
    sizes = {spot.page_size_bytes for spot in wanted}
    limits = {size: hugetlb_limit(root, size) for size in sizes}
    return stock_of(hugetlb, limits, memory_available_bytes, wanted)


def stock_of(
    hugetlb: HugeTlb, limits: Limits, memory_available_bytes: int | Unknown, spots: Iterable[Spot]
) -> dict[Spot, Stock | Unknown]:
    """Return the pages that each of ``spots`` can give: free, not reserved, on NUMA nodes that this
    process may use and no GPU owns.

    Args:
        limits: Of the cgroup, by page size; they narrow a whole pool, not a spot of NUMA nodes.
        memory_available_bytes: Bounds the surplus pages that the kernel may still add.
    """

    @or_unknown
    def at(spot: Spot) -> Stock | Unknown:
        """Return the stock of one pool, or of one or several NUMA nodes."""
        hugepages = hugetlb.pool(spot.page_size_bytes)
        if isinstance(hugepages, Unknown) and hugepages.absent and hugetlb.page_sizes_complete:
            return Stock(0, 0)  # a size that the kernel was seen not to have
        usable = require(hugetlb.usable_nodes(require(hugepages)))
        if spot.nodes:
            here = set(spot.nodes).intersection(usable)
            return _stock_on(require(hugepages), here, memory_available_bytes)
        limit = limits.get(spot.page_size_bytes)
        return _pool_stock(require(hugepages), usable, limit, memory_available_bytes)

    return {spot: at(spot) for spot in spots}


def stated_stock(pages: int, page_size_bytes: int, nodes: Sequence[int]) -> dict[Spot, Stock]:
    """Return a stock of ``pages``, spread over ``nodes`` as the kernel does for vm.nr_hugepages."""
    stock = {Spot(page_size_bytes, None): Stock(pages, pages)}
    for index, number in enumerate(nodes):
        share = pages // len(nodes) + (index < pages % len(nodes))
        stock[Spot(page_size_bytes, number)] = Stock(share, share)
    return stock


@or_unknown
def _pool_stock(
    hugepages: Pool,
    usable: tuple[int, ...],
    limit: HugeTlbLimit | Unknown | None,
    memory_available_bytes: int | Unknown,
) -> Stock | Unknown:
    """Return a whole pool's stock within the cgroup's limit.

    Args:
        usable: Nodes that are not barred.
    """
    pages = require(hugepages.available_pages(memory_available_bytes))
    stock = Stock(pages, pages)
    if len(usable) < len(hugepages.nodes):
        stock = require(_stock_on(hugepages, usable, memory_available_bytes))
    limit = require(limit)
    if limit is not None:
        left = limit.left_bytes // hugepages.page_size_bytes
        kills = not limit.refuses and left < stock.least_pages
        stock = Stock(min(stock.least_pages, left), min(stock.most_pages, left), kills)
    return stock


@or_unknown
def _stock_on(
    hugepages: Pool, nodes: Collection[int], memory_available_bytes: int | Unknown
) -> Stock | Unknown:
    """Return the least and the most pages that ``nodes`` can give together.

    They differ because reserved pages may lie on any node until they are used.
    """
    if not hugepages.nodes:
        return Unknown(f"{hugepages.source}: the kernel shows no pool per NUMA node")
    here = sum(share.free_pages for at, share in hugepages.nodes.items() if at in nodes)
    elsewhere = sum(share.free_pages for at, share in hugepages.nodes.items() if at not in nodes)
    if not hugepages.nodes.keys() & set(nodes):
        return Stock(0, 0)
    least = max(0, here - hugepages.reserved_pages)
    most = max(0, here - max(0, hugepages.reserved_pages - elsewhere))
    return Stock(least, most + require(hugepages.surplus_allowance_pages(memory_available_bytes)))
