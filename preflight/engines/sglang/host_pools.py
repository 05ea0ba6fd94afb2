"""The host pools (L2) that one SGLang rank allocates, as its pool classes compute them.

Source: ``mem_cache/pool_host`` and ``mem_cache/hybrid_cache/hybrid_pool_assembler.py`` of 0.5.23,
and their forerunners per release (``checks.releases.sglang``). The numbers are held
against the real classes in ``tests/engines/sglang``.
"""

from __future__ import annotations

from typing import NoReturn

from checks.framework.units import GIGABYTE, MIB, format_bytes
from checks.framework.unknown import Unknown, UnknownFactError, or_unknown
from checks.releases.sglang import DraftPool, HybridSize, Indexer
from preflight.engines.sglang.host_pool_records import (
    HostBytes,
    HostPool,
    HostPools,
    PoolKind,
    PoolRequest,
    Refusal,
    RowBytes,
    kv_pool,
    page_count,
    stage_rows,
)
from preflight.engines.sglang.model_geometry import AttentionKind, LayerKind, ModelGeometry

# More than any published model keeps for one token on one rank (Qwen-72B, with a key and a value
# head for each of its 64 query heads in 80 layers, unsharded: 2.5 MiB).
MOST_TOKEN_BYTES = 4 * MIB

# The layouts in which a pool of K and V of different width exists.
_ASYMMETRIC_LAYOUTS = ("page_first", "page_first_direct")
# The layouts that the DSA indexer knows.
_INDEXER_LAYOUTS = ("layer_first", "page_first", "page_first_direct")
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


