"""What each tier holds: L1 and L2 of a server's own ranks, L3 and SSD of the store.

The tensor-parallel ranks of one replica hold shards of the same tokens, those of latent attention a
whole copy each: tokens count once for each replica and each data-parallel attention group.

In the store a page of the KV cache is objects. A rank stores K and V of a page as an object each, a
rank of latent attention the row as one, and then the first rank alone: all have the same (SGLang
0.5.23 ``mooncake_store.py``, ``_k`` and ``_v`` keys; ``cache_controller.py``). Data-parallel
attention groups share keys: the rank in a key is the one within its group.

Mooncake's offset allocator rounds an object up to a bin. Bins are small floats of three mantissa
bits, so eight for each power of two: nothing is lost at their edges, and up to a ninth just above
one. A segment above 3.75 GiB is counted in units of the least power of two with which its size fits
32 bits' worth of bins. Source: ``mooncake-store/src/offset_allocator.cpp`` (``SmallFloat``,
``calculateMultiplier``); held against a real store in
``tests/cache_sizing/capacity/test_capacity_real.py``.

The pool evicts where its objects pass the watermark, or where the next one finds no place: the
allocator's rounding to bins counts for the second alone. The least of the two is what it holds.
Source: Mooncake ``mooncake-store/include/types.h`` (defaults, by release), ``master.cpp`` (flags)
and ``master_service.cpp`` (``EvictionThreadFunc``: objects count with their own size, not with the
bins that they take).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown, UnknownFactError, or_unknown, require
from checks.releases.mooncake import MooncakeRelease, mooncake_release
from checks.storage.folders import Folder
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.deployment import (
    Bounds,
    Cluster,
    Deployment,
    Keys,
    Tier,
    cluster_hosts,
    instances,
    parse_part,
)
from preflight.engines.consumers.consumer import Client, Consumer
from preflight.engines.programs.memory_records import StoreClient
from preflight.engines.programs.mooncake_flags import value_of
from preflight.engines.programs.sglang_arguments import why_unresolved
from preflight.engines.sglang.host_pool_records import (
    HostPools,
    PoolKind,
    PoolRequest,
    RowBytes,
    stage_rows,
)
from preflight.engines.sglang.host_pools import host_pools
from preflight.engines.sglang.launch import server_client, server_ranks
from preflight.engines.sglang.model_geometry import (
    AttentionKind,
    LayerKind,
    ModelGeometry,
    config_helps,
)
from preflight.engines.sglang.pool_request import ratio_tokens
from preflight.launch_problems.rules.tier_use import NO_QUOTA, QUOTA, bucket_quota
from preflight.launches.source import Word
from preflight.needs.launch_sizing import LaunchInputs
from preflight.processes.processes import LaunchProcess, ProcessKind
from preflight.processes.storage import offload_of

_DCP = Unknown("decode context parallelism: how tokens spread over ranks is not computed")


class PageObjects(NamedTuple):
    """Sizes in bytes of the store's objects for one page, of all writing ranks together.

    Attributes:
        whole: Objects that every page has.
        beside: Objects that only some pages may have: the keys of a sliding window, or a draft's
            cache.
    """

    page_tokens: int
    whole: tuple[int, ...]
    beside: tuple[int, ...] = ()

    @property
    def token_bytes(self) -> int:
        return sum(self.whole) // self.page_tokens


class Tiers(NamedTuple):
    """The tiers of a server.

    Attributes:
        disk_gets_evicted: Disks get only the pages that the store evicts.
    """

    gpu: Tier
    host: Tier | None
    store: Tier | None
    disk: Tier | None
    disk_gets_evicted: bool = False

    @property
    def shown(self) -> tuple[Tier, ...]:
        return tuple(tier for tier in (self.gpu, self.host, self.store, self.disk) if tier)


@or_unknown
def page_objects(request: PoolRequest, links: bool = False) -> PageObjects:
    """Return the sizes of the objects that the store keeps for one page; Unknown if the model is
    not known, or no layer keeps every token.

    Args:
        request: What the server's pools ask for.
        links: The linker stores pages of the GPU: K and V of a rank are one object
            (``DevicePoolEntry``, SGLang 0.5.20 to 0.5.23).
    """
    geometry = model_of(request)
    whole: list[int] = []
    beside: list[int] = []
    page = request.page_tokens
    for row in _token_rows(request):
        if geometry.kind is AttentionKind.MLA:
            whole += [page * row.parts[0], page * row.index_per_layer * row.index_layers]
        else:
            writers = request.attention_ranks
            for sizes, parts in ((whole, row.parts), (beside, row.sliding_parts)):
                split = (sum(parts),) if links else _halves(parts)
                sizes += [page * size for size in split] * writers
    if request.draft is not None:
        beside += require(page_objects(request.of_draft(), links)).whole
    kept = tuple(size for size in whole if size)
    if not kept:
        raise UnknownFactError(Unknown(f"{geometry.name}: no layer of it keeps every token"))
    return PageObjects(page, kept, tuple(size for size in beside if size))


def model_of(request: PoolRequest) -> ModelGeometry:
    """Return the model; if it is not known, raise UnknownFactError that says what to give."""
    if isinstance(request.geometry, Unknown):
        geometry = request.geometry
        give = ": give --model-config" if config_helps(geometry) else ""
        raise UnknownFactError(Unknown(f"{geometry.reason}{give}"))
    return request.geometry


def _token_rows(request: PoolRequest) -> tuple[RowBytes, ...]:
    """Return the bytes of a token on one rank by pipeline stage.

    Raises:
        UnknownFactError: For an unknown model, linear-attention layers, and decode context
            parallelism.
    """
    geometry = model_of(request)
    if request.dcp > 1:
        raise UnknownFactError(_DCP)
    if LayerKind.LINEAR in geometry.layers:
        why = "has linear-attention layers, whose states follow requests and not tokens"
        raise UnknownFactError(Unknown(f"{geometry.name} {why}"))
    return stage_rows(request)


@or_unknown
def held_token_bytes(request: PoolRequest) -> Bounds:
    """Return the GPU bytes (L1) of one token, on all ranks of a group together: the least without
    sliding-window layers, the most with all layers.

    Returns:
        Unknown if ``_token_rows`` raises.
    """
    rows = _token_rows(request)
    row = sum(sum(row.parts) + row.index_per_layer * row.index_layers for row in rows)
    sliding = sum(row.sliding for row in rows)
    return Bounds(row, row + sliding).times(request.attention_ranks)


def _halves(parts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of K and V: halves of one tensor, or a tensor each where widths differ."""
    return (parts[0] // 2, parts[0] // 2) if len(parts) == 1 else parts


_MANTISSA_BITS = 3
# SmallFloat::MAX_BIN_SIZE, in units.
_MOST_UNITS = 4026531840


def occupied_bytes(object_bytes: int, segment_bytes: int) -> int | None:
    """Return the bytes that an object takes in a segment; None if it is larger than any bin."""
    unit_bits = 0
    while segment_bytes >> unit_bits > _MOST_UNITS:
        unit_bits += 1
    units = -(-object_bytes // (1 << unit_bits))
    if units > _MOST_UNITS:
        return None
    # Up to the least bin that is not smaller.
    step = 1 << max(0, units.bit_length() - 1 - _MANTISSA_BITS)
    return -(-units // step) * step << unit_bits


def objects_that_fit(object_bytes: int, segment_bytes: int) -> int:
    """Return how many objects of one size fit into a segment; 0 if they are larger than any bin."""
    taken = occupied_bytes(object_bytes, segment_bytes)
    return 0 if not taken else segment_bytes // taken


# A pool of sliding-window layers is split by what the GPU holds: where that is not known, from one
# page to more than any GPU has.
_MOST_DEVICE_TOKENS = 1 << 40


def gpu_tier(deployment: Deployment) -> Tier:
    """Return the server's L1 tier.

    Bytes and tokens are Unknown if the GPU or model is unknown.
    """
    request = deployment.request
    tokens = request if isinstance(request, Unknown) else ratio_tokens(deployment.sized, request)
    if isinstance(request, Unknown) or isinstance(tokens, Unknown):
        assert isinstance(tokens, Unknown)
        if not isinstance(request, Unknown) and tokens is request.geometry and tokens.absent:
            tokens = Unknown(f"{tokens.reason}: give --model-config")
        return Tier("L1", "GPU memory", tokens, tokens, "", group_tokens=tokens)
    of_group, groups = Bounds(tokens.least, tokens.most), deployment.groups
    each = held_token_bytes(request)
    size = each
    if not isinstance(each, Unknown):
        size = Bounds(of_group.least * each.least, of_group.most * each.most).times(groups)
    formula = tokens.reason if groups == 1 else f"{groups} x {tokens.reason}"
    return Tier("L1", "GPU memory", size, of_group.times(groups), formula, group_tokens=of_group)


def host_tier(deployment: Deployment) -> Tier | None:
    """Return the server's L2 tier; None without --enable-hierarchical-cache."""
    if not deployment.server.hicache:
        return None
    of_group, memory = _l2_tokens(deployment), deployment.memory
    most = memory.most_pools_bytes
    size: Bounds | Unknown
    if isinstance(most, Unknown):
        size = most
    else:
        size = Bounds(sum(memory.least_pools_bytes), sum(most)).times(deployment.ranks)
    total = of_group if isinstance(of_group, Unknown) else of_group.times(deployment.groups)
    formula = f"{memory.why}; {_layout(deployment)}"
    return Tier("L2", "host memory", size, total, formula, group_tokens=of_group)


def _layout(deployment: Deployment) -> str:
    """Say how a token lies on the ranks: in shards, as whole copies, or on one rank."""
    ranks, groups = deployment.ranks, deployment.groups
    each = ranks // groups
    geometry = deployment.sized.hardware.geometry
    if each == 1:
        text = "each rank holds tokens of its own"
    elif isinstance(geometry, ModelGeometry) and geometry.kind is AttentionKind.MLA:
        text = f"{each} ranks hold the same tokens, each a whole copy"
        if deployment.sized.ranks.pp > 1:
            text += " of its stage's layers"
    else:
        text = f"{each} ranks hold shards of the same tokens"
    return text if groups == 1 else f"{text}, {groups} times over"


@or_unknown
def _l2_tokens(deployment: Deployment) -> Bounds:
    """Return the tokens that L2 holds in one group of ranks, which share the same tokens.

    Returns:
        Unknown if L2 is refused, or if the model, a draft or the pools are not known.
    """
    request, memory = require(deployment.request), deployment.memory
    if memory.refused is not None:
        raise UnknownFactError(memory.refused)
    model_of(request)
    if request.dcp > 1:
        raise UnknownFactError(_DCP)
    require(deployment.sized.hardware.drafts.separate)
    if request.size_gb > 0:
        return _sized_tokens(deployment, request)
    require(memory.most_pools_bytes)
    if not memory.pools:
        raise UnknownFactError(Unknown(memory.why))
    most = _tokens(HostPools(memory.pools))
    if memory.least_pools_bytes == memory.most_pools_bytes:
        return most
    # Between the bounds of a ratio the pools shrink alike, so as the first of them does.
    taken = memory.pools[0].allocations_bytes[0]
    least_bytes = memory.least_pools_bytes[0] if memory.least_pools_bytes else 0
    if request.release.pinned_power_of_two:
        least_bytes //= 2  # rounded up to a power of two: the tokens take more than half of it
    least = most.least * least_bytes // taken // request.page_tokens * request.page_tokens
    return Bounds(least, most.most)


def _sized_tokens(deployment: Deployment, request: PoolRequest) -> Bounds:
    """Return the L2 tokens of one group for ``--hicache-size``.

    Least and most differ for sliding windows if the GPU's size is not known exactly.
    """
    counts: list[int | None] = [None]
    if model_of(request).sliding is not None:
        device, page = ratio_tokens(deployment.sized, request), request.page_tokens
        if isinstance(device, Unknown):
            counts = [page, _MOST_DEVICE_TOKENS]
        else:
            counts = [max(device.least, page), max(device.most, page)]
    bounds: list[Bounds] = []
    for count in counts:
        for stage in range(request.pp):
            draft = request.draft if stage == request.pp - 1 else None
            asked = request._replace(stage=stage, draft=draft, device_tokens=count)
            pools = host_pools(asked)
            if not isinstance(pools, HostPools):  # bounds, or Unknown: not told apart by tokens
                raise UnknownFactError(Unknown(pools.reason))
            bounds.append(_tokens(pools))
    # A token is reusable where every stage has it.
    highest = min if len(counts) == 1 else max
    return Bounds(min(each.least for each in bounds), highest(each.most for each in bounds))


def _tokens(pools: HostPools) -> Bounds:
    """Return the main pool's tokens; at least those of a smaller pool for sliding windows."""
    main = pools.pools[0].tokens
    windows = [host_pool.tokens for host_pool in pools.pools if host_pool.kind is PoolKind.WINDOW]
    return Bounds(min([main, *windows]), main)


# Measured: what mooncake_master 0.3.13.post1 grows by for each key of 100 characters with one
# replica in memory (54 MiB without any, 316 MiB with 300,000).
MASTER_KEY_BYTES = 920
_CACHELIB = "the cachelib allocator's rounding is not computed here: the default one is offset"


def pool_tier(
    deployment: Deployment,
    objects: PageObjects | Unknown,
    store_segments: tuple[Segments, ...] | Unknown,
    eviction: Eviction | Unknown,
) -> Tier | None:
    """Return the store's pool, L3: what it holds before its master evicts.

    Args:
        objects: Of a page.
        store_segments: The segments of the pool.

    Returns:
        None if the server has no store.
    """
    if deployment.server.store is None:
        return None
    try:
        parts, limit, page = require(store_segments), require(eviction), require(objects)
        if limit.cachelib:
            raise UnknownFactError(Unknown(_CACHELIB))
    except UnknownFactError as error:
        formula = "" if isinstance(store_segments, Unknown) else _parts_text(store_segments)
        return Tier("L3", "Mooncake pool", error.fact, error.fact, formula, keys=error.fact)
    every = page._replace(whole=(*page.whole, *page.beside), beside=())
    pages = Bounds(*sorted(pages_held(each, parts, limit) for each in (every, page)))
    sizes = pages.least * sum(every.whole), pages.most * sum(page.whole)
    number = max(pages.most * len(page.whole), pages.least * len(every.whole))
    size, tokens = Bounds(min(sizes), max(sizes)), pages.times(page.page_tokens)
    keys = Keys(number, number * MASTER_KEY_BYTES)
    return Tier("L3", "Mooncake pool", size, tokens, _formula(page, parts, limit), keys=keys)


def pages_held(objects: PageObjects, parts: tuple[Segments, ...], eviction: Eviction) -> int:
    """Return how many whole pages the pool takes before its master evicts, by its watermark or
    because an object finds no place.

    Args:
        parts: The pool's segments.
    """
    total = sum(part.bytes * part.number for part in parts)
    by_watermark = int(total * eviction.watermark) // sum(objects.whole)
    if len(set(objects.whole)) == 1:
        each = sum(objects_that_fit(objects.whole[0], part.bytes) * part.number for part in parts)
        return min(by_watermark, each // len(objects.whole))
    by_place = 0
    for part in parts:
        taken = [occupied_bytes(size, part.bytes) for size in objects.whole]
        if None not in taken:
            by_place += part.bytes // sum(size or 0 for size in taken) * part.number
    return min(by_watermark, by_place)


def _parts_text(parts: tuple[Segments, ...]) -> str:
    return " + ".join(f"{_times(n)}{format_bytes(each)} ({what})" for what, each, n in parts)


def _times(number: int) -> str:
    return "" if number == 1 else f"{number} x "


def _formula(objects: PageObjects, parts: tuple[Segments, ...], eviction: Eviction) -> str:
    """Explain the pool's capacity: its segments, its watermark, and the objects of a page."""
    each = ", ".join(_object_text(size, parts[0].bytes) for size in sorted(set(objects.whole)))
    count = len(objects.whole)
    return (
        f"{_parts_text(parts)}, evicts above {eviction.watermark:g} ({eviction.origin}); a page of "
        f"{objects.page_tokens} tokens is {count} object{'s' * (count > 1)} of {each}"
    )


def _object_text(object_bytes: int, segment_bytes: int) -> str:
    size, place = format_bytes(object_bytes), occupied_bytes(object_bytes, segment_bytes)
    if place is None:
        return f"{size} (larger than any bin)"
    return size if place == object_bytes else f"{size} (takes {format_bytes(place)})"


def offload_tier(
    processes: tuple[LaunchProcess, ...],
    counts: Mapping[str, int],
    objects: PageObjects | Unknown,
    folders: Mapping[str, Folder | Unknown],
    mooncake: MooncakeRelease,
) -> Tier | None:
    """Return the SSD tier; None if nothing is offloaded to disks.

    Args:
        counts: How many of each process run, by name.
        folders: Offload folders by path. The tier's size is Unknown if a process has no limit and
            its disk was not read.
    """
    limit, parts, unread = 0, [], None
    for process in processes:
        offload = offload_of(process)
        if offload is None:
            continue
        count = counts.get(process.name, 1)
        path = offload.folder.value
        folder = folders.get(path) if isinstance(path, str) else None
        each, why = offload.limit_bytes, offload.limit_origin
        if quota := bucket_quota(process, mooncake):
            each, why = quota
        if (each, why) == NO_QUOTA and isinstance(folder, Folder):
            each, why = folder.size_bytes * 9 // 10, f"90% of the disk of {path}"
        if not each:
            unread = Unknown(f"no limit binds, and the disk of {path} was not read: give {QUOTA}")
        elif isinstance(folder, Folder) and folder.available_bytes < each * count:
            each, why = folder.available_bytes // count, f"free in {path}"
        limit += each * count
        parts.append(f"{_times(count)}{format_bytes(each)} ({why})")
    if not parts:
        return None
    if unread is not None:
        return Tier("SSD", "SSD offload", unread, unread, "")
    formula = f"{' + '.join(parts)}, if the disk has as much"
    size = Bounds(limit, limit)
    if isinstance(objects, Unknown):
        return Tier("SSD", "SSD offload", size, objects, formula)
    page = objects.page_tokens
    most = limit // sum(objects.whole) * page
    least = limit // (sum(objects.whole) + sum(objects.beside)) * page
    return Tier("SSD", "SSD offload", size, Bounds(least, most), formula)


_WATERMARK, _LEASE = "eviction_high_watermark_ratio", "default_kv_lease_ttl"
NO_SEGMENT = (
    "no process of the launch contributes memory to the store: give --other-segments with what "
    "other hosts contribute"
)


class Segments(NamedTuple):
    """``number`` equal segments of ``bytes`` each.

    Attributes:
        what: Who contributes them, in words.
    """

    what: str
    bytes: int
    number: int


class Eviction(NamedTuple):
    """When the master evicts, and how much.

    Attributes:
        watermark: The master evicts once a larger part of the pool (0 to 1) is full.
        origin: Where the watermark comes from.
        ratio: The part of all objects that goes at once.
        lease_seconds: How long an object that was asked for stays.
        cachelib: The master uses its other allocator.
    """

    watermark: float
    origin: str
    ratio: float = 0.05
    lease_seconds: float = 10.0
    cachelib: bool = False


def _workers(consumer: Consumer, client: Client, inputs: LaunchInputs, number: int) -> int:
    """Return how many workers of one host have a client.

    Raises:
        UnknownFactError: If a fact that it needs is not known.
    """
    alone = client.first_if_mla and require(inputs.geometry[number]).kind is AttentionKind.MLA
    return require(consumer.engines if alone else consumer.ranks)


@or_unknown
def segments(inputs: LaunchInputs, cluster: Cluster) -> tuple[Segments, ...]:
    """Return all segments of the cluster's store.

    Returns:
        Unknown if a process's segments are not known, or no process contributes.

    Raises:
        UsageError: If the hosts are no multiple of a server's hosts.
    """
    hosts = cluster_hosts(inputs, cluster)
    every: list[Segments] = []
    for process in inputs.processes:
        clients: list[tuple[StoreClient | Unknown | None, int]] = []
        if process.server is not None:
            ranks = require(server_ranks(process.server))
            pools = inputs.memory.get(process.number)
            if not process.server.links and pools is not None and pools.most_pools_bytes == ():
                continue  # nothing to attach a storage backend to
            count = ranks.tp * ranks.pp * ranks.replicas
            count *= instances(cluster, ranks.nnodes, process)
            clients = [(server_client(process.server, ranks, inputs.sglang), count)]
        elif process.consumer is not None:
            clients = [
                (x.store.client, hosts * _workers(process.consumer, x, inputs, process.number))
                for x in process.consumer.clients
            ]
        elif process.store is not None:
            clients = [(process.store.client, hosts)]
        for attached, count in clients:
            client = require(attached)
            if client is not None and client.segment_bytes > 0:
                what = "ranks" if process.server is not None else process.kind.value
                every.append(Segments(what, client.segment_bytes, count))
    if cluster.other_bytes:
        every.append(Segments("--other-segments", cluster.other_bytes, 1))
    if not every:
        raise UnknownFactError(Unknown(NO_SEGMENT))
    return tuple(every)


@or_unknown
def eviction(processes: tuple[LaunchProcess, ...], mooncake: str, wanted: float | None) -> Eviction:
    """Return when the launch's master evicts.

    Args:
        wanted: The watermark to take; for None that of the master's flag, else the default of the
            release ``mooncake``. Unknown for an unresolved flag; raises UsageError for an invalid
            one.
    """
    release = mooncake_release(mooncake)
    watermark, ratio = release.eviction_watermark, release.eviction_ratio
    origin, lease = f"default of Mooncake {mooncake}", release.lease_seconds
    cachelib = False
    for process in processes:
        if process.kind is not ProcessKind.MASTER:
            continue
        arguments = process.arguments
        if (word := value_of(arguments, _WATERMARK)) is not None:
            watermark, origin = _part_of_flag(word, _WATERMARK), f"--{_WATERMARK} at {word.origin}"
        if (word := value_of(arguments, "eviction_ratio")) is not None:
            ratio = _part_of_flag(word, "eviction_ratio")
        if (word := value_of(arguments, _LEASE)) is not None:
            lease = _duration_seconds(word, _LEASE)
        allocator = value_of(arguments, "memory_allocator")
        cachelib = allocator is not None and allocator.text == "cachelib"
    if wanted is not None:
        watermark, origin = wanted, "--eviction-watermark"
    return Eviction(watermark, origin, ratio, lease, cachelib)


def _duration_seconds(word: Word, name: str) -> float:
    """Return the seconds of a master's flag: ``10000`` (milliseconds), ``500ms``, ``10s``, ``5m``
    or ``1h``.

    Raises:
        UnknownFactError: If it is unresolved, and UsageError for other texts.
    """
    if word.unresolved:
        raise UnknownFactError(why_unresolved(word))
    match = re.fullmatch(r"\s*([0-9]+)\s*(ms|s|m|h)?\s*", word.text, re.IGNORECASE)
    if match is None:
        what = "a time, which is milliseconds, or a number with ms, s, m or h, such as 10s"
        raise _invalid(word, name, what)
    unit = (match[2] or "ms").lower()
    return int(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def _part_of_flag(word: Word, name: str) -> float:
    """Return a master's flag as a part of the pool, 0 to 1.

    Raises:
        UnknownFactError: If it is unresolved, and UsageError for other texts.
    """
    if word.unresolved:
        raise UnknownFactError(why_unresolved(word))
    if (part := parse_part(word.text)) is None:
        raise _invalid(word, name, "a part of the pool, which is 0 to 1, such as 0.9")
    return part


def _invalid(word: Word, name: str, what: str) -> UsageError:
    where = f"mooncake_master --{name}={word.text} at {word.origin}"
    return UsageError(f"{where}: not {what}; the master does not start with it")
