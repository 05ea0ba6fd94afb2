"""SGLang's own check of host memory, held against every server of a source."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from checks.base.needs import MemoryKind
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.hugetlb.fit import Fit
from checks.memory.cgroup import memory_headroom
from checks.releases.sglang import SglangRelease
from preflight.mooncake.allocations import OnShortage
from preflight.processes.processes import SglangServer
from preflight.sglang.admission_gate import (
    FeasiblePages,
    GateAnswer,
    HostMemory,
    feasible_hugepages,
    gate,
    gate_booked,
    gate_on_hugepages,
)
from preflight.sglang.pools import ServerMemory
from preflight.sglang.ranks import server_ranks
from preflight.sizing.page_usages import ON_HUGE_PAGES
from preflight.sizing.sizing import Sizing


class Admission(NamedTuple):
    """One server's answer. refused: the message that it would print, for certain. late: what the
    slowest rank would print, should the others have taken their pools by then."""

    origin: str
    refused: str | None
    late: str | None
    pages: FeasiblePages | None


def admit(
    number: int,
    server: SglangServer,
    memory: ServerMemory,
    release: SglangRelease,
    sizing: Sizing,
    root: Root,
) -> Admission | Unknown:
    """Tell whether SGLang admits the pools of ``server``, process ``number``, on this host.

    Unknown where it cannot be told.
    A server whose L2 is on huge pages is asked for regular memory all the same: the gate does not
    know what backs its pools.
    """
    origin, ranks = str(server.command.origin), server_ranks(server)
    if isinstance(ranks, Unknown):
        return ranks
    if not memory.pools:
        return Unknown(f"the pools are not known one by one: {memory.why}")
    available = sizing.host.memory_bytes("MemAvailable")
    if isinstance(available, Unknown):
        return available
    headroom = memory_headroom(root)
    left = headroom if isinstance(headroom, Unknown | None) else headroom.left_bytes
    host = HostMemory(available, left)
    if memory.budget_bytes is not None:
        # Sized to fit a budget, and booked against it: no rank reads the memory anew.
        booked = gate_booked(memory.pools, memory.budget_bytes, release)
        return Admission(origin, _message(booked), None, None)
    backed = _backed(number, sizing)
    # On huge pages a pool takes nothing more from what is available: the fewest are refused.
    first_gate = gate if backed is _Backed.REGULAR else gate_on_hugepages
    first = first_gate(memory.pools, host, ranks.sharing, release)
    last = first
    if backed is not _Backed.HUGE:
        others = (ranks.here - 1) * sum(pool.bytes for pool in memory.pools)
        last = gate(memory.pools, host, ranks.sharing, release, others)
    pages = None
    if backed is not _Backed.REGULAR:
        pages = _feasible(memory, ranks.here, ranks.sharing, host, release, sizing)
    return Admission(origin, _message(first), _message(last), pages)


def _message(answers: tuple[GateAnswer, ...]) -> str | None:
    return next((answer.message for answer in answers if answer.message), None)


class _Backed(Enum):
    """What a server's pools are on, as the launch is replayed against this host."""

    REGULAR = "regular pages"
    HUGE = "huge pages"
    EITHER = "huge pages while there are any"


def _backed(number: int, sizing: Sizing) -> _Backed:
    asked = [
        allocation
        for process in sizing.asked
        if process.process.id.command == number
        for allocation in process.allocations
        if allocation.what is MemoryKind.HOST_POOL
    ]
    if not any(allocation.backing in ON_HUGE_PAGES for allocation in asked):
        return _Backed.REGULAR
    optional = any(allocation.on_shortage is OnShortage.FALLS_BACK for allocation in asked)
    if optional and sizing.verdict.fit is not Fit.FITS:
        return _Backed.EITHER
    return _Backed.HUGE


def _feasible(
    memory: ServerMemory,
    ranks: int,
    sharing: int,
    host: HostMemory,
    release: SglangRelease,
    sizing: Sizing,
) -> FeasiblePages | None:
    """Return the pool sizes for which both the pages suffice and the gate admits."""
    from preflight.sizing.advice import held_pages

    size = _page_bytes(sizing)
    pool = sizing.host.hugetlb.pool(size)
    if isinstance(pool, Unknown):
        return None
    return feasible_hugepages(
        [memory.pools] * ranks,
        host,
        sharing,
        release,
        page_size_bytes=size,
        current_pages=pool.total_pages,
        least_pages=held_pages(sizing, size),
    )


def _page_bytes(sizing: Sizing) -> int:
    """Return the huge pages that L2 is on."""
    sizes = [
        allocation.page_size_bytes
        for process in sizing.asked
        for allocation in process.allocations
        if allocation.what is MemoryKind.HOST_POOL and allocation.backing in ON_HUGE_PAGES
    ]
    return sizes[0] if sizes else sizing.inputs.settings.hugepage_bytes
