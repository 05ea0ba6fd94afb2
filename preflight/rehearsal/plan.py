"""From a launch that was sized to what its rehearsal does, step by step, and what is predicted.

Pure: nothing is run here. The steps come in the order of the replay, which the prediction is of:
every process maps its host pools, then each in turn sets up its store and registers its pools.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.pages import MemoryKind, Spot
from checks.base.unknown import Unknown
from checks.hugetlb.fit import Stock
from checks.run.facts import Facts
from preflight.mooncake.allocations import Allocation, Outcome
from preflight.mooncake.replay import ProcessReplay, asked_for, taken_from
from preflight.programs.memory_records import Launch, MappedProcess, StoreClient
from preflight.rehearsal.members import (
    changed_by_scale,
    has_no_segment,
    members_of,
    refused_registration,
    scaled_environment,
    until_refused,
)
from preflight.rehearsal.records import Library, Member, RehearsalPlan, RehearsalStep
from preflight.sizing.launch_sizing import Admission, LaunchSizing, worst


def make_plan(
    written: LaunchSizing,
    small: LaunchSizing,
    needs: LaunchNeeds,
    facts: Facts | None,
    library: Library,
    scale: int,
) -> RehearsalPlan:
    """Plan ``written``, the launch at full size, as ``small``, which is run with its ``needs``.

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
    members = members_of(launch, small, needs, facts)
    plan = plan_members(members, launch, sizing.stock, library, scale)
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
) -> RehearsalPlan:
    """Return the steps of ``launch``, whose processes are ``members``, on pools of ``stock``."""
    order = list(range(len(members)))
    if any(has_no_segment(member.process) for member in members):
        order.sort(key=lambda index: members[index].program != "mooncake_client")
    ordered = tuple(members[at]._replace(number=number) for number, at in enumerate(order))
    launch = launch._replace(processes=tuple(launch.processes[index] for index in order))
    replayed = taken_from(launch, stock)
    steps = list(_steps(ordered, launch, replayed))
    # Nothing is predicted of those after the first that fails.
    ends = next((at for at, step in enumerate(steps, 1) if step.failure is not None), len(steps))
    steps[ends:] = [step._replace(taken=None) for step in steps[ends:]]
    return RehearsalPlan(
        library, scale, launch, ordered, tuple(steps), replayed, "", ("", ""), "", ()
    )


def _refused(written: LaunchSizing, scale: int) -> str:
    """Return why the launch does not start, whatever it can map: its arguments, SGLang's check.

    That check is of sizes, and a scaled launch has others.
    """
    found = worst(written.inputs.findings)
    if found is not None:
        return found.text
    for admission in written.admissions if scale == 1 else ():
        if isinstance(admission, Admission) and admission.refused:
            return f"{admission.origin}: ValueError: {admission.refused}"
    return ""


def _steps(
    members: Sequence[Member], launch: Launch, taken: Sequence[ProcessReplay] | None
) -> Iterator[RehearsalStep]:
    """Yield the steps: host pools first, then each process's store clients and registrations.

    taken: what the launch is predicted to map here; None if a pool cannot be read.
    """
    every = [_grouped(one, launch) for one in asked_for(launch)]
    here = [_Groups([], [])] * len(every)
    if taken is not None:
        here = [_grouped(one, launch, asked.ends) for one, asked in zip(taken, every, strict=True)]
    for index, member in enumerate(members):
        count = len(member.process.host_pools_bytes)
        for number, size in enumerate(member.process.host_pools_bytes):
            which = f" {number + 1} of {count}" if count > 1 else ""
            own = member.process.own_allocator
            order = {"do": "pool", "bytes": size}
            if own is not None:
                order = {"do": "own_pool", "bytes": size, "page_bytes": own.hugepage_bytes or 0}
            what, maps = f"{MemoryKind.HOST_POOL}{which}", tuple(every[index].pools[number])
            taken_here = here[index].pools[number : number + 1]
            takes = tuple(taken_here[0]) if taken_here else None
            yield RehearsalStep(member, "pool", what, order, maps, takes)
    for index, member in enumerate(members):
        clients = member.process.clients
        for number, client in enumerate(clients):
            maps = tuple(every[index].clients[number])
            foreseen = chain(*here[index].clients[number : number + 1])
            mapped, why = until_refused(foreseen, member.forking)
            kind = "dummy" if client.dummy else "setup"
            if member.program == "mooncake_client":
                kind = "program"
            which = f" {number + 1} of {len(clients)}" if len(clients) > 1 else ""
            kinds = ", ".join(dict.fromkeys(one.what for one in maps)) or "nothing"
            what, order = f"store client{which} ({kinds})", _client_order(member, client, kind)
            takes = mapped or (None if maps else ())
            yield RehearsalStep(member, kind, what, order, maps, takes, why)
        if clients:
            whole_pools = launch.release.registers_whole_pool
            yield from _registrations(member, every[index].pools, whole_pools)


