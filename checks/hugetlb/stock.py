"""What the host's HugeTLB pools can give a new launch, in pages, per pool and NUMA node."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from checks.base.pages import Spot
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown
from checks.hugetlb.cgroup import HugeTlbLimit, hugetlb_limit
from checks.hugetlb.fit import Stock
from checks.hugetlb.pools import HugeTlb, Pool

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
    hugetlb: HugeTlb,
    limits: Limits,
    memory_available_bytes: int | Unknown,
    spots: Iterable[Spot],
) -> dict[Spot, Stock | Unknown]:
    """Return the pages available at each of ``spots``: free, not reserved, within ``limits``.

    limits: by page size. Counted are the nodes that this process may use, without those that are a
    GPU's memory.
    """
    stock: dict[Spot, Stock | Unknown] = {}
    for spot in spots:
        pool = hugetlb.pool(spot.page_size_bytes)
        if isinstance(pool, Unknown):
            # A size that the kernel was seen not to have is a pool of no pages.
            none_there = pool.absent and hugetlb.page_sizes_complete
            stock[spot] = Stock(0, 0) if none_there else pool
            continue
        usable = hugetlb.usable_nodes(pool)
        if isinstance(usable, Unknown):
            stock[spot] = usable
        elif not spot.nodes:
            limit = limits.get(spot.page_size_bytes)
            stock[spot] = _pool_stock(pool, usable, limit, memory_available_bytes)
        else:
            here = set(spot.nodes).intersection(usable)
            stock[spot] = _stock_on(pool, here, memory_available_bytes)
    return stock


def stated_stock(pages: int, page_size_bytes: int, nodes: Sequence[int]) -> dict[Spot, Stock]:
    """Return a stated pool of ``pages``, spread over ``nodes`` as ``vm.nr_hugepages`` is."""
    stock = {Spot(page_size_bytes, None): Stock(pages, pages)}
    for index, node in enumerate(nodes):
        share = pages // len(nodes) + (index < pages % len(nodes))
        stock[Spot(page_size_bytes, node)] = Stock(share, share)
    return stock


@or_unknown
def _pool_stock(
    pool: Pool,
    usable: tuple[int, ...],
    limit: HugeTlbLimit | Unknown | None,
    memory_available_bytes: int | Unknown,
) -> Stock | Unknown:
    pages = pool.available_pages(memory_available_bytes)
    stock = Stock(pages, pages)
    if len(usable) < len(pool.nodes):
        stock = known(_stock_on(pool, usable, memory_available_bytes))
    limit = known(limit)
    if limit is not None:
        left = limit.left_bytes // pool.page_size_bytes
        kills = not limit.refuses and left < stock.least_pages
        stock = Stock(min(stock.least_pages, left), min(stock.most_pages, left), kills)
    return stock


def _stock_on(
    pool: Pool, nodes: Collection[int], memory_available_bytes: int | Unknown
) -> Stock | Unknown:
    """Return the least and the most pages that ``nodes`` can give.

    Reservations and surplus pages belong to no node until they are touched: hence two bounds.
    """
    if not pool.nodes:
        return Unknown(f"{pool.source}: the kernel shows no pool per NUMA node")
    here = sum(share.free_pages for at, share in pool.nodes.items() if at in nodes)
    elsewhere = sum(share.free_pages for at, share in pool.nodes.items() if at not in nodes)
    if not pool.nodes.keys() & set(nodes):
        return Stock(0, 0)
    least = max(0, here - pool.reserved_pages)
    most = max(0, here - max(0, pool.reserved_pages - elsewhere))
    return Stock(least, most + pool.surplus_allowance_pages(memory_available_bytes))
