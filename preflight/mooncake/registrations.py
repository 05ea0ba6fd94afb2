"""What of an allocation is registered with a NIC: the regions, as they are handed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from checks.base.needs import Region
from preflight.mooncake.allocations import Allocation, Backing, Handed
from preflight.mooncake.process_run import REGULAR_PAGE_BYTES


def all_regions_of(allocations: Iterable[Allocation]) -> Iterator[Region]:
    """The regions of one process; a segment in shares is one region, registered once."""
    for shares in mappings(allocations):
        yield from regions_of(whole(shares))


def mappings(allocations: Iterable[Allocation]) -> Iterator[tuple[Allocation, ...]]:
    """The allocations of one process, mapping by mapping.

    Those that follow each other and differ in their node alone are shares of one mapping.
    """
    shares: list[Allocation] = []
    for one in allocations:
        if shares and not _is_share_beside(one, shares):
            yield tuple(shares)
            shares = []
        shares.append(one)
    if shares:
        yield tuple(shares)


def _is_share_beside(one: Allocation, shares: list[Allocation]) -> bool:
    nodes = {one.node, *(share.node for share in shares)}
    same = one._replace(node=None) == shares[0]._replace(node=None)
    return same and None not in nodes and len(nodes) > len(shares)


def whole(shares: Sequence[Allocation]) -> Allocation:
    """The mapping that ``shares`` are of, bound to no node in particular where they are several."""
    first = shares[0]
    if len(shares) == 1:
        return first
    size, pages = sum(share.bytes for share in shares), sum(share.pages for share in shares)
    return first._replace(bytes=size, pages=pages, node=None)


def regions_of(allocation: Allocation) -> Iterator[Region]:
    """The regions of one allocation, in the order in which they are registered; none of some."""
    if not allocation.registered:
        return
    regular = allocation.backing in (Backing.REGULAR, Backing.NONE)
    page = REGULAR_PAGE_BYTES if regular else allocation.page_size_bytes
    what, size = allocation.what, allocation.bytes
    if allocation.handed is Handed.HALVES:
        half = size // 2
        yield Region(f"K half of the {what}", half, page)
        yield Region(f"V half of the {what}", size - half, page, half % page)
        return
    if allocation.handed is Handed.WHOLE_PAGES:
        size += -size % page
    # MmapArena gives its mapping the flag itself (mmap_arena.cpp).
    dontfork = allocation.backing is Backing.ARENA
    yield Region(what, size, page, allocation.offset_bytes, dontfork)
