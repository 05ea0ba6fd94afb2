"""The host pools of a model whose layers keep different things: windows, states, every token.

Source: ``build_hybrid_swa_stack`` and ``_split_hicache_size`` of
``mem_cache/hybrid_cache/hybrid_pool_assembler.py``.
"""

from __future__ import annotations

from checks.base.unknown import Unknown
from checks.releases.sglang import HybridSize
from preflight.sglang.host_pool_layers import RowBytes, StageLayers
from preflight.sglang.host_pool_records import (
    GIGABYTE,
    HostBytes,
    HostPools,
    PoolRequest,
    kv_pool,
    page_count,
    physical_page_tokens,
)


def hybrid_pools(
    request: PoolRequest, row: RowBytes, layers: StageLayers
) -> HostPools | HostBytes | Unknown:
    """Full-attention and sliding-window pools, exact once the device's tokens are known.

    A linear-attention model's states follow its request slots: bounds, or Unknown.
    """
    release = request.release
    kinds = release.hybrid_size
    if kinds is HybridSize.NONE or (layers.sliding and not release.sliding_pools):
        return Unknown("this release has no host pools for this hybrid model's layers")
    if layers.linear and request.layout == "page_head":
        return Unknown("AssertionError: Unsupported layout: page_head (linear-attention state)")
    if request.draft is not None or request.packed_drafts:
        return Unknown("the draft pools of a hybrid model are not computed")
    sliding_tokens = _device_sliding_tokens(request)
    if request.size_gb > 0 and kinds is HybridSize.SHARED:
        if layers.linear or request.device_tokens is None or sliding_tokens is None:
            return _shared_bounds(request, row, layers)
        return _shared_exactly(request, row, request.device_tokens, sliding_tokens)
    if layers.linear:
        return Unknown("the linear states follow the device's request slots, not known here")
    if request.size_gb > 0:
        asked = request.size_gb * 1e9
        full, sliding = int(asked // row.sized), int(asked // row.sliding)
    elif request.ratio is None or request.device_tokens is None or sliding_tokens is None:
        return Unknown("the pools follow --hicache-ratio and the device's tokens, not known here")
    else:
        full = int(request.device_tokens * request.ratio)
        sliding = int(sliding_tokens * request.ratio)
    return _sliding_pools(request, row, full, sliding)


def _device_sliding_tokens(request: PoolRequest) -> int | None:
    """The device's sliding-window tokens: a part of the full ones, in whole pages."""
    if request.device_tokens is None:
        return None
    return (
        int(request.device_tokens * request.swa_ratio) // request.page_tokens * request.page_tokens
    )


def _shared_exactly(
    request: PoolRequest, row: RowBytes, device_tokens: int, sliding_tokens: int
) -> HostPools:
    # The device pools have a page of padding each; the shares are SGLang's floats, in its order.
    full_bytes = (device_tokens + request.page_tokens) * row.sized
    sliding_bytes = (sliding_tokens + request.page_tokens) * row.sliding
    total = full_bytes + sliding_bytes
    full = request.size_gb * full_bytes / total
    sliding = request.size_gb * sliding_bytes / total
    return _sliding_pools(
        request, row, int(full * 1e9 // row.sized), int(sliding * 1e9 // row.sliding)
    )


def _shared_bounds(request: PoolRequest, row: RowBytes, layers: StageLayers) -> HostBytes:
    """Whatever the split, each pool exceeds its share by one page at the most."""
    asked = request.size_gb * GIGABYTE
    page = physical_page_tokens(request)
    extra = page * (row.sized + row.sliding)
    reason = f"--hicache-size {request.size_gb} is split by the device pools' bytes, not known here"
    if not layers.linear:
        return HostBytes(asked, asked + extra, reason)
    if isinstance(row.linear, Unknown):
        return HostBytes(asked, row.linear, reason)
    return HostBytes(asked, asked + extra + row.linear, reason)


def _sliding_pools(request: PoolRequest, row: RowBytes, full: int, sliding: int) -> HostPools:
    return HostPools(
        (
            kv_pool(request, "KV", row, page_count(request, full)),
            kv_pool(
                request,
                "sliding-window KV",
                RowBytes(row.sliding_parts, sum(row.sliding_parts)),
                page_count(request, sliding),
            ),
        )
    )
