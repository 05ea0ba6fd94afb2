"""The processes that a rehearsal runs: their environment and devices, and what is pinned for them.

All of it comes from the launch's needs, as the checks have them. So does which registrations are
refused, and what stays mapped then: measured on soft-RoCE with rdma-core 44, setup returns -600
with what it has mapped so far still there, until the process ends; a hot cache is given back, and
setup goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.pages import MemoryKind, Region
from checks.base.unknown import Unknown
from checks.memlock.demand import RING_EDGES_BYTES, Demand, demand
from checks.rdma.facts import Nic
from checks.rdma.fork import DROPPED, VARIABLE, Forking, advises, bad_end
from checks.rdma.registration import largest_region_bytes
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import release_of
from checks.run.facts import Facts
from preflight.mooncake.allocations import (
    REGULAR_PAGE_BYTES,
    Allocation,
    Backing,
    EndlessPools,
    Outcome,
    mappings,
    regions_of,
    whole,
)
from preflight.mooncake.replay import SLAB_BYTES, replay
from preflight.processes.processes import ProcessKind
from preflight.programs.memory_records import HotCache, Launch, MappedProcess, StoreClient
from preflight.rehearsal.records import Member
from preflight.sizing.launch_sizing import LaunchSizing

_RUN = ("sglang", "store_service", "mooncake_client", "vllm", "lmcache")


def members_of(
    launch: Launch, small: LaunchSizing, needs: LaunchNeeds, facts: Facts | None
) -> list[Member]:
    """Return the launch's processes with what the source says of each."""
    arguments = {
        process.number: tuple(word.text for word in process.arguments)
        for process in small.inputs.processes
        if process.kind is ProcessKind.CLIENT
    }
    needed = {need.id: need for need in needs.processes if need.program in _RUN}
    members = [
        member_of(needed[one.id], one, arguments.get(one.id.command, ()), facts, needs)
        for one in launch.processes
    ]
    if any(member.program == "mooncake_client" for member in members):
        return members
    elsewhere = Unknown("the mooncake_client that pins it is not of this launch")
    return [
        member._replace(pinned_bytes=elsewhere) if has_no_segment(member.process) else member
        for member in members
    ]


def has_no_segment(process: MappedProcess) -> bool:
    """Return whether the segment of a process is another's: it is a dummy client."""
    return any(client.dummy for client in process.clients)


def member_of(
    need: ProcessNeeds,
    process: MappedProcess,
    arguments: tuple[str, ...],
    facts: Facts | None,
    needs: LaunchNeeds,
) -> Member:
    """Return ``process`` with what its needs and the host's devices say of it."""
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
        asks = advises(facts.rdma, need.environment) is True
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
    return Member(
        need.name,
        need.program,
        process,
        need.environment,
        "" if isinstance(named, Unknown) else ",".join(named),
        arguments,
        names,
        asked if isinstance(asked, Unknown) else asked.bytes,
        RING_EDGES_BYTES if need.ring_bytes else 0,
        forking,
    )


_CODE = "-600"


def refusal(region: Region, forking: Forking | None) -> str:
    """Return why ``region`` is refused, "" where it is not, or where that is not known."""
    found = "" if forking is None else bad_end(region, forking)
    if not isinstance(found, str) or not found:
        return ""
    return f"{found}, which libibverbs refuses (set {VARIABLE}=1)"


def until_refused(
    allocations: Iterable[Allocation], forking: Forking | None
) -> tuple[tuple[Allocation, ...], str]:
    """Return what one store client maps until a registration is refused, and why; "" for none.

    Each is registered before the next is mapped.
    """
    done: list[Allocation] = []
    for shares in mappings(allocations):
        mapped = whole(shares)
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
    pool: Allocation, part: int, size_bytes: int, forking: Forking | None, whole_pools: bool
) -> tuple[tuple[Allocation, ...], str]:
    """Return a mapped host pool with its registration failed, and why; (), "" if registered.

    part: the number of its half, where it is registered in halves.

    ``whole_pools``: Mooncake registers all of a pool, whatever part of it is handed over.
    """
    parts = list(regions_of(pool))
    why = refusal(parts[part], forking) if part < len(parts) else ""
    if part and whole_pools and pool.backing is Backing.MEMFD_HUGETLB:
        why = "Mooncake registered the whole pool for K, and refuses V, which lies in it"
    if not why:
        return (), ""
    error = f"register_buffer of {size_bytes} bytes returns {_CODE}"
    return (_without_pages(pool)._replace(outcome=Outcome.FAILED, error=error),), why


