"""An SGLang server as processes with memory: its ranks on this host, their L2 pools and segments.

Where a variable that is not set decides a number, there is no launch, and the reason names the
variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checks.base.needs import ProcessId
from checks.base.units import GIB, MIB
from checks.base.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SegmentDivisor, SglangRelease
from preflight.launches.source import Word
from preflight.processes.processes import SglangServer
from preflight.programs.consumer_grammar import sglang_segment_bytes
from preflight.programs.memory_records import (
    SGLANG_LOCAL_BUFFER_BYTES,
    OwnAllocator,
    Process,
    Protocol,
    StoreClient,
)
from preflight.programs.store_environment import Note, read_store_settings
from preflight.programs.store_processes import offload_buffer_bytes
from preflight.sglang.pd_metadata import Metadata
from preflight.sglang.ranks import Ranks, server_ranks

__all__ = [
    "Ranks",
    "configured_segment",
    "own_allocator",
    "plain_environment",
    "segment_per_rank",
    "server_client",
    "server_processes",
    "server_ranks",
]

# SGLANG_HUGEPAGE_SIZE after strip and upper; anything else is a warning and 4 KiB pages.
_HUGEPAGE_SIZES = {"2MB": 2 * MIB, "1GB": GIB}
# These bring an allocator of their own, or share memory through /dev/shm: no huge pages of these.
_OTHER_ALLOCATORS = ("shm", "mori", "tensorcast")


def segment_per_rank(size: int, ranks: Ranks, release: SglangRelease) -> int:
    """Return what one rank contributes of ``global_segment_size``."""
    if release.segment_divisor is SegmentDivisor.ONE:
        return size
    group = ranks.tp // ranks.attention_dp
    if release.segment_divisor is SegmentDivisor.TP_PP:
        group *= ranks.pp
    return size // max(1, group)


def configured_segment(server: SglangServer) -> int | None:
    """``global_segment_size`` in bytes, as SGLang reads it; None where it cannot."""
    value = server.store.value("global_segment_size") if server.store else None
    try:
        return None if value is None or isinstance(value, Unknown) else sglang_segment_bytes(value)
    except ValueError:
        return None


def server_client(
    server: SglangServer, ranks: Ranks, release: SglangRelease
) -> StoreClient | Unknown | None:
    """Return the store client of one rank; None without the Mooncake store."""
    store = server.store
    if store is None:
        return None
    size, protocol = store.value("global_segment_size"), store.value("protocol")
    offload, standalone = store.value("enable_ssd_offload"), store.value("standalone_storage")
    for value in (size, protocol, offload, standalone):
        if isinstance(value, Unknown):
            return value
    kind = Protocol.TCP if protocol == "tcp" else Protocol.RDMA
    if standalone:
        return StoreClient(0, SGLANG_LOCAL_BUFFER_BYTES, kind, dummy=True)
    try:
        segment = max(0, segment_per_rank(sglang_segment_bytes(size), ranks, release))
    except ValueError as error:
        return Unknown(f"global_segment_size {size!r}: {error}")
    buffer = offload_buffer_bytes(server.environment) if offload else None
    local = SGLANG_LOCAL_BUFFER_BYTES
    if release.store.local_buffer:
        # Up to 0.5.5 the extra config could ask for another, and it was divided as the segment is.
        asked = store.local_buffer_bytes
        local = segment_per_rank(local if asked is None else asked, ranks, release)
    return StoreClient(segment, local, kind, buffer)


def own_allocator(
    server: SglangServer, release: SglangRelease, mooncake: MooncakeRelease
) -> OwnAllocator | None:
    """SGLang's own allocator of host pools; None where Mooncake's takes them.

    Mooncake's came with 0.3.8.post1: with an older one SGLang warns and falls back to its own
    (``get_allocator_from_storage``, mem_cache/pool_host/common.py). The decode offload manager
    asked for none before SGLang 0.5.17.
    """
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    alone = offloads and not server.hicache and not release.decode_offload_allocates
    if server.store is not None and mooncake.hugepages and not alone:
        return None
    word = server.environment.get("SGLANG_HUGEPAGE_SIZE")
    backend = server.value("hicache_storage_backend")
    if word is None or word.unresolved or not release.hugepage_environment:
        return OwnAllocator()
    if backend in _OTHER_ALLOCATORS or (backend == "dynamic" and _shares_memory(server)):
        return OwnAllocator()
    return OwnAllocator(_HUGEPAGE_SIZES.get(word.text.strip().upper()))


def _shares_memory(server: SglangServer) -> bool:
    """A dynamic backend's extra config that says ``"allocator": "shm"``."""
    import json

    text = server.value("hicache_storage_backend_extra_config")
    try:
        config = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("allocator") == "shm"


def server_processes(
    number: int,
    server: SglangServer,
    ranks: Ranks,
    pools_bytes: tuple[int, ...],
    clients: Sequence[StoreClient | None],
    mooncake: MooncakeRelease,
    nodes: tuple[int | None, ...],
    allocator: OwnAllocator | None,
    metadata: Metadata,
    split_pools: tuple[bool, ...] = (),
) -> tuple[tuple[Process, ...], tuple[Note, ...]]:
    """Return each rank of process ``number`` here as a process, and what its environment misreads.

    clients: each rank's own, None without the store. split_pools: as ``Process`` has it.
    """
    settings, notes = read_store_settings(plain_environment(server.environment), mooncake)
    if server.store is None:
        # Nothing of Mooncake's is mapped: the page size in question is that of SGLang's allocator.
        settings = settings._replace(hugepages=False)
        if allocator is not None and allocator.hugepage_bytes is not None:
            settings = settings._replace(hugepage_bytes=allocator.hugepage_bytes)
    processes = []
    for rank in range(ranks.here):
        client = clients[rank]
        processes.append(
            Process(
                f"{server.command.origin} rank {rank}",
                settings,
                pools_bytes,
                () if client is None else (client,),
                nodes[rank],
                allocator,
                metadata.bytes,
                metadata.registered,
                split_pools,
                ProcessId(number, rank),
            )
        )
    return tuple(processes), (*notes, *metadata.notes)


def plain_environment(environment: Mapping[str, Word]) -> dict[str, str]:
    """Variables as text; one that holds an unresolved variable is left out."""
    return {name: word.text for name, word in environment.items() if not word.unresolved}
