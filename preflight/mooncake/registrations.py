"""What of an allocation is registered with a NIC: the regions, as they are handed over."""

from __future__ import annotations

from collections.abc import Iterator

from checks.launch_needs import Region
from preflight.mooncake.allocations import Allocation, Backing, Handed
from preflight.mooncake.replay import REGULAR_PAGE_BYTES


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
    yield Region(what, size, page, allocation.offset_bytes)