class _Groups(NamedTuple):
    """The allocations of each host pool, and those of each store client.

    ends: how many allocations the clients have made by the end of each.
    """

    pools: list[list[Allocation]]
    clients: list[list[Allocation]]
    ends: tuple[int, ...] = ()


def _grouped(mapped: ProcessReplay, launch: Launch, ends: tuple[int, ...] = ()) -> _Groups:
    """Return the allocations by host pool and by store client.

    ends: of the same process where pages never run short, which makes as many. A host pool that
    SGLang's own allocator did not find huge pages for is one more allocation.
    """
    pools: list[list[Allocation]] = []
    rest: list[Allocation] = []
    for allocation in mapped.allocations:
        if allocation.what != MemoryKind.HOST_POOL:
            rest.append(allocation)
        elif pools and pools[-1][-1].outcome is Outcome.FELL_BACK:
            pools[-1].append(allocation)
        else:
            pools.append([allocation])
    ends = ends or _ends(mapped.process, launch, len(rest))
    begins = (0, *ends)
    return _Groups(pools, [rest[begin:end] for begin, end in zip(begins, ends, strict=False)], ends)


def _ends(process: MappedProcess, launch: Launch, last: int) -> tuple[int, ...]:
    """Return how many allocations the store clients have made by the end of each client.

    last: the number for the last client.
    """
    ends = []
    for count in range(1, len(process.clients)):
        first = process._replace(host_pools_bytes=(), clients=process.clients[:count])
        (alone,) = asked_for(launch._replace(processes=(first,)))
        ends.append(len(alone.allocations))
    return (*ends, last)


def _client_order(member: Member, client: StoreClient, kind: str) -> dict[str, Any]:
    """Return the order for a client; the rehearsal's services are added when they are up."""
    if kind == "program":
        return {"do": "program"}
    if kind == "dummy":
        pools, size = sum(member.process.host_pools_bytes), client.local_buffer_bytes
        return {"do": "dummy", "pool_bytes": pools, "local_buffer_bytes": size}
    return {
        "do": "setup",
        "metadata": "P2PHANDSHAKE",
        "segment_bytes": client.segment_bytes,
        "local_buffer_bytes": client.local_buffer_bytes,
        "protocol": client.protocol.value,
        "devices": member.devices,
        "more": {} if client.offload_buffer_bytes is None else {"enable_ssd_offload": True},
    }


def _registrations(
    member: Member, pools: Sequence[Sequence[Allocation]], whole_pools: bool
) -> Iterator[RehearsalStep]:
    """Yield what SGLang's ``register_mem_pool_host`` registers: each tensor, or its K and V."""
    for number, size in enumerate(member.process.host_pools_bytes):
        half = size // 2
        halves = member.process.split_pools
        split = number < len(halves) and halves[number]
        parts = ((0, half), (half, size - half)) if split else ((0, size),)
        for part, (offset, length) in enumerate(parts):
            order = {"do": "register", "pool": number, "offset": offset, "bytes": length}
            pool = pools[number][-1]
            taken, why = refused_registration(pool, part, length, member.forking, whole_pools)
            what = f"registering {MemoryKind.HOST_POOL}"
            yield RehearsalStep(member, "register", what, order, (), taken, why)


def environment_of(member: Member, scale: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ``member``: the launch's variables, with sizes scaled if needed.

    base: variables that are added if the launch does not set them, such as PATH.
    """
    more = {} if scale == 1 else scaled_environment(member.process)
    return {**base, **member.environment, **more}


_STOOD_IN = ("master", "metadata-http", "metadata-etcd", "metadata-redis")


def _notes(needs: LaunchNeeds, two_bounds: bool) -> Iterator[str]:
    """Yield what is not rehearsed, and what stands in for the launch's own services."""
    if two_bounds:
        yield "the L2 pool is known between two bounds: the upper one is rehearsed"
    if any(process.gpu_registered_bytes != 0 for process in needs.processes):
        yield (
            "prefill and decode register the GPU's KV cache and their own buffers: that is not "
            "rehearsed, nor is any GPU memory"
        )
    for service in needs.services:
        if service.own or service.kind not in _STOOD_IN:
            continue
        host = service.host.reason if isinstance(service.host, Unknown) else service.host
        what = "master" if service.kind == "master" else "metadata server"
        yield f"a {what} of its own on 127.0.0.1 stands in for that at {host}"
    if any(service.kind.startswith("metadata-") and service.own for service in needs.services):
        yield "P2PHANDSHAKE stands in for the launch's metadata server: memory is the same"
