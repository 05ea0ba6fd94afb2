"""Compare what processes take from HugeTLB pools with what the pools can give.

The answer is a promise, so it is taken over every order in which the processes may run and every
pool at least this large. That makes it monotone: more pages never turn a better verdict into a
worse one, although the library itself is not like that. With two ranks whose arenas are larger than
what goes into them, 49 free pages can start both (no arena fits) where 55 kill the second (the
first rank's arena fits and starves it); such a pool is judged ``FAILS``.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from checks.framework.pages import Pages, Spot, Usage
from checks.framework.unknown import Unknown

# A bound process is granted a mapping on the pages of its own node, wherever its shares then lie.
HEADROOM = "while a split segment is mapped"


class Stock(NamedTuple):
    """Pages available, between two bounds; equal if they are known exactly.

    Attributes:
        kills: A mapping of more pages is granted all the same, and a bus error ends the process
            that touches them; nothing falls back. A cgroup's hugetlb limit does so unless it is
            ``rsvd``.
    """

    least_pages: int
    most_pages: int
    kills: bool = False


class Fit(Enum):
    """Whether pools hold all that is asked for (FITS), enough for a start (FALLS_BACK), or less
    (FAILS).
    """

    FITS = "fits"
    FALLS_BACK = "falls_back"
    FAILS = "fails"
    UNKNOWN = "unknown"


class Shortage(NamedTuple):
    """A pool, or one NUMA node, that has fewer pages than all asked-for mappings need."""

    spot: Spot
    available: Stock | Unknown
    start_pages: int  # for certain start, with arenas dropped


class FitVerdict(NamedTuple):
    """What ``judge_fit`` answers."""

    fit: Fit
    needs: Pages  # per pool and per node with pages bound to it: what ``FITS`` takes
    start: Pages  # the same for a certain start, with arenas dropped where that is enough
    shortages: tuple[Shortage, ...]


def judge_fit(usages: Sequence[Usage], stock: Mapping[Spot, Stock | Unknown]) -> FitVerdict:
    """Judge whether ``stock`` holds all ``usages`` together.

    A spot not in ``stock`` is unknown.
    """
    needs = fit_needs(usages)
    start = start_needs([_drop_large_arena(usage, stock) for usage in usages])
    missing = Unknown("not read")
    available = {spot: stock.get(spot, missing) for spot in needs.keys() | start.keys()}
    for spot, have in available.items():
        if isinstance(have, Stock) and have.kills and spot in needs:
            start[spot] = touched_pages(usages, spot) or needs[spot]

    def verdict(bound: int, unknown_pages: float) -> Fit:
        """Tell whether one bound of each stock (0: least, 1: most) holds everything, or at least a
        start.

        Args:
            unknown_pages: Taken for an unknown stock.
        """
        have = {
            spot: unknown_pages if isinstance(stock, Unknown) else stock[bound]
            for spot, stock in available.items()
        }
        for wanted, fit in ((needs, Fit.FITS), (start, Fit.FALLS_BACK)):
            if all(have[spot] >= pages for spot, pages in wanted.items()):
                return fit
        return Fit.FAILS

    worst, best = verdict(0, 0), verdict(1, float("inf"))
    shortages = tuple(
        Shortage(spot, have, start.get(spot, 0))
        for spot, have in sorted(available.items(), key=lambda item: spot_order(item[0]))
        if isinstance(have, Unknown) or have.least_pages < needs.get(spot, 0)
    )
    return FitVerdict(worst if worst is best else Fit.UNKNOWN, needs, start, shortages)


def touched_pages(usages: Sequence[Usage], spot: Spot) -> int:
    """Return the pages at ``spot`` that a single process touches if it does not fill its arena.

    Returns:
        0 for several processes, or if the process fills its arena.
    """
    return usages[0].touched.get(spot, 0) if len(usages) == 1 else 0


def _drop_large_arena(usage: Usage, stock: Mapping[Spot, Stock | Unknown]) -> Usage:
    """Return a usage without its arena, if the arena alone is larger than the stock of its pool or
    node; else unchanged.
    """
    for spot, pages in usage.arena.items():
        every = (stock.get(at) for at in (spot, Spot(spot.page_size_bytes, None)))
        if any(isinstance(have, Stock) and have.most_pages < pages for have in every):
            return usage._replace(mapped=usage.dropped, serves_all=False, arena={})
    return usage


def fit_needs(usages: Sequence[Usage]) -> dict[Spot, int]:
    """Return the pages with which every mapping succeeds, in whatever order processes start."""
    return {
        spot: sum(_pages_at(spot, usage.mapped) for usage in usages)
        + max(usage.headroom.get(spot, 0) for usage in usages)
        for spot in _spots(pages for usage in usages for pages in (usage.mapped, usage.headroom))
    }


def start_needs(usages: Sequence[Usage]) -> dict[Spot, int]:
    """Return the pages, by spot, with which every process certainly starts.

    This is the worst case: one process gets the least that it can start with, after all others took
    their most.
    """
    needs: dict[Spot, int] = {}
    every = [(usage.mapped, usage.dropped, usage.headroom) for usage in usages]
    for spot in _spots(pages for three in every for pages in three):
        both = [(_pages_at(spot, usage.mapped), _pages_at(spot, usage.dropped)) for usage in usages]
        everything = sum(map(max, both)) + max(usage.headroom.get(spot, 0) for usage in usages)
        for usage, three, (mapped, dropped) in zip(usages, every, both, strict=True):
            peak = max(mapped, dropped)
            # Where nothing is without the arena, nothing but the arena is with it.
            must_have = dropped if usage.serves_all or not dropped else peak
            if spot.nodes and not any(pages.get(spot) for pages in three):
                continue  # its pages can come from another node
            if must_have:
                needs[spot] = max(needs.get(spot, 0), everything - peak + must_have)
    return needs


def pool_needs(needs: Pages) -> dict[Spot, int]:
    """Return needs with each whole pool at least as large as the needs of its NUMA nodes together.

    That sum is more than is ever taken at once if unbound pages may lie on any node, or if a node
    has to show free pages for a moment (``Usage.headroom``).
    """
    together: dict[Spot, int] = {}
    for spot, pages in needs.items():
        if spot.node is not None:
            whole = Spot(spot.page_size_bytes, None)
            together[whole] = together.get(whole, 0) + pages
    return {spot: max(pages, together.get(spot, 0)) for spot, pages in needs.items()}


def _spots(every: Iterable[Pages]) -> list[Spot]:
    """Return each pool in use, and each NUMA node that something is bound to."""
    used = {spot for pages in every for spot, count in pages.items() if count}
    pools = {Spot(spot.page_size_bytes, None) for spot in used}
    return sorted(used | pools, key=spot_order)


def _pages_at(spot: Spot, pages: Pages) -> int:
    """Return the most pages that may lie on ``spot``: unbound, or bound to any of its nodes."""
    return sum(
        count
        for at, count in pages.items()
        if at.page_size_bytes == spot.page_size_bytes
        and (not spot.nodes or not at.nodes or not set(at.nodes).isdisjoint(spot.nodes))
    )


def spot_order(spot: Spot) -> tuple[int, int, tuple[int, ...]]:
    return (spot.page_size_bytes, len(spot.nodes), spot.nodes)
