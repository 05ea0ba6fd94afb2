"""An SGLang server as processes with memory: its ranks on this host, their L2 pools and segments.

Where a model's geometry is unknown the L2 pool is a bound and says so; where a variable that is not
set decides a number, there is no launch, and the reason names the variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.unknown import Unknown
from preflight.consumer_grammar import sglang_segment_bytes
from preflight.device_pool import DeviceRequest, device_tokens
from preflight.host_pools import HostBytes, HostPool, HostPools, PoolRequest, host_pools
from preflight.launch import SGLANG_LOCAL_BUFFER_BYTES, Process, Protocol, StoreClient
from preflight.launch_processes import SglangServer
from preflight.launch_source import Word
from preflight.model_geometry import ModelGeometry
from preflight.mooncake_versions import Release
from preflight.sglang_versions import SegmentDivisor, SglangRelease
from preflight.store_environment import Note, read_store_settings
from preflight.store_processes import offload_buffer_bytes

# --kv-cache-dtype: what one element takes; auto follows the model.
_ITEM_BYTES = {"fp8_e5m2": 1, "fp8_e4m3": 1, "bf16": 2, "bfloat16": 2, "auto": None}


class Ranks(NamedTuple):
    """How a server's ranks come to be: one process each, ``here`` of them on this host."""

    tp: int
    pp: int
    replicas: int
    attention_dp: int
    here: int


class Hardware(NamedTuple):
    """What a ratio depends on beside the launch."""

    geometry: ModelGeometry | Unknown
    gpu_bytes: int | Unknown
    weights_bytes: int | Unknown | None


class ServerMemory(NamedTuple):
    """The L2 pools of one rank, between two bounds; equal where they are exact.

    why: how the bounds come about, or what an exact answer was computed from. pools: one by one,
    at the upper bound, where they can be named.
    """

    least_pools_bytes: tuple[int, ...]
    most_pools_bytes: tuple[int, ...] | Unknown
    why: str
    pools: tuple[HostPool, ...] = ()


def server_ranks(server: SglangServer) -> Ranks | Unknown:
    """The ranks of ``server``; Unknown where a variable decides their number."""
    numbers = [
        server.number("tp_size"),
        server.number("pp_size"),
        server.replicas,
        server.attention_dp,
        server.number("nnodes"),
    ]
    known: list[int] = []
    for number in numbers:
        if isinstance(number, Unknown):
            return number
        known.append(number)
    tp, pp, replicas, attention_dp, nodes = known
    if min(known) < 1:
        return Unknown("tp, pp, dp and nnodes must be 1 or more")
    return Ranks(tp, pp, replicas, attention_dp, max(1, tp * pp * replicas // nodes))


def server_memory(
    server: SglangServer, ranks: Ranks, hardware: Hardware, release: SglangRelease
) -> ServerMemory:
    """The L2 pools of one rank of ``server``."""
    if not server.hicache:
        return ServerMemory((), (), "no hierarchical cache")
    request = _pool_request(server, ranks, hardware.geometry, release)
    if isinstance(request, Unknown):
        return ServerMemory((), request, request.reason)
    if request.size_gb > 0:
        return _bounds(host_pools(request), f"--hicache-size {request.size_gb}")
    device = _device_request(server, request, hardware)
    if isinstance(device, Unknown):
        return ServerMemory((), device, device.reason)
    tokens = device_tokens(device)
    if isinstance(tokens, Unknown):
        return ServerMemory((), tokens, f"--hicache-ratio {request.ratio:g}: {tokens.reason}")
    ends = [
        _bounds(host_pools(request._replace(device_tokens=count)), f"of {count} tokens on the GPU")
        for count in (tokens.least, tokens.most)
    ]
    why = f"--hicache-ratio {request.ratio:g} {ends[1].why}; {tokens.reason}"
    return ends[1]._replace(least_pools_bytes=ends[0].least_pools_bytes, why=why)


def _bounds(pools: HostPools | HostBytes | Unknown, asked: str) -> ServerMemory:
    if isinstance(pools, HostPools):
        sizes = pools.allocations_bytes
        return ServerMemory(sizes, sizes, f"{asked}, exact", pools.pools)
    if isinstance(pools, Unknown):
        return ServerMemory((), pools, f"{asked}: {pools.reason}")
    most = pools.most_bytes if isinstance(pools.most_bytes, Unknown) else (pools.most_bytes,)
    return ServerMemory((pools.least_bytes,), most, f"{asked}: {pools.reason}")


def _device_request(
    server: SglangServer, request: PoolRequest, hardware: Hardware
) -> DeviceRequest | Unknown:
    values = {
        name: server.value(name)
        for name in (
            "mem_fraction_static",
            "max_total_tokens",
            "chunked_prefill_size",
            "max_running_requests",
        )
    }
    for value in values.values():
        if isinstance(value, Unknown):
            return value
    return DeviceRequest(
        request,
        hardware.gpu_bytes,
        values["mem_fraction_static"],
        hardware.weights_bytes,
        values["max_total_tokens"],
        values["chunked_prefill_size"],
        values["max_running_requests"],
        "" if server.mode == "null" else server.mode,
    )


def _pool_request(
    server: SglangServer, ranks: Ranks, geometry: ModelGeometry | Unknown, release: SglangRelease
) -> PoolRequest | Unknown:
    size, ratio = server.value("hicache_size"), server.value("hicache_ratio")
    page, kv_type = server.value("page_size"), server.value("kv_cache_dtype")
    layout = server.value("hicache_mem_layout")
    for value in (size, ratio, page, kv_type, layout):
        if isinstance(value, Unknown):
            return value
    if kv_type not in _ITEM_BYTES:
        return Unknown(f"--kv-cache-dtype {kv_type} is not sized here")
    page_tokens = page or 1
    return PoolRequest(
        geometry=geometry,
        release=release,
        page_tokens=page_tokens,
        layout=layout,
        size_gb=max(0, size),
        # SGLang's default, where neither is given; it may shrink to what the host has.
        ratio=2.0 if ratio is None else ratio,
        tp=ranks.tp,
        pp=ranks.pp,
        dp=ranks.attention_dp,
        attention_dp=ranks.attention_dp > 1,
        kv_item_bytes=_ITEM_BYTES[kv_type],
    )


def segment_per_rank(size: int, ranks: Ranks, release: SglangRelease) -> int:
    """What one rank contributes of ``global_segment_size``."""
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
    """The store client of one rank; None without the Mooncake store."""
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
    return StoreClient(segment, SGLANG_LOCAL_BUFFER_BYTES, kind, buffer)


def server_processes(
    server: SglangServer,
    ranks: Ranks,
    pools_bytes: tuple[int, ...],
    client: StoreClient | None,
    mooncake: Release,
    nodes: tuple[int | None, ...],
) -> tuple[tuple[Process, ...], tuple[Note, ...]]:
    """One process for each rank on this host, and what its environment misreads."""
    settings, notes = read_store_settings(plain_environment(server.environment), mooncake)
    if client is None:
        # Without the Mooncake store, L2 comes from SGLang's own allocator.
        settings = settings._replace(hugepages=False)
    processes = tuple(
        Process(
            f"{server.command.origin} rank {rank}",
            settings,
            pools_bytes,
            () if client is None else (client,),
            nodes[rank],
        )
        for rank in range(ranks.here)
    )
    return processes, notes


def plain_environment(environment: Mapping[str, Word]) -> dict[str, str]:
    """Variables as text; one that holds an unresolved variable is left out."""
    return {name: word.text for name, word in environment.items() if not word.unresolved}
