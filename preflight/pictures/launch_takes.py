"""What a launch takes of the host's memory, mapping by mapping, from the replay of it."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.needs import MemoryKind
from checks.base.unknown import Unknown
from preflight.inputs.host_source import Sized
from preflight.mooncake.allocations import Allocation, Backing
from preflight.mooncake.replay import ProcessReplay
from preflight.sizing.needs import ON_HUGE_PAGES

# What the replay calls them -> the owner that a picture shows; anything else is "other".
OWNERS = {
    MemoryKind.HOST_POOL: "l2",
    MemoryKind.SEGMENT: "segment",
    MemoryKind.ARENA: "arena",
    MemoryKind.LOCAL_BUFFER: "buffer",
}


class Take(NamedTuple):
    """Memory that a process takes and keeps.

    owner: l2, segment, arena, buffer or other. page_bytes: of the HugeTLB pool that it comes from,
    None for regular memory. node: the NUMA node that it is bound to, None where to none.
    """

    owner: str
    bytes: int
    page_bytes: int | None
    node: int | None


def launch_takes(sized: Sized) -> tuple[Take, ...] | Unknown:
    """Every mapping of the launch as asked for; of an L2 between two bounds, the upper.

    Unknown where a check would say so too: the size of some process is not known.
    """
    for process in sized.needs.processes:
        for size in (process.regular_bytes, process.hugetlb_bytes):
            if isinstance(size, Unknown):
                return size
    shown = sized.sizing.shown
    if shown is None:
        least = sized.sizing.inputs.least
        return least if isinstance(least, Unknown) else Unknown("what the launch maps is not known")
    return tuple(take for process in shown.asked for take in _takes(process))


def _takes(process: ProcessReplay) -> list[Take]:
    found = []
    for mapped in (*process.allocations, *process.heap):
        size = mapped.pages * mapped.page_size_bytes
        if size and (mapped.backing in ON_HUGE_PAGES or mapped.backing is Backing.REGULAR):
            found.append(_take(mapped, size, process.process.node))
    return found


def _take(mapped: Allocation, size: int, bound: int | None) -> Take:
    page = mapped.page_size_bytes if mapped.backing in ON_HUGE_PAGES else None
    # A process that is bound takes its regular memory there too, though no mapping says so.
    node = bound if mapped.node is None else mapped.node
    return Take(OWNERS.get(mapped.what, "other"), size, page, node)
