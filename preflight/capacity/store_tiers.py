"""L3 and SSD: what the store holds of one server's pages.

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

from checks.base.units import format_bytes
from checks.base.unknown import Unknown, UnknownFactError, known, or_unknown
from checks.releases.mooncake import mooncake_release
from checks.storage.facts import Folder
from preflight.base.usage_error import UsageError
from preflight.capacity.deployment import (
    Bounds,
    Cluster,
    Deployment,
    Keys,
    Tier,
    cluster_hosts,
    instances,
)
from preflight.capacity.page_objects import PageObjects, objects_that_fit, occupied_bytes
from preflight.consumers.consumer import Client, Consumer
from preflight.launches.source import Word
from preflight.processes.processes import LaunchProcess, ProcessKind
from preflight.processes.storage import offload_of
from preflight.programs.memory_records import StoreClient
from preflight.programs.mooncake_flags import value_of
from preflight.programs.sglang_arguments import unresolved
from preflight.sglang.launch import server_client, server_ranks
from preflight.sglang.model_geometry import AttentionKind
from preflight.sizing.launch_inputs import LaunchInputs

# Measured: what mooncake_master 0.3.13.post1 grows by for each key of 100 characters with one
# replica in memory (54 MiB without any, 316 MiB with 300,000).
MASTER_KEY_BYTES = 920
_CACHELIB = "the cachelib allocator's rounding is not computed here: the default one is offset"


def pool_tier(
    deployment: Deployment,
    objects: PageObjects | Unknown,
    pool: tuple[Segments, ...] | Unknown,
    eviction: Eviction | Unknown,
) -> Tier | None:
    """Return the server's L3 tier; None without a store."""
    if deployment.server.store is None:
        return None
    found = _full_pool(objects, pool, eviction)
    if isinstance(found, Unknown):
        said = "" if isinstance(pool, Unknown) else _sum(pool)
        return Tier("L3", "Mooncake pool", found, found, said, keys=found)
    return found


@or_unknown
def _full_pool(
    objects: PageObjects | Unknown,
    pool: tuple[Segments, ...] | Unknown,
    eviction: Eviction | Unknown,
) -> Tier:
    parts, limit, page = known(pool), known(eviction), known(objects)
    if limit.cachelib:
        raise UnknownFactError(Unknown(_CACHELIB))
    every = page._replace(whole=(*page.whole, *page.beside), beside=())
    pages = Bounds(*sorted(pages_held(one, parts, limit) for one in (every, page)))
    sizes = pages.least * sum(every.whole), pages.most * sum(page.whole)
    number = max(pages.most * len(page.whole), pages.least * len(every.whole))
    size, tokens = Bounds(min(sizes), max(sizes)), pages.times(page.page_tokens)
    keys = Keys(number, number * MASTER_KEY_BYTES)
    return Tier("L3", "Mooncake pool", size, tokens, _formula(page, parts, limit), keys=keys)


def pages_held(objects: PageObjects, pool: tuple[Segments, ...], eviction: Eviction) -> int:
    """Return how many whole pages the pool takes before its master evicts."""
    total = sum(part.bytes * part.number for part in pool)
    by_watermark = int(total * eviction.watermark) // sum(objects.whole)
    if len(set(objects.whole)) == 1:
        each = sum(objects_that_fit(objects.whole[0], part.bytes) * part.number for part in pool)
        by_place = each // len(objects.whole)
    else:
        by_place = 0
        for part in pool:
            taken = [occupied_bytes(size, part.bytes) for size in objects.whole]
            if None not in taken:
                by_place += part.bytes // sum(size or 0 for size in taken) * part.number
    return min(by_watermark, by_place)


def _sum(pool: tuple[Segments, ...]) -> str:
    return " + ".join(
        f"{_times(part.number)}{format_bytes(part.bytes)} ({part.what})" for part in pool
    )


def _times(number: int) -> str:
    return "" if number == 1 else f"{number} x "


def _formula(objects: PageObjects, pool: tuple[Segments, ...], eviction: Eviction) -> str:
    sizes = sorted(set(objects.whole))
    largest = pool[0].bytes
    each = ", ".join(_occupied(size, largest) for size in sizes)
    count = len(objects.whole)
    return (
        f"{_sum(pool)}, evicts above {eviction.watermark:g} ({eviction.origin}); a page of "
        f"{objects.page_tokens} tokens is {count} object{'s' * (count > 1)} of {each}"
    )


def _occupied(object_bytes: int, segment_bytes: int) -> str:
    size, place = format_bytes(object_bytes), occupied_bytes(object_bytes, segment_bytes)
    if place is None:
        return f"{size} (larger than any bin)"
    return size if place == object_bytes else f"{size} (takes {format_bytes(place)})"


