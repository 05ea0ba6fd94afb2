"""The host pools of one rank of a server: the prefix cache's, and those of a decode server.

Where a model's geometry is unknown a pool is a bound and says so.
"""

from __future__ import annotations

from checks.base.unknown import Unknown
from checks.releases.sglang import SglangRelease
from preflight.processes.processes import SglangServer
from preflight.sglang.model_geometry import AttentionKind, ModelGeometry
from preflight.sglang.model_layers import LayerKind
from preflight.sglang.pool_bounds import (
    ServerMemory,
    bounds,
    by_default,
    by_host,
    by_ratio,
    refused,
)
from preflight.sglang.pool_request import (
    Hardware,
    Purpose,
    SizedServer,
    pool_request,
    ratio_tokens,
)
from preflight.sglang.ranks import Ranks

__all__ = ["Hardware", "ServerMemory", "server_memory"]


def server_memory(
    server: SglangServer, ranks: Ranks, hardware: Hardware, release: SglangRelease
) -> ServerMemory:
    """Return all host pools of one rank of ``server``."""
    sized = SizedServer(server, ranks, hardware, release)
    found = [_pool(sized, purpose) for purpose in _purposes(sized)]
    if not found:
        return ServerMemory((), (), "no hierarchical cache")
    if len(found) == 1:
        return found[0]
    most: tuple[int, ...] | Unknown = ()
    for part in found:
        if isinstance(most, Unknown) or isinstance(part.most_pools_bytes, Unknown):
            most = most if isinstance(most, Unknown) else part.most_pools_bytes
        else:
            most = (*most, *part.most_pools_bytes)
    named = all(part.pools for part in found)
    return ServerMemory(
        tuple(size for part in found for size in part.least_pools_bytes),
        most,
        "; ".join(part.why for part in found),
        tuple(pool for part in found for pool in part.pools) if named else (),
        next((part.refused for part in found if part.refused), None),
    )


def _purposes(sized: SizedServer) -> list[Purpose]:
    server = sized.server
    purposes = [Purpose.PREFIX_CACHE] if server.hicache else []
    if server.mode != "decode":
        return purposes
    if sized.value("disaggregation_decode_enable_offload_kvcache") is True:
        return [*purposes, Purpose.OFFLOAD]
    if not purposes and _backs_retraction_up(sized):
        purposes.append(Purpose.RETRACTION)
    return purposes


def _backs_retraction_up(sized: SizedServer) -> bool:
    """Whether a decode server keeps retracted requests in a host pool (kv_cache_builder.py)."""
    backup = sized.value("disaggregation_decode_retraction_backup")
    if sized.release.decode_ratio is None or backup in ("cpu_tensor", "none"):
        return False
    if backup == "host_pool":
        return True
    preempts = (
        sized.value("enable_priority_scheduling") is True
        and sized.value("disable_priority_preemption") is not True
    )
    dcp = sized.value("dcp_size")
    if preempts or (isinstance(dcp, int) and dcp > 1):
        return False
    if sized.value("disaggregation_decode_enable_radix_cache") is True:
        return False
    geometry = sized.hardware.geometry
    if isinstance(geometry, Unknown):
        return True  # its model may be one that has the pool: a bound
    if sized.value("enable_unified_memory") is True and geometry.sliding is not None:
        return False
    mha = geometry.kind is AttentionKind.MHA and LayerKind.LINEAR not in geometry.layers
    return mha and LayerKind.FULL in geometry.layers


def _pool(sized: SizedServer, purpose: Purpose) -> ServerMemory:
    geometry = sized.hardware.geometry
    words = None if isinstance(geometry, Unknown) else _unfit(sized, purpose, geometry)
    memory = _sized(sized, purpose) if words is None else refused(words)
    if purpose is Purpose.RETRACTION and isinstance(geometry, Unknown):
        # A model of another kind has no such pool.
        memory = memory._replace(least_pools_bytes=(), pools=())
    if purpose is Purpose.PREFIX_CACHE:
        return memory
    return memory._replace(why=f"{purpose.value}: {memory.why}")


def _unfit(sized: SizedServer, purpose: Purpose, geometry: ModelGeometry) -> str | None:
    """Return the words with which SGLang refuses a decode server's pool for this kind of model."""
    hybrid = LayerKind.LINEAR in geometry.layers or LayerKind.SLIDING in geometry.layers
    if purpose is Purpose.OFFLOAD and hybrid:
        unified = sized.value("enable_unified_memory") is True and geometry.sliding is not None
        return None if unified else "ValueError: Unsupported KV cache type for decode offload"
    plain = geometry.kind is AttentionKind.MHA and LayerKind.LINEAR not in geometry.layers
    if purpose is Purpose.RETRACTION and not plain:
        return (
            "ValueError: --disaggregation-decode-retraction-backup=host_pool requires an MHA or "
            "hybrid-SWA HiCache host stack."
        )
    return None


def _sized(sized: SizedServer, purpose: Purpose) -> ServerMemory:
    request = pool_request(sized, purpose)
    if isinstance(request, Unknown):
        return ServerMemory((), request, request.reason)
    if request.size_gb > 0:
        return bounds(sized, purpose, request, f"--hicache-size {request.size_gb}")
    if request.dcp > 1:
        unknown = Unknown("decode context parallelism with a pool that follows the GPU's")
        return ServerMemory((), unknown, unknown.reason)
    tokens = ratio_tokens(sized, request)
    if request.ratio is not None:
        return by_ratio(sized, purpose, request, tokens)
    if sized.release.auto_size and purpose is not Purpose.OFFLOAD:
        return by_host(sized, purpose, request, tokens)
    return by_default(sized, purpose, request, tokens)
