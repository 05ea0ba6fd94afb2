"""What ``capacity`` answers: a launch's servers and their tiers; and what is written to each tier
and read from it while so many new tokens a second are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.framework.root import Root
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from checks.storage.folders import Folder
from preflight.cache_sizing.capacity.deployment import (
    DEFAULT_WRITE_POLICY,
    Bounds,
    Capacity,
    Cluster,
    Deployment,
    Tier,
    cluster_hosts,
    deployments,
)
from preflight.cache_sizing.capacity.router import Router, router_of
from preflight.cache_sizing.capacity.tiers import (
    Eviction,
    PageObjects,
    Segments,
    Tiers,
    eviction,
    gpu_tier,
    host_tier,
    offload_tier,
    page_objects,
    pool_tier,
    segments,
)
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload, WorkloadOptions, workload_of
from preflight.engines.programs.mooncake_flags import is_on
from preflight.launch_problems.rules.launch_rules import first_failure, problems_of
from preflight.launch_problems.rules.tier_use import lossy_bucket, part_that_reaches_ssd
from preflight.needs.chosen_releases import choose_mooncake
from preflight.needs.launch_sizing import LaunchInputs
from preflight.processes.processes import LaunchOptions, LaunchProcess, ProcessKind


class SsdStream(NamedTuple):
    """How fast new tokens fill the buckets that SSD offload writes, to tell what is lost.

    Attributes:
        fill_rate: Tokens a second that fill every client's bucket in one heartbeat; 0 if nothing is
            lost.
        token_bytes: Bytes of one token.
    """

    fill_rate: int
    token_bytes: int

    def part(self, speed: float) -> float:
        """Return the part, 0 to 1, of ``speed`` tokens per second that reaches SSD."""
        return part_that_reaches_ssd(self.fill_rate, speed) if self.fill_rate else 1.0


def ssd_stream(
    processes: tuple[LaunchProcess, ...],
    counts: Mapping[str, int],
    objects: PageObjects,
    mooncake: MooncakeRelease,
) -> SsdStream:
    """Return how many tokens a second fill the offload buckets of all SSD clients, if all are like
    the first: 0 if no bucket is lost.

    Args:
        counts: How many of each process run, by name.
    """
    buckets = [(process.name, lossy_bucket(process, mooncake)) for process in processes]
    clients = sum(counts.get(name, 1) for name, bucket in buckets if bucket)
    for each in [bucket for _, bucket in buckets if bucket][:1]:
        fills = min(each.keys, each.bytes * len(objects.whole) // sum(objects.whole)) * clients
        fill_rate = max(1, int(fills / each.seconds / len(objects.whole) * objects.page_tokens))
        return SsdStream(fill_rate, objects.token_bytes)
    return SsdStream(0, objects.token_bytes)


def lost_note(ssd: SsdStream | None) -> Iterator[str]:
    """Yield one sentence on the tokens that reach SSD at ``fill_rate``, and at a tenth of that
    speed; nothing if no tokens are lost.
    """
    if ssd is None or not ssd.fill_rate:
        return
    rate = ssd.fill_rate
    half, little = (
        format_bytes(int(rate * part * ssd.part(rate * part) * ssd.token_bytes * 3600))
        for part in (1, 0.1)
    )
    yield (
        f"SSD gets half of what comes at {rate:,} new tokens a second ({half} an hour), "
        f"a twentieth at {rate // 10:,} ({little} an hour): what fills no bucket is lost "
        "(ssd-bucket-lost)"
    )


def with_rates(server: ServerCapacity, speed: float) -> ServerCapacity:
    """Return the server with ``written`` and ``read`` of each tier set, in bytes a second.

    Args:
        speed: New tokens a second. Tokens are read as in the last round of the workload; ``read``
            is None without rounds, and for L1. Both are None for a tier whose bytes of a token are
            not known.
    """
    tiers = tuple(_rated_tiers(server, speed))
    return server._replace(capacity=server.capacity._replace(tiers=tiers))


def _rated_tiers(server: ServerCapacity, speed: float) -> Iterator[Tier]:
    """Yield the tiers of the server with ``written`` and ``read`` set."""
    ssd, rounds = server.ssd, server.capacity.rounds
    release, policy = server.deployment.sized.release, server.deployment.write_policy
    last = rounds[-1] if rounds else None
    cumulative = {name: (low, high) for name, low, high in last.hits} if last else {}
    below, above = 0.0, 0.0
    least = most = speed
    for tier in server.capacity.tiers:
        each = float(ssd.token_bytes) if ssd and tier.name == "SSD" else None
        if each is None and isinstance(tier.bytes, Bounds) and isinstance(tier.tokens, Bounds):
            each = tier.bytes.most / tier.tokens.most if tier.tokens.most else None
        if tier.name != "L1" and policy != DEFAULT_WRITE_POLICY:
            least = 0.0
            if tier.name == "L3" and policy == "write_back" and not release.write_back_stores:
                most = 0.0
        if tier.name == "SSD" and ssd is not None:
            most = most * ssd.part(most) if most else 0.0
            gets_evicted = server.tiers.disk_gets_evicted
            least = 0.0 if gets_evicted else least * ssd.part(least) if least else 0.0
        read: Bounds | None = None
        low, high = cumulative.get(tier.name, (0.0, 0.0))
        if last is not None and each is not None and tier.name != "L1":
            again = speed * last.reusable_tokens / max(1, last.held_tokens - last.reusable_tokens)
            parts = max(0.0, low - above), max(0.0, high - below)
            read = Bounds(*(int(again * part * each) for part in parts))
        below, above = low, high
        written = None if each is None else Bounds(int(least * each), int(most * each))
        yield tier._replace(written=written, read=read)


def rate_sentence(tier: Tier, speed: float) -> str:
    """Say how many bytes a second are written to a tier and read from it, and how soon it is full.

    Args:
        speed: New tokens a second, as the rates were computed for.
    """
    if tier.written is None:
        return f"{tier.name} at {speed:,g} new tokens a second: not known"
    hour, size = tier.written.most * 3600, tier.bytes
    fills = f"at most {format_bytes(hour)} fill in an hour"
    if not hour:
        fills = "nothing ever fills"
    elif isinstance(size, Bounds) and hour < size.least:
        fills = f"of {format_bytes(size.least)} {fills}"
    elif isinstance(size, Bounds):
        fills = f"{format_bytes(size.most)} fill in {size.most / tier.written.most / 60:.1f} min"
    rate = tier.written.text(format_bytes)
    read = "" if tier.read is None else f"; {tier.read.text(format_bytes)}/s read in the last round"
    return f"{tier.name} at {speed:,g} new tokens a second: {rate}/s written, {fills}{read}"


class CapacityRequest(NamedTuple):
    """What the command line asks beside the launch.

    Attributes:
        watermark: Of a master that runs elsewhere, 0 to 1; None for the launch's own, or the
            default.
    """

    cluster: Cluster = Cluster()
    workload: WorkloadOptions = WorkloadOptions()
    watermark: float | None = None
    new_tokens_per_second: float | None = None


class ServerCapacity(NamedTuple):
    """What one server's tiers hold, and the facts behind that.

    Attributes:
        subject: The process's name.
        page_tokens: None if it is not known.
        ssd: None without SSD offload.
    """

    subject: str
    model: str
    page_tokens: int | None
    capacity: Capacity
    notes: tuple[str, ...]
    deployment: Deployment
    tiers: Tiers
    eviction: Eviction | Unknown
    ssd: SsdStream | None


class CapacityAnswer(NamedTuple):
    """What the tiers of all servers of a launch hold.

    Attributes:
        workload: None if there is none.
        router: In front of the servers, if any.
        unread: Notes on what of the launch was not counted.
        source: Name of the launch; processes: all that it starts.
        new_tokens_per_second: As asked.
    """

    servers: tuple[ServerCapacity, ...]
    workload: MultiTurnWorkload | Unknown | None
    notes: tuple[str, ...]
    router: Router | None = None
    unread: tuple[str, ...] = ()
    source: str = ""
    processes: tuple[LaunchProcess, ...] = ()
    new_tokens_per_second: float | None = None


class _StoreSetup(NamedTuple):
    """Facts of the store that all servers share.

    Attributes:
        folders: Offload folders by path.
        counts: How many of each process run, by name.
        disk_gets_evicted: Disks get only what the store evicts.
    """

    segments: tuple[Segments, ...] | Unknown
    eviction: Eviction | Unknown
    folders: Mapping[str, Folder | Unknown]
    counts: Mapping[str, int]
    disk_gets_evicted: bool
    mooncake: MooncakeRelease


def compute_capacity(
    inputs: LaunchInputs,
    options: LaunchOptions,
    root: Root,
    request: CapacityRequest,
    folders: Mapping[str, Folder | Unknown],
) -> CapacityAnswer:
    """Compute what each server's tiers hold.

    Args:
        folders: Offload folders by path.

    Raises:
        UsageError: If the launch has no server, or a number in it is invalid.
    """
    launched = deployments(inputs, options, root, request.cluster)
    workload = workload_of(request.workload, inputs.processes)
    store = _store(inputs, options, request, folders)
    servers = tuple(_server(each, inputs, store, workload, request) for each in launched)
    refused = first_failure(problems_of(inputs))
    notes = () if refused is None else (f"this launch does not start as it is: {refused.text}",)
    router = router_of(inputs.processes)
    speed = request.new_tokens_per_second
    return CapacityAnswer(servers, workload, notes, router, new_tokens_per_second=speed)


def _store(
    inputs: LaunchInputs,
    options: LaunchOptions,
    request: CapacityRequest,
    folders: Mapping[str, Folder | Unknown],
) -> _StoreSetup:
    """Return the facts of the store that all servers share: segments, eviction, offload folders."""
    release, mooncake, _ = choose_mooncake(options.mooncake_version, options.installed)
    hosts = cluster_hosts(inputs, request.cluster)
    counts = {process.name: hosts for process in inputs.processes}
    masters = (each for each in inputs.processes if each.kind is ProcessKind.MASTER)
    alone = any(is_on(each.arguments, "mooncake_master", "offload_on_evict") for each in masters)
    evicts = eviction(inputs.processes, str(mooncake.value), request.watermark)
    return _StoreSetup(segments(inputs, request.cluster), evicts, folders, counts, alone, release)


def _server(
    deployment: Deployment,
    inputs: LaunchInputs,
    store: _StoreSetup,
    workload: MultiTurnWorkload | Unknown | None,
    request: CapacityRequest,
) -> ServerCapacity:
    """Compute one server's tiers, and notes on them and on the workload."""
    pool_request = deployment.request
    objects: PageObjects | Unknown = (
        pool_request
        if isinstance(pool_request, Unknown)
        else page_objects(pool_request, deployment.server.links)
    )
    l3 = pool_tier(deployment, objects, store.segments, store.eviction)
    disk, ssd = None, None
    if l3 is not None:
        counts = {**store.counts, deployment.process.name: deployment.ranks}
        disk = offload_tier(inputs.processes, counts, objects, store.folders, store.mooncake)
        if disk is not None and not isinstance(objects, Unknown):
            ssd = ssd_stream(inputs.processes, counts, objects, store.mooncake)
    tiers = Tiers(gpu_tier(deployment), host_tier(deployment), l3, disk, store.disk_gets_evicted)
    page = None if isinstance(pool_request, Unknown) else pool_request.page_tokens
    length = _conversation(workload, request, page or 1)
    shown = tuple(_counted(tier, length) for tier in tiers.shown)
    size = objects if isinstance(objects, Unknown) else objects.token_bytes
    keys, budget = None if l3 is None else l3.keys, prefetch_budget(deployment, tiers)
    capacity = Capacity(shown, size, (), keys, budget)
    notes = (*_server_notes(deployment, tiers, workload), *_budget_note(budget, length, workload))
    notes += tuple(lost_note(ssd))
    name, model, evicts = deployment.process.name, deployment.model, store.eviction
    return ServerCapacity(name, model, page, capacity, notes, deployment, tiers, evicts, ssd)