def offload_tier(
    processes: tuple[LaunchProcess, ...],
    counts: Mapping[str, int],
    objects: PageObjects | Unknown,
    folders: Mapping[str, Folder | Unknown],
) -> Tier | None:
    """Return what is offloaded to disks; None where nothing is.

    counts: of each process, by its name.
    """
    limit, parts = 0, []
    for process in processes:
        offload = offload_of(process)
        if offload is None:
            continue
        count = counts.get(process.name, 1)
        path = offload.folder.value
        folder = folders.get(path) if isinstance(path, str) else None
        each, said = offload.limit_bytes, offload.limit_origin
        if isinstance(folder, Folder) and folder.available_bytes < each * count:
            each, said = folder.available_bytes // count, f"free in {path}"
        limit += each * count
        parts.append(f"{_times(count)}{format_bytes(each)} ({said})")
    if not parts:
        return None
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
    """``number`` segments of ``bytes`` each. what: who contributes them."""

    what: str
    bytes: int
    number: int


class Eviction(NamedTuple):
    """When the master evicts. watermark: the part of the pool above which. origin: of that number.

    ratio: the part of all objects that goes at once. lease_seconds: how long an object that was
    asked for stays. cachelib: the master's other allocator.
    """

    watermark: float
    origin: str
    ratio: float = 0.05
    lease_seconds: float = 10.0
    cachelib: bool = False


def _workers(consumer: Consumer, client: Client, inputs: LaunchInputs, number: int) -> int:
    """Return how many workers of one host have a client. Raises UnknownFactError."""
    if client.in_scheduler:
        return known(consumer.engines)
    if client.first_if_mla and known(inputs.geometry[number]).kind is AttentionKind.MLA:
        return known(consumer.engines)
    return known(consumer.ranks)


@or_unknown
def segments(inputs: LaunchInputs, cluster: Cluster) -> tuple[Segments, ...]:
    """Return every segment of the cluster that is known of; Unknown where one process's is not."""
    hosts = cluster_hosts(inputs, cluster)
    found: list[Segments] = []
    for process in inputs.processes:
        clients: list[tuple[StoreClient | Unknown | None, int]] = []
        if process.server is not None:
            ranks = known(server_ranks(process.server))
            pools = inputs.memory.get(process.number)
            if pools is not None and pools.most_pools_bytes == ():
                continue  # nothing to attach a storage backend to
            each = instances(cluster, ranks.nnodes, process)
            count = ranks.tp * ranks.pp * ranks.replicas * each
            clients = [(server_client(process.server, ranks, inputs.sglang), count)]
        elif process.consumer is not None:
            clients = [
                (one.store.client, hosts * _workers(process.consumer, one, inputs, process.number))
                for one in process.consumer.clients
            ]
        elif process.store is not None:
            clients = [(process.store.client, hosts)]
        for one, count in clients:
            client = known(one)
            if client is not None and client.segment_bytes > 0:
                what = "ranks" if process.server is not None else process.kind.value
                found.append(Segments(what, client.segment_bytes, count))
    if cluster.other_bytes:
        found.append(Segments("--other-segments", cluster.other_bytes, 1))
    if not found:
        raise UnknownFactError(Unknown(NO_SEGMENT))
    return tuple(found)


@or_unknown
def eviction(processes: tuple[LaunchProcess, ...], mooncake: str, given: float | None) -> Eviction:
    """Return how the launch's own master evicts, else ``given``, else ``mooncake``'s default."""
    release = mooncake_release(mooncake)
    watermark, ratio = release.eviction_watermark, release.eviction_ratio
    origin, lease = f"default of Mooncake {mooncake}", release.lease_seconds
    cachelib = False
    for process in processes:
        if process.kind is not ProcessKind.MASTER:
            continue
        words = process.arguments
        if (word := value_of(words, _WATERMARK)) is not None:
            watermark, origin = _ratio(word, _WATERMARK), f"--{_WATERMARK} at {word.origin}"
        if (word := value_of(words, "eviction_ratio")) is not None:
            ratio = _ratio(word, "eviction_ratio")
        if (word := value_of(words, _LEASE)) is not None:
            lease = _duration_seconds(word, _LEASE)
        allocator = value_of(words, "memory_allocator")
        cachelib = allocator is not None and allocator.text == "cachelib"
    if given is not None:
        watermark, origin = given, "--eviction-watermark"
    return Eviction(watermark, origin, ratio, lease, cachelib)


def _duration_seconds(word: Word, name: str) -> float:
    """Return the seconds of ``10000`` (milliseconds), ``500ms``, ``10s``, ``5m`` or ``1h``."""
    if word.unresolved:
        raise UnknownFactError(unresolved(word))
    found = re.fullmatch(r"\s*([0-9]+)\s*(ms|s|m|h)?\s*", word.text, re.IGNORECASE)
    if found is None:
        raise UsageError(
            f"mooncake_master --{name}={word.text} at {word.origin}: not a time, which is "
            "milliseconds, or a number with ms, s, m or h, such as 10s; the master does not start "
            "with it"
        )
    unit = (found[2] or "ms").lower()
    return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def _ratio(word: Word, name: str) -> float:
    if word.unresolved:
        raise UnknownFactError(unresolved(word))
    try:
        number = float(word.text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise UsageError(
            f"mooncake_master --{name}={word.text} at {word.origin}: not a part of the pool, which "
            "is 0 to 1, such as 0.9; the master does not start with it"
        )
    return number
