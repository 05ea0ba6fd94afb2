"""The records of Mooncake's allocations: what is mapped, from where, and what is registered."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from checks.framework.pages import MemoryKind, Region, Spot
from checks.framework.units import KIB

REGULAR_PAGE_BYTES = 4 * KIB


class Backing(Enum):
    HUGETLB = "hugetlb"
    MEMFD_HUGETLB = "memfd_hugetlb"
    ARENA = "arena"
    REGULAR = "regular"
    NONE = "none"  # not mapped: it failed, or was dropped


class OnShortage(Enum):
    """The effect of missing pages on an allocation."""

    FAILS = "fails"
    FALLS_BACK = "falls_back"
    BUS_ERROR = "bus_error"


class Outcome(Enum):
    TAKEN = "taken"
    FELL_BACK = "fell_back"
    FAILED = "failed"


class RegisteredPart(Enum):
    """The part of an allocation that is registered with the NICs, if any is."""

    AS_ASKED = "the bytes that were asked for"
    WHOLE_PAGES = "all that is mapped"
    HALVES = "K and V, each half by itself"


class Allocation(NamedTuple):
    """One mapping, or the share of one NUMA node.

    Attributes:
        bytes: As asked for, before rounding.
        pages: Taken, of ``page_size_bytes`` each; 0 inside the arena, which has pages itself, and 0
            if not mapped.
        node: The NUMA node of the pages, or None.
        error: The message of the process if the pages are missing.
        offset_bytes: The beginning within a page; of plain memory, whose address is not known, the
            one that takes most pages.
        may_die: A bus error may come instead of ``error``, if other processes take the pages
            meanwhile.
        split: The number of the mapping that this share is part of, or 0.
        owner: The number of the host pool, or of the store client, that it is for.
    """

    what: MemoryKind
    bytes: int
    backing: Backing
    page_size_bytes: int
    pages: int
    node: int | None
    registered: bool
    on_shortage: OnShortage
    outcome: Outcome = Outcome.TAKEN
    error: str = ""
    registered_part: RegisteredPart = RegisteredPart.AS_ASKED
    offset_bytes: int = 0
    may_die: bool = False
    split: int = 0
    owner: int = 0

    @property
    def mapped_bytes(self) -> int:
        return self.pages * self.page_size_bytes

    @property
    def on_huge_pages(self) -> bool:
        return self.backing in (Backing.HUGETLB, Backing.MEMFD_HUGETLB)


class EndlessPools:
    """Pools that never run short: a replay against them tells what is asked for."""

    def grants(self, at: Spot, pages: int) -> bool:
        return True

    def take(self, at: Spot, pages: int) -> bool:
        return True

    def kills(self, page_size_bytes: int) -> bool:
        return False


class StockedPools:
    """Pools with the number of free pages of each spot: a page size in all, or on some nodes.

    A spot that is missing has none.

    Args:
        killing: The page sizes of which the kernel grants more than it has, so that a process dies
            when it touches them (``Stock.kills``).
    """

    def __init__(self, pages: Mapping[Spot, int], killing: Collection[int] = ()) -> None:
        self._left = dict(pages)
        self._killing = killing

    def grants(self, at: Spot, pages: int) -> bool:
        """Tell whether the kernel allows a mapping, of a process bound at a spot.

        Takes nothing.
        """
        return self.kills(at.page_size_bytes) or self._has(at, pages)

    def kills(self, page_size_bytes: int) -> bool:
        """Return whether a mapping without pages is granted, and ends in a bus error."""
        return page_size_bytes in self._killing

    def _has(self, at: Spot, pages: int) -> bool:
        size_in_all = Spot(at.page_size_bytes, None)
        return all(pages <= self._left.get(spot, 0) for spot in (at, size_in_all))

    def take(self, at: Spot, pages: int) -> bool:
        """Take pages at a spot, and at every spot that contains it.

        If pages are missing, return False and take no pages.
        """
        if not self._has(at, pages):
            return False
        for spot in self._left:
            if spot.page_size_bytes == at.page_size_bytes and (
                not spot.nodes or (at.nodes and set(at.nodes) <= set(spot.nodes))
            ):
                self._left[spot] -= pages
        return True


# Where a replay's huge pages come from.
Pools = EndlessPools | StockedPools


def all_regions_of(allocations: Iterable[Allocation]) -> Iterator[Region]:
    """Yield the regions of one process; a segment in shares is one region, registered once."""
    for shares in mappings(allocations):
        yield from regions_of(join_shares(shares))


def mappings(allocations: Iterable[Allocation]) -> Iterator[tuple[Allocation, ...]]:
    """Yield a process's allocations in groups: a single one, or the shares of a split mapping."""
    together: dict[object, list[Allocation]] = {}
    for number, allocation in enumerate(allocations):
        together.setdefault(allocation.split or -number - 1, []).append(allocation)
    yield from map(tuple, together.values())


def join_shares(shares: Sequence[Allocation]) -> Allocation:
    """Return the mapping that ``shares`` are parts of; several shares give one without a node."""
    first = shares[0]
    if len(shares) == 1:
        return first
    size, pages = sum(share.bytes for share in shares), sum(share.pages for share in shares)
    return first._replace(bytes=size, pages=pages, node=None)


def regions_of(allocation: Allocation) -> Iterator[Region]:
    """Yield the regions that one allocation registers, in order; none if it registers nothing."""
    if not allocation.registered:
        return
    regular = allocation.backing in (Backing.REGULAR, Backing.NONE)
    page = REGULAR_PAGE_BYTES if regular else allocation.page_size_bytes
    what, size = allocation.what, allocation.bytes
    if allocation.registered_part is RegisteredPart.HALVES:
        half = size // 2
        yield Region(f"K half of the {what}", half, page)
        yield Region(f"V half of the {what}", size - half, page, half % page)
        return
    if allocation.registered_part is RegisteredPart.WHOLE_PAGES:
        size += -size % page
    # MmapArena gives its mapping the flag itself (mmap_arena.cpp).
    dontfork = allocation.backing is Backing.ARENA
    yield Region(what, size, page, allocation.offset_bytes, dontfork)
