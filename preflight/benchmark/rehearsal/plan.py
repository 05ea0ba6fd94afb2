"""Plans a rehearsal from a sized launch: the processes, their steps, and what is predicted.

Pure: nothing is run here. The steps come in the order of the replay, which the prediction is of:
every process maps its host pools, then each in turn sets up its store and registers its pools.
Environment, devices, pinned bytes and refused registrations come from the needs of the launch, as
in the checks. What stays mapped after a refusal was measured on soft-RoCE with rdma-core 44: setup
returns -600, and its mappings so far stay until the process ends; but a refused hot cache is given
back, and setup goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.pages import MemoryKind, Region, Spot
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Stock
from checks.memlock.demand import RING_EDGES_BYTES, Demand, demand
from checks.rdma.facts import Nic
from checks.rdma.fork import DROPPED, VARIABLE, Forking, bad_end, calls_madvise
from checks.rdma.registration import largest_region_bytes
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import release_of
from checks.run_checks.facts import Facts
from preflight.benchmark.rehearsal.records import Library, Member, RehearsalPlan, RehearsalStep
from preflight.engines.mooncake.allocations import (
    REGULAR_PAGE_BYTES,
    Allocation,
    Backing,
    EndlessPools,
    Outcome,
    join_shares,
    mappings,
    regions_of,
)
from preflight.engines.mooncake.replay import (
    SLAB_BYTES,
    ProcessReplay,
    replay,
    replay_endless,
    replay_stock,
)
from preflight.engines.programs.memory_records import HotCache, Launch, MappedProcess, StoreClient
from preflight.launch_problems.rules.launch_rules import first_failure, with_problems
from preflight.needs.launch_sizing import Admission, LaunchSizing
from preflight.processes.processes import ProcessKind

_RUN = ("sglang", "store_service", "mooncake_client", "vllm", "lmcache")


def members_of(
    launch: Launch, small: LaunchSizing, needs: LaunchNeeds, facts: Facts | None
) -> list[Member]:
    """Return the launch's processes as members of a rehearsal, in the order of ``launch``.

    Args:
        small: The sizing of the launch that is run.
        facts: Of the host; None without RDMA. If no mooncake_client is rehearsed, the pinned memory
            of a dummy client is Unknown.
    """
    clients = (each for each in small.inputs.processes if each.kind is ProcessKind.CLIENT)
    arguments = {each.number: tuple(word.text for word in each.arguments) for each in clients}
    needed = {need.id: need for need in needs.processes if need.program in _RUN}
    members = [
        member_of(needed[mapped.id], mapped, arguments.get(mapped.id.command, ()), facts, needs)
        for mapped in launch.processes
    ]
    if any(member.program == "mooncake_client" for member in members):
        return members
    elsewhere = Unknown("the mooncake_client that pins it is not of this launch")
    return [
        member._replace(pinned_bytes=elsewhere) if has_no_segment(member.process) else member
        for member in members
    ]


def has_no_segment(process: MappedProcess) -> bool:
    """Tell whether a process is a dummy client: it uses the segment of a mooncake_client."""
    return any(client.dummy for client in process.clients)


def member_of(
    need: ProcessNeeds,
    process: MappedProcess,
    arguments: tuple[str, ...],
    facts: Facts | None,
    needs: LaunchNeeds,
) -> Member:
    """Return a process as a member: with its RDMA devices, and the memory that it is predicted to
    pin.

    Args:
        need: Of ``process``.
        arguments: A mooncake_client's flags, () for another program.
        facts: Of the host; None without RDMA.
        needs: Of the launch.
    """
    named = () if need.rdma is None else need.rdma.devices
    release = release_of(needs.mooncake_version)
    names: tuple[str, ...] | Unknown = ()
    opened: list[Nic] = []
    if need.rdma is not None and facts is not None:
        names = devices_in_use(facts.rdma, need, release).names
        known_names = () if isinstance(names, Unknown) else names
        opened = [nic for nic in facts.rdma.present if nic.name in known_names]
    largest = largest_region_bytes(opened, need.environment)
    forking = None
    if opened and facts is not None and not has_no_segment(process):
        asks = calls_madvise(facts.rdma, need.environment) is True
        forking = Forking(facts.rdma.cpus, largest, release) if asks else None
    # What the GPU holds, and what else prefill and decode register, is not rehearsed.
    registered = names if isinstance(names, Unknown) else need.regions
    if isinstance(registered, Unknown):
        asked: Demand | Unknown = registered
    else:
        regions = tuple(
            region
            for region in registered
            if region.what != MemoryKind.PD_METADATA
            and not (region.what == DROPPED and refusal(region, forking))
        )
        alone = need._replace(gpu_registered_bytes=0, regions=regions)
        asked = demand(alone, len(opened), REGULAR_PAGE_BYTES, largest, release)
    devices = "" if isinstance(named, Unknown) else ",".join(named)
    pinned = asked if isinstance(asked, Unknown) else asked.bytes
    more = RING_EDGES_BYTES if need.ring_bytes else 0
    member = Member(need.name, need.program, process, need.environment, devices, arguments, names)
    return member._replace(pinned_bytes=pinned, more_bytes=more, forking=forking)


_CODE = "-600"


def refusal(region: Region, forking: Forking | None) -> str:
    """Return why libibverbs refuses to register ``region``; "" if it registers the region, or if
    that is not known.

    Args:
        forking: None if libibverbs does not ask for whole huge pages.
    """
    end = "" if forking is None else bad_end(region, forking)
    if not isinstance(end, str) or not end:
        return ""
    return f"{end}, which libibverbs refuses (set {VARIABLE}=1)"


def until_refused(
    allocations: Iterable[Allocation], forking: Forking | None
) -> tuple[tuple[Allocation, ...], str]:
    """Return the allocations of a store client up to the first refused registration, and the
    reason.

    The allocation that is refused is the last and FAILED; the reason is "" if none is refused. A
    refused hot cache is given back instead, and the client goes on.
    """
    done: list[Allocation] = []
    for shares in mappings(allocations):
        mapped = join_shares(shares)
        why = next(filter(None, (refusal(part, forking) for part in regions_of(mapped))), "")
        if not why or mapped.outcome is not Outcome.TAKEN:
            done += shares
        elif mapped.what == DROPPED:
            error = f"it is given back: {why}"
            done.append(_without_pages(mapped)._replace(outcome=Outcome.FELL_BACK, error=error))
        else:
            error = f"setup returns {_CODE}: {why}"
            done += shares[:-1]
            done.append(shares[-1]._replace(outcome=Outcome.FAILED, error=error))
            return tuple(done), why
    return tuple(done), ""


def refused_registration(
    host_pool: Allocation, part: int, size_bytes: int, forking: Forking | None, whole_pools: bool
) -> tuple[tuple[Allocation, ...], str]:
    """Predict whether Mooncake refuses to register a mapped host pool: its failure, and the reason.

    Returns ((), "") if it can be registered.

    Args:
        part: 0, or 1 for the second half (V) of a pool that is registered in two.
        whole_pools: Mooncake registers the whole pool when it gets a half.
    """
    parts = list(regions_of(host_pool))
    why = refusal(parts[part], forking) if part < len(parts) else ""
    if part and whole_pools and host_pool.backing is Backing.MEMFD_HUGETLB:
        why = "Mooncake registered the whole pool for K, and refuses V, which lies in it"
    if not why:
        return (), ""
    error = f"register_buffer of {size_bytes} bytes returns {_CODE}"
    return (_without_pages(host_pool)._replace(outcome=Outcome.FAILED, error=error),), why


def _without_pages(mapped: Allocation) -> Allocation:
    return mapped._replace(backing=Backing.NONE, pages=0)


def scaled_bytes(size_bytes: int, scale: int, page_bytes: int) -> int:
    """Return ``size_bytes`` with the number of whole pages divided by ``scale``, rounded up.

    Bytes beyond the last whole page are kept.
    """
    whole, beyond = divmod(size_bytes, page_bytes)
    return -(-whole // scale) * page_bytes + beyond


def scaled_launch(launch: Launch, scale: int) -> Launch:
    """Return the launch with the same processes, each with 1/``scale`` of the memory."""
    if scale == 1:
        return launch
    processes = tuple(_process(process, launch, scale) for process in launch.processes)
    return launch._replace(processes=processes)


def changed_by_scale(launch: Launch, small: Launch) -> list[str]:
    """Return a sentence for each mapping that gets another kind of memory in the smaller launch."""
    changed: dict[str, None] = {}
    both = zip(replay(launch, EndlessPools()), replay(small, EndlessPools()), strict=True)
    for large, little in both:
        for old, other in zip(large.allocations, little.allocations, strict=False):
            if (old.what, old.backing) != (other.what, other.backing):
                sizes = f"{old.backing.value} at full size, {other.backing.value} when scaled"
                changed[f"{large.process.name}, {old.what}: {sizes}"] = None
    return list(changed)


def _process(process: MappedProcess, launch: Launch, scale: int) -> MappedProcess:
    """Return the process with pools, clients, arena, hot cache and metadata scaled down."""
    settings, allocator = process.settings, process.own_allocator
    huge = settings.hugepages and launch.release.hugepages
    page = settings.hugepage_bytes if huge else REGULAR_PAGE_BYTES
    pool_page = page if allocator is None else allocator.hugepage_bytes or REGULAR_PAGE_BYTES
    cache = settings.hot_cache
    arena = settings.arena_bytes
    return process._replace(
        settings=settings._replace(
            arena_bytes=None if arena is None else scaled_bytes(arena, scale, page),
            hot_cache=None if cache is None else _hot_cache(cache, scale),
        ),
        host_pools_bytes=tuple(
            scaled_bytes(size, scale, pool_page) for size in process.host_pools_bytes
        ),
        clients=tuple(_client(client, scale, page, huge) for client in process.clients),
        metadata_bytes=scaled_bytes(process.metadata_bytes, scale, REGULAR_PAGE_BYTES),
    )


def _client(client: StoreClient, scale: int, page_bytes: int, huge: bool) -> StoreClient:
    """Return the store client scaled down; on regular pages, a segment keeps at least a slab."""
    segment = scaled_bytes(client.segment_bytes, scale, page_bytes)
    if not huge and client.segment_bytes >= SLAB_BYTES:
        segment = max(segment, SLAB_BYTES)  # a smaller one is refused
    offload = client.offload_buffer_bytes
    return client._replace(
        segment_bytes=segment,
        local_buffer_bytes=scaled_bytes(client.local_buffer_bytes, scale, page_bytes),
        offload_buffer_bytes=offload and scaled_bytes(offload, scale, REGULAR_PAGE_BYTES),
    )


def _hot_cache(cache: HotCache, scale: int) -> HotCache:
    """Return a cache with as many blocks as before, each smaller."""
    blocks = cache.bytes // cache.block_bytes if cache.block_bytes else 0
    block = max(1, scaled_bytes(cache.block_bytes, scale, REGULAR_PAGE_BYTES))
    return cache._replace(bytes=blocks * block, block_bytes=block)


def scaled_environment(process: MappedProcess) -> dict[str, str]:
    """Return the environment variables that give Mooncake the sizes of a scaled process."""
    variables: dict[str, str] = {}
    settings = process.settings
    if settings.arena_bytes is not None:
        variables["MC_MMAP_ARENA_POOL_SIZE"] = str(settings.arena_bytes)
    cache = settings.hot_cache
    if cache is not None and cache.bytes:
        variables["MC_STORE_LOCAL_HOT_CACHE_SIZE"] = str(cache.bytes)
        variables["MC_STORE_LOCAL_HOT_BLOCK_SIZE"] = str(cache.block_bytes)
    for client in process.clients:
        if client.offload_buffer_bytes is not None:
            variables["MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES"] = str(client.offload_buffer_bytes)
    return variables


def make_plan(
    written: LaunchSizing,
    small: LaunchSizing,
    needs: LaunchNeeds,
    facts: Facts | None,
    library: Library,
    scale: int,
) -> RehearsalPlan:
    """Plan the rehearsal of a launch: members, steps, prediction and notes.

    Args:
        written: The launch as it was written.
        small: The same at 1/``scale``, which is run; its sizes must be known.
        needs: Of ``small``.
        facts: Of the host; None without RDMA.
    """
    sizing = small.shown
    assert sizing is not None
    launch = sizing.inputs.launch
    least, most = written.inputs.least, written.inputs.most
    known = not isinstance(least, Unknown) and not isinstance(most, Unknown)
    notes = list(_notes(needs, not known or least != most))
    written = with_problems(written)
    full = written.shown
    if full is not None and scale > 1:
        changed = changed_by_scale(full.inputs.launch, launch)
        notes += [f"--scale {scale} changes the launch: {text}" for text in changed]
    members = members_of(launch, small, needs, facts)
    plan = plan_members(members, launch, sizing.stock, library, scale)
    return plan._replace(
        may_fail=(sizing.reason or "pages are short") if sizing.status == "fails" else "",
        full_size=(written.status, written.reason),
        refused=_why_refused(written, scale),
        notes=tuple(dict.fromkeys(notes)),
    )


def plan_members(
    members: Sequence[Member],
    launch: Launch,
    stock: Mapping[Spot, Stock | Unknown],
    library: Library,
    scale: int = 1,
) -> RehearsalPlan:
    """Return a plan with the steps of ``launch`` and the prediction.

    Args:
        members: The launch's processes, in the same order.
        stock: The free huge pages, by size and node. A mooncake_client comes first if a dummy
            client needs it. Nothing is predicted after the first step that is predicted to fail.
    """
    order = list(range(len(members)))
    if any(has_no_segment(member.process) for member in members):
        order.sort(key=lambda index: members[index].program != "mooncake_client")
    ordered = tuple(members[at]._replace(number=number) for number, at in enumerate(order))
    launch = launch._replace(processes=tuple(launch.processes[index] for index in order))
    replayed = replay_stock(launch, stock)
    steps = list(_steps(ordered, launch, replayed))
    # Nothing is predicted of those after the first that fails.
    ends = next((at for at, step in enumerate(steps, 1) if step.failure is not None), len(steps))
    steps[ends:] = [step._replace(taken=None) for step in steps[ends:]]
    return RehearsalPlan(library, scale, launch, ordered, tuple(steps), replayed)


def _why_refused(written: LaunchSizing, scale: int) -> str:
    """Return why the launch does not start, whatever it maps; "" if no reason is known.

    SGLang's refusals of sizes (``admissions``) are reasons only if ``scale`` is 1.
    """
    refused = first_failure(written.problems)
    if refused is not None:
        return refused.text
    for admission in written.admissions if scale == 1 else ():
        if isinstance(admission, Admission) and admission.refused:
            return f"{admission.origin}: ValueError: {admission.refused}"
    return ""


def _steps(
    members: Sequence[Member], launch: Launch, taken: Sequence[ProcessReplay] | None
) -> Iterator[RehearsalStep]:
    """Yield the steps: first all host pools, then each member's store clients and registrations.

    Args:
        taken: The predicted allocations of each member; None if nothing can be predicted.
    """
    every = list(map(_group_by_number, replay_endless(launch)))
    here = [_Groups({}, {})] * len(every) if taken is None else list(map(_group_by_number, taken))
    for index, member in enumerate(members):
        count = len(member.process.host_pools_bytes)
        for number, size in enumerate(member.process.host_pools_bytes):
            which = f" {number + 1} of {count}" if count > 1 else ""
            alloc = member.process.own_allocator
            order = {"do": "pool", "bytes": size}
            if alloc is not None:
                order = {"do": "own_pool", "bytes": size, "page_bytes": alloc.hugepage_bytes or 0}
            what, maps = f"{MemoryKind.HOST_POOL}{which}", tuple(every[index].pools[number])
            takes = tuple(here[index].pools.get(number, ())) or None
            yield RehearsalStep(member, "pool", what, order, maps, takes)
    for index, member in enumerate(members):
        clients = member.process.clients
        for number, client in enumerate(clients):
            maps = tuple(every[index].clients.get(number, ()))
            foreseen = here[index].clients.get(number, ())
            mapped, why = until_refused(foreseen, member.forking)
            action = "dummy" if client.dummy else "setup"
            if member.program == "mooncake_client":
                action = "program"
            which = f" {number + 1} of {len(clients)}" if len(clients) > 1 else ""
            kinds = ", ".join(dict.fromkeys(mapping.what for mapping in maps)) or "nothing"
            what, order = f"store client{which} ({kinds})", _client_order(member, client, action)
            takes = mapped or (None if maps else ())
            yield RehearsalStep(member, action, what, order, maps, takes, why)
        if clients:
            whole_pools = launch.release.registers_whole_pool
            yield from _registrations(member, every[index].pools, whole_pools)


class _Groups(NamedTuple):
    """The allocations of one process, by the number of their host pool or of their store client."""

    pools: dict[int, list[Allocation]]
    clients: dict[int, list[Allocation]]


def _group_by_number(mapped: ProcessReplay) -> _Groups:
    groups = _Groups({}, {})
    for allocation in mapped.allocations:
        of_kind = groups.pools if allocation.what == MemoryKind.HOST_POOL else groups.clients
        of_kind.setdefault(allocation.owner, []).append(allocation)
    return groups


def _client_order(member: Member, client: StoreClient, action: str) -> dict[str, Any]:
    """Return the order that sets up a client by ``action``, without addresses that come later."""
    if action == "program":
        return {"do": "program"}
    if action == "dummy":
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
    member: Member, pools: Mapping[int, Sequence[Allocation]], whole_pools: bool
) -> Iterator[RehearsalStep]:
    """Yield the steps in which SGLang's ``register_mem_pool_host`` registers host pools, whole or
    in halves (K, V).

    Args:
        pools: Allocations by pool.
        whole_pools: As in ``refused_registration``.
    """
    for number, size in enumerate(member.process.host_pools_bytes):
        half = size // 2
        halves = member.process.split_pools
        split = number < len(halves) and halves[number]
        parts = ((0, half), (half, size - half)) if split else ((0, size),)
        for part, (offset, length) in enumerate(parts):
            order = {"do": "register", "pool": number, "offset": offset, "bytes": length}
            host_pool = pools[number][-1]
            taken, why = refused_registration(host_pool, part, length, member.forking, whole_pools)
            what = f"registering {MemoryKind.HOST_POOL}"
            yield RehearsalStep(member, "register", what, order, (), taken, why)


def environment_of(member: Member, scale: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the launch's variables, scaled if needed, over ``base`` (PATH and the like)."""
    more = {} if scale == 1 else scaled_environment(member.process)
    return {**base, **member.environment, **more}


_STOOD_IN = ("master", "metadata-http", "metadata-etcd", "metadata-redis")


def _notes(needs: LaunchNeeds, two_bounds: bool) -> Iterator[str]:
    """Yield notes on parts that are not rehearsed, and on stand-ins for the launch's own services.

    Args:
        two_bounds: The sizes are known between two bounds only.
    """
    if two_bounds:
        yield "the L2 pool is known between two bounds: the upper one is rehearsed"
    if any(process.gpu_registered_bytes != 0 for process in needs.processes):
        what = "prefill and decode register the GPU's KV cache and their own buffers"
        yield f"{what}: that is not rehearsed, nor is any GPU memory"
    for service in needs.services:
        if service.own or service.kind not in _STOOD_IN:
            continue
        host = service.host.reason if isinstance(service.host, Unknown) else service.host
        what = "master" if service.kind == "master" else "metadata server"
        yield f"a {what} of its own on 127.0.0.1 stands in for that at {host}"
    if any(service.kind.startswith("metadata-") and service.own for service in needs.services):
        yield "P2PHANDSHAKE stands in for the launch's metadata server: memory is the same"