def prefetch_budget(deployment: Deployment, tiers: Tiers) -> Bounds | Unknown | None:
    """Return how many tokens of L3 may be under prefetch at a time in one cache; None without L2 or
    L3.

    Returns:
        Unknown if L2, or an L1 that the budget depends on, is not known.
    """
    if tiers.host is None or tiers.store is None:
        return None
    gpu, host, release = tiers.gpu.group_tokens, tiers.host.group_tokens, deployment.sized.release
    if not isinstance(host, Bounds):
        return host
    if isinstance(gpu, Unknown) and release.budget_of_difference:
        return Unknown(f"0.8 x (L2 - L1), and L1 is not known: {gpu.reason}")
    in_gpu = gpu if isinstance(gpu, Bounds) else Bounds(0, 0)
    ends = (in_gpu.most, host.least), (in_gpu.least, host.most)
    # One below zero lets as much be read as zero does.
    return Bounds(*(max(0, release.prefetch_budget(*end, deployment.buffers)) for end in ends))


def _budget_note(
    budget: Bounds | Unknown | None,
    length: int | None,
    workload: MultiTurnWorkload | Unknown | None,
) -> Iterator[str]:
    """Yield a warning if the prefetch budget is 0, or smaller than ``length``, the tokens of one
    conversation or request.
    """
    if isinstance(budget, Bounds) and budget.most <= 0:
        yield "L3 is written and never read: no token may be under prefetch (L2 is too small)"
    elif isinstance(budget, Bounds) and length is not None and budget.least < length:
        what = "request" if workload is None else "conversation"
        yield (
            f"L3 will hardly be read: {budget.text()} tokens may be under prefetch at a time, and "
            f"one {what} has {length:,}: the next is served without it"
        )


