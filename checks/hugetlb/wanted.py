"""The huge pages that a launch takes, as the checks of pools ask for them."""

from __future__ import annotations

from checks.base.check import the_launch
from checks.base.finding import UnjudgedError, passed, skip
from checks.base.needs import LaunchNeeds
from checks.base.pages import Pages, Spot
from checks.base.units import format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.fit import fit_needs, pool_needs, spot_order, start_needs

NO_PAGES = "the launch takes no huge pages"
# A bound process is granted a mapping on the pages of its own node, wherever its shares then lie.
HEADROOM = "while a split segment is mapped"


class Wanted:
    """The launch's pages: for everything that it asks for, and for a certain start.

    taken: at once. everything, start: what the pools have to hold for it, which is what is set.
    """

    def __init__(self, needs: LaunchNeeds) -> None:
        assert not isinstance(needs.usages, Unknown)
        self.needs = needs
        self.taken: Pages = fit_needs(needs.usages) if needs.usages else {}
        self.everything: Pages = pool_needs(self.taken)
        self.start: Pages = pool_needs(start_needs(needs.usages)) if needs.usages else {}

    def spots(self, bound: bool) -> list[Spot]:
        spots = (spot for spot in {*self.everything, *self.start} if bool(spot.nodes) is bound)
        return sorted(spots, key=spot_order)


def wanted_pages(needs: LaunchNeeds | None) -> Wanted:
    """Return the huge pages of a launch. Raises UnjudgedError if it takes none."""
    launch = the_launch(needs)
    passed("launch").known(launch.usages)
    wanted = Wanted(launch)
    if not any(wanted.everything.values()):
        raise UnjudgedError(skip(NO_PAGES))
    return wanted


def pool_terms(wanted: Wanted, spot: Spot) -> str:
    """Return the sum by which a pool, or one NUMA node, needs its pages."""
    terms = page_terms(wanted.needs, spot)
    taken, pages = wanted.taken.get(spot, 0), wanted.everything.get(spot, 0)
    if pages == taken:
        return terms
    nodes = [at for at in wanted.spots(bound=True) if at.page_size_bytes == spot.page_size_bytes]
    shares = " + ".join(
        f"{wanted.everything.get(at, 0)}{at.where}" for at in nodes if at.node is not None
    )
    return f"{shares}; at most {taken} are taken at once ({terms})"


def page_terms(needs: LaunchNeeds | None, spot: Spot) -> str:
    """Return the pages as a sum over processes, equal terms joined: ``8 x 14306 + 128``."""
    counts: dict[int, int] = {}
    if needs is None or isinstance(needs.usages, Unknown):
        return ""
    for usage in needs.usages:
        pages = sum(count for at, count in usage.mapped.items() if spot.gives(at))
        if pages:
            counts[pages] = counts.get(pages, 0) + 1
    terms = [f"{n} x {pages}" if n > 1 else str(pages) for pages, n in counts.items()]
    more = max((usage.headroom.get(spot, 0) for usage in needs.usages), default=0)
    if not terms and not more:
        return ""
    text = f"{' + '.join(terms) or 0} pages of {format_page_size(spot.page_size_bytes)}"
    return f"{text}, and {more} free {HEADROOM}" if more else text
