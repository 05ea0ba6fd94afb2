"""SGLang's own check of host memory, held against every server of a source."""

from __future__ import annotations

from typing import NamedTuple

from checks.cgroup_memory import memory_headroom
from checks.root import Root
from checks.unknown import Unknown
from preflight.admission_gate import (
    FeasiblePages,
    HostMemory,
    feasible_hugepages,
    gate,
    gate_on_hugepages,
    ranks_per_host,
)
from preflight.launch_processes import SglangServer
from preflight.server_launch import ServerMemory, server_ranks
from preflight.sglang_versions import SglangRelease
from preflight.sizing import Sizing


class Admission(NamedTuple):
    """One server's answer. refused: the message that it would print, for certain. late: what the
    slowest rank would print, should the others have taken their pools by then."""

    origin: str
    refused: str | None
    late: str | None
    pages: FeasiblePages | None


def admit(
    server: SglangServer,
    memory: ServerMemory,
    release: SglangRelease,
    sizing: Sizing,
    root: Root,
) -> Admission | Unknown:
    """Whether SGLang admits the pools of ``server`` on this host; Unknown where it cannot be told.

    A server whose L2 is on huge pages is asked for regular memory all the same: the gate does not
    know what backs its pools.
    """
    ranks = server_ranks(server)
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
    nodes = server.number("nnodes")
    sharing = ranks_per_host(ranks.tp, ranks.pp, 1 if isinstance(nodes, Unknown) else nodes)
    on_hugepages = _on_hugepages(server, sizing)
    first = (gate_on_hugepages if on_hugepages else gate)(memory.pools, host, sharing, release)
    others = 0 if on_hugepages else (ranks.here - 1) * sum(pool.bytes for pool in memory.pools)
    last = first if on_hugepages else gate(memory.pools, host, sharing, release, others)
    pages = _feasible(memory, ranks.here, sharing, host, release, sizing) if on_hugepages else None
    return Admission(
        str(server.command.origin),
        next((answer.message for answer in first if answer.message), None),
        next((answer.message for answer in last if answer.message), None),
        pages,
    )


def _on_hugepages(server: SglangServer, sizing: Sizing) -> bool:
    hugepages = "MC_STORE_USE_HUGEPAGE" in server.environment
    return hugepages and server.store is not None and sizing.inputs.launch.release.hugepages


def _feasible(
    memory: ServerMemory,
    ranks: int,
    sharing: int,
    host: HostMemory,
    release: SglangRelease,
    sizing: Sizing,
) -> FeasiblePages | None:
    """The pool sizes for which both the pages suffice and the gate admits."""
    from preflight.advice import held_pages

    size = sizing.inputs.settings.hugepage_bytes
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
