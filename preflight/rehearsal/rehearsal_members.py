"""The processes that a rehearsal runs: their environment and devices, and what is pinned for them.

All of it comes from the launch's needs, as the checks have them.
"""

from __future__ import annotations

from checks.facts import Facts
from checks.launch_needs import LaunchNeeds, ProcessNeeds, Region
from checks.rdma_use import devices_in_use
from checks.registration import largest_region_bytes, load_of
from checks.units import round_up
from checks.unknown import Unknown
from checks.version_text import release_of
from preflight.launches.launch_processes import Kind
from preflight.mooncake.launch import Launch, Process
from preflight.mooncake.replay import REGULAR_PAGE_BYTES
from preflight.rehearsal.rehearsal_records import Member
from preflight.sizing.source_sizing import SourceSizing

_RUN = ("sglang", "store_service", "mooncake_client")
# What the replay calls it; no part of the store.
PD_METADATA = "PD metadata"


def members_of(
    launch: Launch, small: SourceSizing, needs: LaunchNeeds, facts: Facts | None
) -> list[Member]:
    """The launch's processes with what the source says of each."""
    arguments = [
        tuple(word.text for word in process.arguments)
        for process in small.inputs.processes
        if process.kind is Kind.CLIENT
    ]
    halves = _halves(small)
    found: list[Member] = []
    waiting = list(launch.processes)
    for need in needs.processes:
        if need.program not in _RUN or not waiting or waiting[0].name != need.name:
            continue
        process = waiting.pop(0)
        own = arguments.pop(0) if need.program == "mooncake_client" else ()
        split = next((found for origin, found in halves.items() if _is_rank(need, origin)), ())
        found.append(_member(need, process, own, split, facts, needs))
    assert not waiting, [process.name for process in waiting]
    if not any(member.program == "mooncake_client" for member in found):
        elsewhere = Unknown("the mooncake_client that pins it is not of this launch")
        found = [
            one._replace(pinned_bytes=elsewhere) if has_no_segment(one.process) else one
            for one in found
        ]
    return found


def has_no_segment(process: Process) -> bool:
    """Whether its segment, and its registrations, are another process's: a dummy client."""
    return any(client.dummy for client in process.clients)


def _is_rank(need: ProcessNeeds, origin: str) -> bool:
    return need.program == "sglang" and need.name.startswith(f"{origin} rank ")


def _member(
    need: ProcessNeeds,
    process: Process,
    arguments: tuple[str, ...],
    halves: tuple[bool, ...],
    facts: Facts | None,
    needs: LaunchNeeds,
) -> Member:
    named = () if need.rdma is None else need.rdma.devices
    nics = _nics(need, facts, needs)
    return Member(
        need.name,
        need.program,
        process,
        need.environment,
        "" if isinstance(named, Unknown) else ",".join(named),
        arguments,
        nics,
        _pinned(need, process, nics, facts, needs),
        _unaligned(need),
        halves,
    )


def _nics(need: ProcessNeeds, facts: Facts | None, needs: LaunchNeeds) -> tuple[str, ...] | Unknown:
    """The devices that its memory is registered with."""
    if need.rdma is None or facts is None:
        return ()
    return devices_in_use(facts.rdma, need, release_of(needs.mooncake_version)).names


def _pinned(
    need: ProcessNeeds,
    process: Process,
    names: tuple[str, ...] | Unknown,
    facts: Facts | None,
    needs: LaunchNeeds,
) -> int | Unknown:
    """What is pinned for ``need``: by its NICs, and by io_uring once more where that is used."""
    rings = 0
    if need.uses_uring:
        rings = sum(
            round_up(client.offload_buffer_bytes or 0, REGULAR_PAGE_BYTES)
            for client in process.clients
        )
    if isinstance(names, Unknown) or not names or facts is None:
        return names if isinstance(names, Unknown) else rings
    nics = [nic for nic in facts.rdma.present if nic.name in names]
    # What the GPU holds, and what else prefill and decode register, is not rehearsed.
    alone = need._replace(gpu_registered_bytes=0, regions=_store_regions(need, process))
    largest = largest_region_bytes(nics, need.environment)
    load = load_of(alone, largest, release_of(needs.mooncake_version))
    return load if isinstance(load, Unknown) else len(names) * load.pinned_bytes + rings


def _store_regions(need: ProcessNeeds, process: Process) -> tuple[Region, ...] | Unknown:
    """What the store registers. A rank without a segment hands over whole shared memories."""
    if isinstance(need.regions, Unknown):
        return need.regions
    regions = [region for region in need.regions if region.what != PD_METADATA]
    if has_no_segment(process):
        return tuple(
            region._replace(bytes=round_up(region.bytes, region.page_bytes)) for region in regions
        )
    return tuple(regions)


def _unaligned(need: ProcessNeeds) -> int:
    """Buffers of malloc and of aligned_alloc(64): none begins where a page does."""
    regions = () if isinstance(need.regions, Unknown) else need.regions
    return sum(
        region.page_bytes == REGULAR_PAGE_BYTES and region.what in ("local buffer", "hot cache")
        for region in regions
    )


def _halves(small: SourceSizing) -> dict[str, tuple[bool, ...]]:
    """Of each host pool of a server's ranks, by its origin, whether K and V are registered apart.

    SGLang registers them with TCP too, where it costs nothing and is no part of any need.
    """
    return {
        origin: tuple(pool.halves for pool in memory.pools for _ in pool.allocations_bytes)
        for origin, memory in small.inputs.memory
    }