def _without_pages(mapped: Allocation) -> Allocation:
    return mapped._replace(backing=Backing.NONE, pages=0)


def scaled(size_bytes: int, scale: int, page_bytes: int) -> int:
    """Return ``size_bytes`` divided by ``scale``: in whole pages, and the same bytes past them."""
    whole, beyond = divmod(size_bytes, page_bytes)
    return -(-whole // scale) * page_bytes + beyond


def scaled_launch(launch: Launch, scale: int) -> Launch:
    """Return the same processes, 1/``scale`` of the memory each."""
    if scale == 1:
        return launch
    processes = tuple(_process(process, launch, scale) for process in launch.processes)
    return launch._replace(processes=processes)


def changed_by_scale(launch: Launch, small: Launch) -> list[str]:
    """Return what the smaller launch maps in another way, as an arena that now holds less."""
    changed: dict[str, None] = {}
    both = zip(replay(launch, EndlessPools()), replay(small, EndlessPools()), strict=True)
    for large, little in both:
        for one, other in zip(large.allocations, little.allocations, strict=False):
            if (one.what, one.backing) != (other.what, other.backing):
                sizes = f"{one.backing.value} at full size, {other.backing.value} when scaled"
                changed[f"{large.process.name}, {one.what}: {sizes}"] = None
    return list(changed)


def _process(process: MappedProcess, launch: Launch, scale: int) -> MappedProcess:
    """Return the process with its pools, clients, arena, hot cache and metadata scaled down."""
    settings, own = process.settings, process.own_allocator
    huge = settings.hugepages and launch.release.hugepages
    page = settings.hugepage_bytes if huge else REGULAR_PAGE_BYTES
    pool_page = page if own is None else own.hugepage_bytes or REGULAR_PAGE_BYTES
    cache = settings.hot_cache
    arena = settings.arena_bytes
    return process._replace(
        settings=settings._replace(
            arena_bytes=None if arena is None else scaled(arena, scale, page),
            hot_cache=None if cache is None else _hot_cache(cache, scale),
        ),
        host_pools_bytes=tuple(scaled(size, scale, pool_page) for size in process.host_pools_bytes),
        clients=tuple(_client(client, scale, page, huge) for client in process.clients),
        metadata_bytes=scaled(process.metadata_bytes, scale, REGULAR_PAGE_BYTES),
    )


def _client(client: StoreClient, scale: int, page_bytes: int, huge: bool) -> StoreClient:
    """Return the store client scaled down, but not below the smallest segment that is accepted."""
    segment = scaled(client.segment_bytes, scale, page_bytes)
    if not huge and client.segment_bytes >= SLAB_BYTES:
        segment = max(segment, SLAB_BYTES)  # a smaller one is refused
    offload = client.offload_buffer_bytes
    return client._replace(
        segment_bytes=segment,
        local_buffer_bytes=scaled(client.local_buffer_bytes, scale, page_bytes),
        offload_buffer_bytes=offload and scaled(offload, scale, REGULAR_PAGE_BYTES),
    )


def _hot_cache(cache: HotCache, scale: int) -> HotCache:
    """Return a cache with as many blocks as before, each smaller."""
    blocks = cache.bytes // cache.block_bytes if cache.block_bytes else 0
    block = max(1, scaled(cache.block_bytes, scale, REGULAR_PAGE_BYTES))
    return cache._replace(bytes=blocks * block, block_bytes=block)


def scaled_environment(process: MappedProcess) -> dict[str, str]:
    """Return the variables that say the sizes of a scaled process, as Mooncake spells them."""
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
