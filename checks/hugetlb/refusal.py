"""Whether pages can be taken from the rest of the host, and which settings take them."""

from __future__ import annotations

from collections.abc import Mapping

from checks.base.finding import Kind, Setting
from checks.base.pages import Spot
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.targets import Target
from checks.numa.nodes import NODES

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
    """Return the memory that a pool can grow out of: free, and page cache that gives way."""
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
    """Return why pools cannot grow to ``targets`` now, "" where they can."""
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