@or_unknown
def host_pools(request: PoolRequest) -> HostPools | HostBytes:
    """Return the pools of one rank in ``request.stage``: exact, or bounds (for an unknown or a
    hybrid model).

    Returns:
        Unknown if SGLang refuses them, or for a ratio without ``device_tokens``.
    """
    geometry = request.geometry
    if isinstance(geometry, Unknown):
        return _without_geometry(request, geometry)
    _refuse(request, geometry)
    rows = stage_rows(request)
    row = rows[request.stage]
    if LayerKind.LINEAR in geometry.layers or LayerKind.SLIDING in geometry.layers:
        return _hybrid_pools(request, rows)
    if request.size_gb > 0:
        counts = [int(request.size_gb * 1e9 // each.sized) for each in rows]
        shared = request.release.stages_share_tokens
        tokens = min(counts) if shared else counts[request.stage]
    elif request.ratio is None or request.device_tokens is None:
        _stop("the pool's size depends on --hicache-ratio and the GPU's tokens, not known here")
    else:
        tokens = int(request.device_tokens * request.ratio)
    return _uniform_pools(request, row, tokens)


def _stop(why: str) -> NoReturn:
    raise UnknownFactError(Unknown(why))


def _without_geometry(request: PoolRequest, why: Unknown) -> HostBytes:
    """Return bounds from ``--hicache-size``, for a model of unknown geometry (``why``).

    Raises:
        UnknownFactError: Without a size.
    """
    if request.size_gb <= 0:
        raise UnknownFactError(why)
    asked = request.size_gb * GIGABYTE
    reason = f"{asked} bytes per rank; {why.reason}, so this is an upper bound"
    if not request.release.extra_page:
        return HostBytes(0, asked, reason, why)
    page_bytes = request.physical_page_tokens * MOST_TOKEN_BYTES
    more = "an index or draft pool would come on top of that"
    reason += f", with a page of {format_bytes(page_bytes)} on top; {more}"
    return HostBytes(asked, asked + page_bytes, reason, why)


def _refuse(request: PoolRequest, geometry: ModelGeometry, draft: str = "") -> None:
    """Raise UnknownFactError if SGLang refuses the pools of ``request``, or they are not computed
    here. draft: begins the reason for a draft model's pools; "" for the target's.
    """
    release, layout = request.release, request.layout
    heads = geometry.heads
    why = error = ""
    if layout not in LAYOUTS:
        why = f"layout {layout!r} is not one of {', '.join(LAYOUTS)}"
    elif len(geometry.layers) < request.pp:
        why = f"{len(geometry.layers)} layers do not fill {request.pp} pipeline stages"
    elif layout == "page_head" and (geometry.kind is AttentionKind.MLA or not release.page_head):
        error = "ValueError: Unsupported layout: page_head"
    elif geometry.index_layers and layout not in _INDEXER_LAYOUTS:
        error = f"ValueError: Unsupported layout: {layout}"
    elif geometry.kind is AttentionKind.MHA and request.dcp > 1:
        why = "SGLang has decode context parallelism for latent attention alone"
    elif heads.head_dim != heads.v_head_dim and not release.asymmetric_heads:
        why = "this release has no host pool for K and V of different width"
    elif heads.head_dim != heads.v_head_dim and layout not in _ASYMMETRIC_LAYOUTS:
        error = (
            "ValueError: Unsupported layout for models with head_dim != v_head_dim: "
            f"{layout}; expected 'page_first' or 'page_first_direct'."
        )
    elif request.packed_drafts and not release.packed_drafts:
        why = "this release does not pack draft layers into the target's pool"
    if error and not draft:
        raise UnknownFactError(Refusal(error))
    if error or why:
        _stop(f"{draft}{error or why}")


def _uniform_pools(request: PoolRequest, row: RowBytes, tokens: int) -> HostPools:
    """Return the host pools of a model with one kind of attention: its KV cache, index keys and
    draft.

    Args:
        tokens: What the KV pool is asked to hold.

    Raises:
        UnknownFactError: If a fact that it needs is not known.
    """
    pages = page_count(request, tokens)
    if pages < 1:
        _stop("the pool is less than one page: SGLang stops, or allocates nothing")
    pools = [kv_pool(request, PoolKind.KV, row, pages)]
    _refuse_below_device(request, pages, request.device_tokens)
    indexer = _index_pool(request, row, pages)
    if indexer is not None:
        pools.append(indexer)
    if request.draft is not None:
        pools += _draft_pools(request, request.draft, pages)
    return HostPools(tuple(pools))


def _index_pool(
    request: PoolRequest, row: RowBytes, pages: int, pool_kind: PoolKind = PoolKind.INDEXER
) -> HostPool | None:
    """Return the index pool beside a KV pool of ``pages``; None if release or model has none."""
    place = request.release.indexer
    if not row.index_per_layer or not row.index_layers or place is Indexer.NONE:
        return None
    page_tokens = request.physical_page_tokens
    # (size + page + 1) // page: one page more than the KV pool, and two with a page of one token.
    index_pages = (pages * page_tokens + page_tokens + 1) // page_tokens
    per_layer = index_pages * page_tokens * row.index_per_layer
    whole = per_layer * row.index_layers
    by_layer = place is Indexer.INSIDE and request.layout == "layer_first"
    split = by_layer or place is Indexer.INSIDE_PER_LAYER
    tensors = (per_layer,) * row.index_layers if split else (whole,)
    tokens = pages * page_tokens
    # Inside the size, the KV pool's own check has counted it.
    requested = tokens * row.index_per_layer * row.index_layers if place is Indexer.ON_TOP else None
    return HostPool(pool_kind, tokens, index_pages, whole, tensors, requested)


def _draft_pools(request: PoolRequest, draft: ModelGeometry, target_pages: int) -> list[HostPool]:
    """Return the host pools of a draft model; [] in a release without them.

    Args:
        target_pages: Of the target's KV pool.

    Raises:
        UnknownFactError: If a fact that it needs is not known.
    """
    if request.release.draft is DraftPool.NONE:
        return []
    if draft.count(LayerKind.FULL) != len(draft.layers):
        _stop(f"{draft.name}: the pools of a hybrid draft model are not computed")
    # A draft's ranks replicate its cache under decode context parallelism: logical pages.
    alone = request.of_draft()
    _refuse(alone, draft, f"{draft.name}: ")
    (row,) = stage_rows(alone)
    pages = _draft_page_count(request, target_pages)
    pools = [kv_pool(alone, PoolKind.DRAFT, row, pages)]
    indexer = _index_pool(alone, row, pages, PoolKind.DRAFT_INDEXER)
    if indexer is not None and request.release.draft_indexer:
        pools.append(indexer)
    return pools


def _draft_page_count(request: PoolRequest, target_pages: int) -> int:
    """Return the pages of the draft's pool: as many as the target's, rounded by the release."""
    if request.release.draft is DraftPool.EXACT:
        return target_pages
    if not request.device_tokens:  # not known; 0, the least that a GPU may have left, is a bound
        # A page more than the target's or none, by the ratio's last bit.
        return target_pages + 1 if request.device_tokens is None else target_pages
    tokens = target_pages * request.page_tokens
    return int(request.device_tokens * (tokens / request.device_tokens)) // request.page_tokens + 1


def _hybrid_pools(request: PoolRequest, rows: tuple[RowBytes, ...]) -> HostPools | HostBytes:
    """Return full-attention and sliding-window pools, exact once the device's tokens are known.

    With linear attention, whose states depend on the request slots, return bounds.

    Raises:
        UnknownFactError: If a fact that it needs is not known.
    """
    release, row = request.release, rows[request.stage]
    layers, kinds = row.layers, release.hybrid_size
    if kinds is HybridSize.NONE or (layers.sliding and not release.sliding_pools):
        _stop("this release has no host pools for this hybrid model's layers")
    refused = ("page_head",) if release.linear_layer_first else ("page_head", "layer_first")
    if layers.linear and request.layout in refused:
        message = f"AssertionError: Unsupported layout: {request.layout} (linear-attention state)"
        raise UnknownFactError(Refusal(message))
    if request.draft is not None or request.packed_drafts:
        _stop("the draft pools of a hybrid model are not computed")
    if any(each.sliding for each in rows) and not all(each.sized and each.sliding for each in rows):
        _stop("a pipeline stage without full or without sliding-window layers is not computed")
    sliding_tokens = _device_sliding_tokens(request)
    if request.size_gb > 0 and kinds is HybridSize.SHARED:
        if layers.linear or request.device_tokens is None or sliding_tokens is None:
            return _shared_bounds(request, row)
        return _shared_pools(request, rows, request.device_tokens, sliding_tokens)
    if layers.linear:
        _stop("the linear states depend on the GPU's request slots, which are not known here")
    if request.size_gb > 0:
        asked = request.size_gb * 1e9
        return _sized_sliding_pools(request, rows, [(asked, asked)] * len(rows))
    if request.ratio is None or request.device_tokens is None or sliding_tokens is None:
        _stop("the pools' sizes depend on --hicache-ratio and the GPU's tokens, not known here")
    full = int(request.device_tokens * request.ratio)
    return _sliding_pools(request, row, full, int(sliding_tokens * request.ratio))


def _device_sliding_tokens(request: PoolRequest) -> int | None:
    """Return the tokens of the GPU's sliding-window pool, in whole pages; None if not known."""
    if request.device_tokens is None:
        return None
    page = request.page_tokens
    return int(request.device_tokens * request.swa_ratio) // page * page


def _shared_pools(
    request: PoolRequest, rows: tuple[RowBytes, ...], device_tokens: int, sliding_tokens: int
) -> HostPools:
    """Return full and window pools that share --hicache-size in proportion to the GPU's pools."""
    # The device pools have a page of padding each; the shares are SGLang's floats, in its order.
    shares = []
    for row in rows:
        full_bytes = (device_tokens + request.page_tokens) * row.sized
        sliding_bytes = (sliding_tokens + request.page_tokens) * row.sliding
        total = full_bytes + sliding_bytes
        full = request.size_gb * full_bytes / total
        shares.append((full * 1e9, request.size_gb * sliding_bytes / total * 1e9))
    return _sized_sliding_pools(request, rows, shares)


def _sized_sliding_pools(
    request: PoolRequest, rows: tuple[RowBytes, ...], shares: list[tuple[float, float]]
) -> HostPools:
    """Return full and window pools by their bytes.

    Args:
        shares: The bytes of (full, window) in each stage. In a release whose stages have equal
            pools, all take the fewest tokens.
    """
    counts = [
        (int(full // row.sized), int(sliding // row.sliding))
        for row, (full, sliding) in zip(rows, shares, strict=True)
    ]
    full, sliding = counts[request.stage]
    if request.release.stages_share_tokens:
        full, sliding = (min(each) for each in zip(*counts, strict=True))
    return _sliding_pools(request, rows[request.stage], full, sliding)


def _shared_bounds(request: PoolRequest, row: RowBytes) -> HostBytes:
    """Return the bounds of pools that share a size: each exceeds its share by a page at most."""
    asked = request.size_gb * GIGABYTE
    page = request.physical_page_tokens
    extra = page * (row.sized + row.sliding)
    reason = f"--hicache-size {request.size_gb} is split by the bytes of the GPU's pools, "
    reason += "which are not known here"
    linear = row.linear if row.layers.linear else 0
    most = linear if isinstance(linear, Unknown) else asked + extra + linear
    return HostBytes(asked, most, reason)


def _sliding_pools(
    request: PoolRequest, row: RowBytes, full_tokens: int, sliding_tokens: int
) -> HostPools:
    """Return the pools of full and window layers.

    Raises:
        UnknownFactError: If SGLang refuses one.
    """
    window = RowBytes(row.sliding_parts, row.sliding, row.layers)
    pages = page_count(request, full_tokens), page_count(request, sliding_tokens)
    _refuse_below_device(request, pages[0], request.device_tokens)
    _refuse_below_device(request, pages[1], _device_sliding_tokens(request))
    plain = kv_pool(request, PoolKind.KV, row, pages[0])
    return HostPools((plain, kv_pool(request, PoolKind.WINDOW, window, pages[1])))


def _refuse_below_device(request: PoolRequest, pages: int, device_tokens: int | None) -> None:
    """Raise UnknownFactError if this release refuses a host pool of at most ``device_tokens``."""
    slots = pages * request.physical_page_tokens
    if device_tokens is None or not request.release.must_exceed_device or slots > device_tokens:
        return
    message = (
        "AssertionError: The host memory should be larger than the device memory with the "
        f"current protocol (host {slots} tokens, device {device_tokens})"
    )
    advice = "give a larger --hicache-size, or --hicache-ratio above 1"
    raise UnknownFactError(Refusal(message, advice=advice))