def _conversation(
    workload: MultiTurnWorkload | Unknown | None, request: CapacityRequest, page: int
) -> int | None:
    """Return the cached tokens of one conversation of the workload, or else of one request of the
    length that is asked about; None without a length.

    Args:
        page: Tokens of a page.
    """
    if isinstance(workload, MultiTurnWorkload):
        return max(1, workload.cached_tokens(workload.rounds, page))
    length = request.workload.request_length or 0
    whole = length + (request.workload.output_length or 1) - 1
    return max(1, whole // page * page) if length > 0 else None


def _counted(tier: Tier, length: int | None) -> Tier:
    if length is None or isinstance(tier.tokens, Unknown):
        return tier
    conversations = Bounds(tier.tokens.least // length, tier.tokens.most // length)
    return tier._replace(conversations=conversations)


def _server_notes(
    deployment: Deployment, tiers: Tiers, workload: MultiTurnWorkload | Unknown | None
) -> Iterator[str]:
    """Yield notes on unknown tiers and benchmarks, on the cache's settings, and on what the rounds
    leave out.
    """
    server = deployment.server
    for tier in tiers.shown:
        if isinstance(tier.tokens, Unknown):
            yield f"{tier.name} is not known: {tier.tokens.reason}"
    if isinstance(workload, Unknown):
        yield f"the benchmark of the launch is not known: {workload.reason}"
    yield from _cache_notes(deployment, tiers)
    if not isinstance(workload, MultiTurnWorkload):
        return
    if not deployment.reuses:
        why = "a decode server" if server.mode == "decode" else "--disable-radix-cache"
        yield f"{why}: no request finds what an earlier one left here, so no rounds are shown"
        return
    policy = server.value("hicache_storage_prefetch_policy")
    if tiers.store is not None and isinstance(policy, str) and policy != "wait_complete":
        yield (
            f"prefetch policy {policy}: a request does not wait for all that L3 still has, so it "
            "may use less of it than is shown"
        )
    if not workload.barrier:
        yield "without --enable-round-barrier rounds overlap: they are where clients are on average"
    if workload.shorter:
        yield "rounds or lengths of this workload vary: the longest are shown"


def _cache_notes(deployment: Deployment, tiers: Tiers) -> Iterator[str]:
    """Yield notes on settings and sizes because of which L2 or L3 adds little to L1."""
    server = deployment.server
    if deployment.buffers:
        yield "buffer_only: L2 is staging for L3, and keeps nothing that is answered from it"
    backend = server.value("hicache_storage_backend")
    if isinstance(backend, str) and server.hicache and server.store is None:
        yield f"storage backend {backend}: what it holds is not computed here"
    if not server.hicache:
        why = "--enable-hierarchical-cache is not given"
        if server.mode == "decode":
            why = "host memory of a decode server keeps retracted requests, nothing to reuse"
        yield f"no L2: {why}"
        return
    if deployment.write_policy != "write_through":
        yield f"write policy {deployment.write_policy}: L2 and L3 get less than L1, and later"
    host, gpu = tiers.host, tiers.gpu.group_tokens
    l2_tokens = None if host is None else host.group_tokens
    if isinstance(l2_tokens, Bounds) and isinstance(gpu, Bounds) and l2_tokens.most <= gpu.least:
        yield "L2 holds less than L1: it adds little, for both keep the same tokens"
