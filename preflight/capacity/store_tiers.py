"""L3 and SSD: what the store holds of one server's pages.

The pool evicts where its objects pass the watermark, or where the next one finds no place: the
allocator's rounding to bins counts for the second alone. The least of the two is what it holds.

Source: Mooncake ``mooncake-store/include/types.h`` (defaults, by release), ``master.cpp`` (flags)
and ``master_service.cpp`` (``EvictionThreadFunc``: objects count with their own size, not with the
bins that they take).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from checks.storage.facts import Folder
from preflight.base.usage_error import UsageError
from preflight.capacity.deployment import Cluster, Deployment, cluster_hosts, instances
from preflight.capacity.page_objects import PageObjects, objects_that_fit, occupied_bytes
from preflight.capacity.records import Bounds, Keys, Tier
from preflight.launches.source import Word
from preflight.processes.processes import Kind, LaunchProcess
from preflight.processes.storage import offload_of
from preflight.programs.memory_records import StoreClient
from preflight.programs.mooncake_flags import value_of
from preflight.programs.sglang_arguments import unresolved_reason
from preflight.sglang.launch import server_client
from preflight.sglang.ranks import server_ranks
from preflight.sizing.launch_inputs import LaunchInputs

# Measured: what mooncake_master 0.3.13.post1 grows by for each key of 100 characters with one
# replica in memory (54 MiB without any, 316 MiB with 300,000).
MASTER_KEY_BYTES = 920
_CACHELIB = "the cachelib allocator's rounding is not computed here: the default one is offset"


class StoreTier(NamedTuple):
    """The pool, and what its master keeps when it is full."""

    tier: Tier
    keys: Keys | Unknown


def pool_tier(
    deployment: Deployment,
    objects: PageObjects | Unknown,
    pool: tuple[Segments, ...] | Unknown,
    eviction: Eviction | Unknown,
) -> StoreTier | None:
    """L3; None for a server without a store."""
    if deployment.server.store is None:
        return None
    for missing in (pool, eviction, objects):
        if isinstance(missing, Unknown):
            return _unknown(missing, pool)
    assert not isinstance(objects, Unknown)
    assert not isinstance(pool, Unknown)
    assert not isinstance(eviction, Unknown)
    if eviction.cachelib:
        return _unknown(Unknown(_CACHELIB), pool)
    every = objects._replace(whole=(*objects.whole, *objects.beside), beside=())
    least, most = sorted((pages_held(every, pool, eviction), pages_held(objects, pool, eviction)))
    pages = Bounds(least, most)
    tokens = pages.times(objects.page_tokens)
    size = Bounds(
        min(pages.least * sum(every.whole), pages.most * sum(objects.whole)),
        max(pages.least * sum(every.whole), pages.most * sum(objects.whole)),
    )
    number = max(pages.most * len(objects.whole), pages.least * len(every.whole))
    return StoreTier(
        Tier("L3", "Mooncake pool", size, tokens, _formula(objects, pool, eviction)),
        Keys(number, number * MASTER_KEY_BYTES),
    )


def _unknown(why: Unknown, pool: tuple[Segments, ...] | Unknown) -> StoreTier:
    said = "" if isinstance(pool, Unknown) else _sum(pool)
    return StoreTier(Tier("L3", "Mooncake pool", why, why, said), why)


def pages_held(objects: PageObjects, pool: tuple[Segments, ...], eviction: Eviction) -> int:
    """Whole pages that the pool takes before its master evicts."""
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
        f"{format_bytes(part.bytes)} ({part.what})"
        if part.number == 1
        else f"{part.number} x {format_bytes(part.bytes)} ({part.what})"
        for part in pool
    )


def _formula(objects: PageObjects, pool: tuple[Segments, ...], eviction: Eviction) -> str:
    sizes = sorted(set(objects.whole))
    largest = pool[0].bytes
    taken = [occupied_bytes(size, largest) for size in sizes]
    each = ", ".join(
        f"{format_bytes(size)}"
        if place == size
        else f"{format_bytes(size)} (takes {format_bytes(place)})"
        if place is not None
        else f"{format_bytes(size)} (larger than any bin)"
        for size, place in zip(sizes, taken, strict=True)
    )
    return (
        f"{_sum(pool)}, evicts above {eviction.watermark:g} ({eviction.origin}); a page of "
        f"{objects.page_tokens} tokens is {_objects(len(objects.whole))} of {each}"
    )


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"


def offload_tier(
    processes: tuple[LaunchProcess, ...],
    counts: Mapping[str, int],
    objects: PageObjects | Unknown,
    folders: Mapping[str, Folder | Unknown],
) -> Tier | None:
    """What is offloaded to disks; None where nothing is. counts: of each process, by its name."""
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
        times = "" if count == 1 else f"{count} x "
        parts.append(f"{times}{format_bytes(each)} ({said})")
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


_WATERMARK = "eviction_high_watermark_ratio"
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
    """watermark: the part of the pool above which the master evicts. origin: where that stands.

    cachelib: the master's other allocator.
    """

    watermark: float
    origin: str
    cachelib: bool = False


def segments(inputs: LaunchInputs, cluster: Cluster) -> tuple[Segments, ...] | Unknown:
    """Every segment of the cluster that is known of; Unknown where one process's is not."""
    hosts = cluster_hosts(inputs, cluster)
    found: list[Segments] = []
    for process in inputs.processes:
        client: StoreClient | Unknown | None = None
        count = hosts
        if process.server is not None:
            ranks = server_ranks(process.server)
            if isinstance(ranks, Unknown):
                return ranks
            pools = inputs.memory.get(process.number)
            if pools is not None and pools.most_pools_bytes == ():
                continue  # nothing to attach a storage backend to
            client = server_client(process.server, ranks, inputs.sglang)
            each = instances(cluster, ranks.nnodes, process)
            count = ranks.tp * ranks.pp * ranks.replicas * each
        elif process.store is not None:
            client = process.store.client
        if isinstance(client, Unknown):
            return client
        if client is not None and client.segment_bytes > 0:
            what = "ranks" if process.server is not None else process.kind.value
            found.append(Segments(what, client.segment_bytes, count))
    if cluster.other_bytes:
        found.append(Segments("--other-segments", cluster.other_bytes, 1))
    return tuple(found) or Unknown(NO_SEGMENT)


def eviction(
    processes: tuple[LaunchProcess, ...], mooncake: str, given: float | None
) -> Eviction | Unknown:
    """As the launch's own master is told, else ``given``, else the default of ``mooncake``."""
    watermark = mooncake_release(mooncake).eviction_watermark
    origin = f"default of Mooncake {mooncake}"
    cachelib = False
    for process in processes:
        if process.kind is not Kind.MASTER:
            continue
        word = value_of(process.arguments, _WATERMARK)
        if word is not None:
            told = _ratio(word, _WATERMARK)
            if isinstance(told, Unknown):
                return told
            watermark, origin = told, f"--{_WATERMARK} at {word.origin}"
        allocator = value_of(process.arguments, "memory_allocator")
        cachelib = allocator is not None and allocator.text == "cachelib"
    if given is not None:
        watermark, origin = given, "--eviction-watermark"
    return Eviction(watermark, origin, cachelib)


def _ratio(word: Word, name: str) -> float | Unknown:
    if word.unresolved:
        return Unknown(unresolved_reason(word))
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
