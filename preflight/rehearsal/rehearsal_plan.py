"""From a launch that was sized to what its rehearsal does, step by step, and what is predicted.

Pure: nothing is run here. The steps come in the order of the replay, which the prediction is of:
every process maps its host pools, then each in turn sets up its store and registers its pools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checks.facts import Facts
from checks.hugetlb_fit import Spot, Stock
from checks.launch_needs import LaunchNeeds
from checks.unknown import Unknown
from preflight.mooncake.allocations import Allocation, Outcome, StockedPools
from preflight.mooncake.launch import Launch
from preflight.mooncake.replay import HOST_POOL, ProcessReplay, replay
from preflight.rehearsal.rehearsal_library import Library
from preflight.rehearsal.rehearsal_members import has_no_segment, members_of
from preflight.rehearsal.rehearsal_records import Member, Plan, Step
from preflight.rehearsal.scaled_launch import changed_by_scale, scaled_environment
from preflight.sizing.needs import asked_for
from preflight.sizing.source_gate import Admission
from preflight.sizing.source_inputs import worst
from preflight.sizing.source_sizing import SourceSizing

# Where the rehearsal's own services are, filled in when they are up.
MASTER, CLIENT, HOST, OFFLOAD = "<master>", "<client>", "<host>", "<offload folder>"


def make_plan(
    written: SourceSizing,
    small: SourceSizing,
    needs: LaunchNeeds,
    facts: Facts | None,
    library: Library,
    scale: int,
) -> Plan:
    """``written``: the launch at full size; ``small``: as it is run, with its ``needs``.

    facts: the host's RDMA devices; None where no process uses any.
    """
    sizing = small.shown
    assert sizing is not None
    launch = sizing.inputs.launch
    least, most = written.inputs.least, written.inputs.most
    known = not isinstance(least, Unknown) and not isinstance(most, Unknown)
    notes = list(_notes(needs, not known or least != most))
    full = written.shown
    if full is not None and scale > 1:
        changed = changed_by_scale(full.inputs.launch, launch)
        notes += [f"--scale {scale} changes the launch: {text}" for text in changed]
    plan = plan_members(
        members_of(launch, small, needs, facts), launch, sizing.stock, library, scale
    )
    return plan._replace(
        may_fail=(sizing.reason or "pages are short") if sizing.status == "fails" else "",
        full_size=(written.status, written.reason),
        refused=_refused(written, scale),
        notes=tuple(dict.fromkeys(notes)),
    )


def plan_members(
    members: Sequence[Member],
    launch: Launch,
    stock: Mapping[Spot, Stock | Unknown],
    library: Library,
    scale: int = 1,
) -> Plan:
    """The steps of ``launch``, whose processes are those of ``members``, on pools of ``stock``."""
    order = _order(members)
    ordered = tuple(members[index] for index in order)
    launch = launch._replace(processes=tuple(launch.processes[index] for index in order))
    replayed = _replayed(launch, stock)
    steps = tuple(_steps(ordered, asked_for(launch), replayed))
    return Plan(library, scale, launch, ordered, steps, replayed, "", ("", ""), "", ())


def _refused(written: SourceSizing, scale: int) -> str:
    """Why the launch does not start, whatever Mooncake can map: its arguments, SGLang's own check.

    That check is of sizes, and a scaled launch has others.
    """
    found = worst(written.inputs.findings)
    if found is not None:
        return found.text
    for admission in written.admissions if scale == 1 else ():
        if isinstance(admission, Admission) and admission.refused:
            return f"{admission.origin}: ValueError: {admission.refused}"
    return ""


def _replayed(
    launch: Launch, stock: Mapping[Spot, Stock | Unknown]
) -> tuple[ProcessReplay, ...] | None:
    pages: dict[Spot, int] = {}
    for spot, have in stock.items():
        if isinstance(have, Unknown):
            return None
        pages[spot] = have.least_pages
    return replay(launch, StockedPools(pages))


def _order(members: Sequence[Member]) -> list[int]:
    """A rank without a segment of its own needs the process that has it to be up first."""
    indexes = list(range(len(members)))
    if any(has_no_segment(member.process) for member in members):
        indexes.sort(key=lambda index: members[index].program != "mooncake_client")
    return indexes


def _steps(
    members: Sequence[Member],
    asked: Sequence[ProcessReplay],
    taken: Sequence[ProcessReplay] | None,
) -> Iterator[Step]:
    every = [_grouped(one) for one in asked]
    here = [_grouped(one) for one in taken] if taken is not None else [([], [])] * len(every)
    for index, member in enumerate(members):
        count = len(member.process.host_pools_bytes)
        for number, size in enumerate(member.process.host_pools_bytes):
            which = f" {number + 1} of {count}" if count > 1 else ""
            yield Step(
                index,
                "pool",
                f"{HOST_POOL}{which}",
                _pool_order(member, size),
                tuple(every[index][0][number]),
                _nth(here[index][0], number),
            )
    for index, member in enumerate(members):
        for client in member.process.clients:
            maps = tuple(every[index][1])
            kind = "dummy" if client.dummy else "setup"
            if member.program == "mooncake_client":
                kind = "program"
            what = ", ".join(dict.fromkeys(one.what for one in maps)) or "nothing"
            yield Step(
                index,
                kind,
                f"store client ({what})",
                _client_order(member, kind),
                maps,
                tuple(here[index][1]) or (None if maps else ()),
            )
        if member.process.clients:
            yield from _registrations(index, member)


def _nth(groups: list[list[Allocation]], number: int) -> tuple[Allocation, ...] | None:
    return tuple(groups[number]) if number < len(groups) else None


def _grouped(mapped: ProcessReplay) -> tuple[list[list[Allocation]], list[Allocation]]:
    """The allocations of each host pool, and those of the store client.

    A host pool that SGLang's own allocator did not find huge pages for is one more allocation.
    """
    pools: list[list[Allocation]] = []
    rest: list[Allocation] = []
    for allocation in mapped.allocations:
        if allocation.what != HOST_POOL:
            rest.append(allocation)
        elif pools and pools[-1][-1].outcome is Outcome.FELL_BACK:
            pools[-1].append(allocation)
        else:
            pools.append([allocation])
    return pools, rest


def _pool_order(member: Member, size: int) -> dict[str, Any]:
    own = member.process.own_allocator
    if own is None:
        return {"do": "pool", "bytes": size}
    return {"do": "own_pool", "bytes": size, "page_bytes": own.hugepage_bytes or 0}


def _client_order(member: Member, kind: str) -> dict[str, Any]:
    client = member.process.clients[0]
    if kind == "program":
        return {"do": "program"}
    if kind == "dummy":
        pools = sum(member.process.host_pools_bytes)
        size = client.local_buffer_bytes
        return {"do": "dummy", "pool_bytes": pools, "local_buffer_bytes": size, "client": CLIENT}
    more: dict[str, Any] = {}
    if client.offload_buffer_bytes is not None:
        more = {"enable_ssd_offload": True, "ssd_offload_path": OFFLOAD}
    return {
        "do": "setup",
        "host": HOST,
        "metadata": "P2PHANDSHAKE",
        "segment_bytes": client.segment_bytes,
        "local_buffer_bytes": client.local_buffer_bytes,
        "protocol": client.protocol.value,
        "devices": member.devices,
        "master": MASTER,
        "more": more,
    }


def _registrations(index: int, member: Member) -> Iterator[Step]:
    """As SGLang's ``register_mem_pool_host``: each tensor, or its K and V."""
    for number, size in enumerate(member.process.host_pools_bytes):
        half = size // 2
        halves = member.process.split_pools
        split = number < len(halves) and halves[number]
        parts = ((0, half), (half, size - half)) if split else ((0, size),)
        for offset, length in parts:
            order = {"do": "register", "pool": number, "offset": offset, "bytes": length}
            yield Step(index, "register", f"registering {HOST_POOL}", order)


