"""The memory that a launch's processes contribute to the store, and when its master evicts.

Source: Mooncake ``mooncake-store/include/types.h`` (defaults, by release), ``master.cpp`` (flags)
and ``master_service.cpp`` (``EvictionThreadFunc``: objects count with their own size, not with the
bins that they take).
"""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from preflight.base.usage_error import UsageError
from preflight.capacity.deployment import Cluster, cluster_hosts, instances
from preflight.launches.source import Word
from preflight.processes.processes import Kind, LaunchProcess
from preflight.programs.memory_records import StoreClient
from preflight.programs.mooncake_flags import value_of
from preflight.programs.sglang_arguments import unresolved_reason
from preflight.sglang.launch import server_client
from preflight.sglang.ranks import server_ranks
from preflight.sizing.launch_inputs import LaunchInputs

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
