"""What pools must be set to for a launch, never less than now, and whether that memory is free."""

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.finding import Kind, Setting
from checks.framework.pages import Pages, Spot
from checks.framework.units import KIB, format_bytes, format_page_size
from checks.framework.unknown import Unknown
from checks.hugetlb.pools import POOLS, HugeTlb, Pool
from checks.numa.nodes import NODES


class Target(NamedTuple):
    """The ``nr_hugepages`` to set for one pool or NUMA node, and what it is now.

    Attributes:
        now_pages: None if the pool cannot be read; then ``pages`` is what the launch needs alone.
        held_pages: Those that other processes keep.
    """

    pages: int
    now_pages: int | None
    held_pages: int

    @property
    def own_pages(self) -> int:
        """Return the pages that the launch takes."""
        return self.pages - self.held_pages


def reserve_targets(hugetlb: HugeTlb, needs: Pages) -> dict[Spot, Target]:
    """Return the targets of ``all_targets`` whose pool is too small or cannot be read."""
    return {
        spot: target
        for spot, target in all_targets(hugetlb, needs).items()
        if target.now_pages is None or target.pages > target.now_pages
    }


def all_targets(hugetlb: HugeTlb, needs: Pages) -> dict[Spot, Target]:
    """Return a target for every pool that is needed, those that are large enough included.

    If pages are bound, or some nodes are barred, the targets are by NUMA node. The pages that other
    processes hold are added to those of the launch.
    """
    targets: dict[Spot, Target] = {}
    hugetlb = hugetlb.once_allowed(needs)
    for size in sorted({spot.page_size_bytes for spot, pages in needs.items() if pages}):
        hugepages = hugetlb.pool(size)
        barred = {} if isinstance(hugetlb.barred, Unknown) else hugetlb.barred
        bound = sorted(
            spot
            for spot in needs
            if spot.page_size_bytes == size and spot.node is not None and spot.node not in barred
        )
        wanted = {spot: needs[spot] for spot in bound}
        for spot in needs:
            if spot.page_size_bytes == size and spot.among:
                allowed = [Spot(size, number) for number in spot.among if number not in barred]
                _add_shares(wanted, hugepages, needs[spot], allowed)
        every: Pages = wanted or _spread_unbound(hugetlb, hugepages, size, needs)
        for spot, pages in every.items():
            now, others = now_and_held(hugepages, spot.node)
            targets[spot] = Target(pages + others, now, others)
    return targets


def _add_shares(
    shares: dict[Spot, int], hugepages: Pool | Unknown, pages: int, nodes: list[Spot]
) -> None:
    """Add to ``shares`` the ``pages`` that any of ``nodes`` may give.

    Each node first gives the pages that other processes do not hold; the missing pages are spread
    evenly.
    """
    for at in nodes:
        now, others = now_and_held(hugepages, at.node)
        shares[at] = max(shares.get(at, 0), (now or 0) - others, 0)
    missing = max(0, pages - sum(shares[at] for at in nodes))
    for index, at in enumerate(nodes):
        shares[at] += missing // len(nodes) + (index < missing % len(nodes))


def _spread_unbound(hugetlb: HugeTlb, hugepages: Pool | Unknown, size: int, needs: Pages) -> Pages:
    """Return the pages that are bound to no node: of the whole pool or, if some of its nodes are
    barred, evenly on the others.

    Args:
        size: Of a page, in bytes.
    """
    pages = needs[Spot(size, None)]
    if isinstance(hugepages, Unknown):
        return {Spot(size, None): pages}
    usable = hugetlb.usable_nodes(hugepages)
    if isinstance(usable, Unknown) or len(usable) == len(hugepages.nodes):
        return {Spot(size, None): pages}
    each, rest = divmod(pages, max(1, len(usable)))
    return {Spot(size, number): each + (at < rest) for at, number in enumerate(usable)}


def now_and_held(hugepages: Pool | Unknown, numa_node: int | None) -> tuple[int | None, int]:
    """Return ``(pages now, pages that other processes keep)`` of a pool, or of one NUMA node.

    The pages now are 0 if the kernel has no such pool, and None if they cannot be read.
    """
    if isinstance(hugepages, Unknown):
        return (0 if hugepages.absent else None), 0
    if numa_node is None:
        return hugepages.total_pages, hugepages.held_pages
    share = hugepages.nodes.get(numa_node)
    if share is None:
        return None, 0
    # A reservation may be taken from any node, so each node must be able to bear it.
    return share.total_pages, share.total_pages - share.free_pages + hugepages.reserved_pages


def reserve_settings(
    targets: Mapping[Spot, Target], default_page_bytes: int | Unknown
) -> tuple[Setting, ...]:
    """Return the settings that set pools to ``targets``: by sysctl for a whole default pool."""
    settings: list[Setting] = []
    for spot, target in targets.items():
        name = f"hugepages-{spot.page_size_bytes // KIB}kB/nr_hugepages"
        how, path = Kind.SYSFS, f"{POOLS}/{name}"
        if spot.node is not None:
            path = f"{NODES}/node{spot.node}/hugepages/{name}"
        elif spot.page_size_bytes == default_page_bytes:
            how, path = Kind.SYSCTL, "vm.nr_hugepages"
        now = "" if target.now_pages is None else str(target.now_pages)
        settings.append(Setting(how, path, str(target.pages), now))
    return tuple(settings)


RESERVATION = "hugetlb.reservation"
# Which command says what fits, and the sentence about it.
FIT = "fit"
ASK_FIT = "mooncake-preflight fit, of the same launch, says what fits"


def grows_pool(setting: Setting) -> bool:
    """Return whether a setting takes pages from the host, now or at each boot."""
    kinds = (Kind.SYSCTL, Kind.BOOT_SYSCTL, Kind.SYSFS)
    return setting.kind in kinds and setting.name.endswith("nr_hugepages")


def room_bytes(
    spot: Spot, available_bytes: int | Unknown, node_free_bytes: Mapping[int, int]
) -> int | Unknown:
    """Return the memory that a pool can grow by.

    For a whole pool that is ``available_bytes``, page cache included; for a NUMA node its free
    memory.
    """
    if spot.node is None:
        return available_bytes
    free = node_free_bytes.get(spot.node)
    if free is None:
        return Unknown(f"{NODES}/node{spot.node}/meminfo: its MemFree cannot be read")
    return free


def why_refused(
    targets: Mapping[Spot, Target],
    available_bytes: int | Unknown,
    node_free_bytes: Mapping[int, int],
) -> str:
    """Return why pools cannot grow to ``targets`` now, "" if they can.

    Args:
        available_bytes: Of the host.
        node_free_bytes: Free memory by NUMA node.
    """
    for spot, target in targets.items():
        name = f"{format_page_size(spot.page_size_bytes)} pages{spot.where}"
        if target.now_pages is None:
            return f"{name}: how many there are cannot be read"
        missing_bytes = (target.pages - target.now_pages) * spot.page_size_bytes
        room = room_bytes(spot, available_bytes, node_free_bytes)
        if isinstance(room, Unknown):
            return f"{name}: what memory is free is not known ({room.reason})"
        if missing_bytes > room:
            return (
                f"{name}: {format_bytes(missing_bytes)} more are needed, {format_bytes(room)} "
                "can be had"
            )
    return ""