def environment_of(member: Member, scale: int, base: Mapping[str, str]) -> dict[str, str]:
    """What ``member`` runs with: the launch's own variables, with the sizes of a scaled one.

    base: what is added where the launch does not say it, as where programs are found.
    """
    more = {} if scale == 1 else scaled_environment(member.process)
    return {**base, **member.environment, **more}


def _stand_in(members: Sequence[Member]) -> list[str]:
    ranks = any(has_no_segment(member.process) for member in members)
    if not ranks or any(member.program == "mooncake_client" for member in members):
        return []
    return [
        "a mooncake_client without a segment stands in for the one that the ranks ask: rehearse "
        "that one with a launch of its own"
    ]


def _notes(needs: LaunchNeeds, two_bounds: bool) -> Iterator[str]:
    if two_bounds:
        yield "the L2 pool is known between two bounds: the upper one is rehearsed"
    if any(process.gpu_registered_bytes != 0 for process in needs.processes):
        yield (
            "prefill and decode register the GPU's KV cache and their own buffers: that is not "
            "rehearsed, nor is any GPU memory"
        )
    elsewhere = [
        service
        for service in needs.services
        if service.kind in ("master", "metadata-http", "metadata-etcd", "metadata-redis")
        and not service.own
    ]
    for service in elsewhere:
        host = service.host.reason if isinstance(service.host, Unknown) else service.host
        what = "master" if service.kind == "master" else "metadata server"
        yield f"a {what} of its own on 127.0.0.1 stands in for that at {host}"
    if any(service.kind.startswith("metadata-") and service.own for service in needs.services):
        yield "P2PHANDSHAKE stands in for the launch's metadata server: memory is the same"
