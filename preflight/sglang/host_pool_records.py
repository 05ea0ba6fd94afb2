"""The records of the host pools (L2), and one pool's pages and bytes."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from checks.releases.sglang import SglangRelease
from preflight.sglang.host_pool_layers import RowBytes
from preflight.sglang.model_geometry import AttentionKind, ModelGeometry

# --hicache-size is a number of these: decimal gigabytes, not GiB.
GIGABYTE = 10**9

# Of full-attention tokens, what a sliding-window layer keeps (--swa-full-tokens-ratio; SGLang's
# fallback since 0.5.2).
DEFAULT_SWA_RATIO = 0.8


class PoolRequest(NamedTuple):
    """What decides the host pools of one rank.

    page_tokens: the allocator's page (``--page-size`` after SGLang's own changes to it); under
    decode context parallelism the widened one, ``dcp`` times the physical page.
    attention_dp: data-parallel attention, which leaves ``tp // dp`` ranks to shard the heads.
    kv_item_bytes: one element of the cache (fp8: 1); None takes the model's.
    size_gb: ``--hicache-size``; 0 or less is unset. ratio: ``--hicache-ratio``, resolved.
    device_tokens: the L1 pool's tokens, ``--max-total-tokens`` where that binds; None if unknown.
    packed_drafts: one-layer NEXTN/MTP drafts that join the target's pool.
    draft: an EAGLE or STANDALONE draft model with a pool of its own, sharded as the target.
    draft_item_bytes: one element of its cache; None takes ``kv_item_bytes``.
    raw_fp8_rows: an fp8 sparse-attention cache without per-block scales (trtllm, tilelang).
    """

    geometry: ModelGeometry | Unknown
    release: SglangRelease
    page_tokens: int
    layout: str
    size_gb: int = 0
    ratio: float | None = None
    device_tokens: int | None = None
    tp: int = 1
    pp: int = 1
    stage: int = 0
    dp: int = 1
    attention_dp: bool = False
    dcp: int = 1
    kv_item_bytes: int | None = None
    packed_drafts: int = 0
    draft: ModelGeometry | None = None
    draft_item_bytes: int | None = None
    swa_ratio: float = DEFAULT_SWA_RATIO
    raw_fp8_rows: bool = False


class HostPool(NamedTuple):
    """One pool object.

    tokens: its slots, whole pages of them. bytes: the sum of its tensors.
    allocations_bytes: each tensor as its allocator takes it, in order.
    requested_bytes: what SGLang's admission gate compares, which for the indexer is one page less
    than it allocates; None where no gate looks at it. halves: its one tensor is registered with the
    NICs as two regions, K and V. page_objects: what the store keeps of one page of it; latent
    attention has one row for both, whatever the release registers.
    """

    what: str
    tokens: int
    pages: int
    bytes: int
    allocations_bytes: tuple[int, ...]
    requested_bytes: int | None
    halves: bool = False
    page_objects: int = 1


class HostPools(NamedTuple):
    """All pools of one rank, in the order in which they are allocated."""

    pools: tuple[HostPool, ...]

    @property
    def bytes(self) -> int:
        return sum(pool.bytes for pool in self.pools)

    @property
    def allocations_bytes(self) -> tuple[int, ...]:
        return tuple(size for pool in self.pools for size in pool.allocations_bytes)


class HostBytes(NamedTuple):
    """Bounds where the pools cannot be named one by one; ``reason`` says why, and what bounds."""

    least_bytes: int
    most_bytes: int | Unknown
    reason: str


def physical_page_tokens(request: PoolRequest) -> int:
    """Return the page of one rank: the allocator's, shared out under decode context parallelism."""
    return request.page_tokens // request.dcp


def page_count(request: PoolRequest, tokens: int) -> int:
    """Return the pages that a pool asked to hold ``tokens`` gets."""
    return tokens // physical_page_tokens(request) + request.release.extra_page


def kv_pool(request: PoolRequest, what: str, row: RowBytes, pages: int) -> HostPool:
    """A pool of ``pages`` whose every token takes ``row`` on this rank."""
    tokens = pages * physical_page_tokens(request)
    parts = tuple(tokens * part for part in row.parts)
    geometry = request.geometry
    # The prefix cache's own pool alone; a draft's is registered whole (mooncake_store.py).
    has_both = isinstance(geometry, ModelGeometry) and geometry.kind is AttentionKind.MHA
    two_halves = what == "KV" and len(parts) == 1 and request.release.registers_halves and has_both
    return HostPool(
        what,
        tokens,
        pages,
        sum(parts),
        _pinned(request, parts),
        tokens * row.sized,
        two_halves,
        2 if has_both else 1,
    )


def _pinned(request: PoolRequest, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """As the allocator takes them: torch's pinned one by powers of two, the others exactly."""
    if not request.release.pinned_power_of_two:
        return sizes
    return tuple(1 << (size - 1).bit_length() for size in sizes)
