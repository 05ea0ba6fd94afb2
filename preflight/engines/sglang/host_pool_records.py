"""The records of the host pools (L2): what a rank stores per token, and one pool's pages and bytes.

Source: the ``get_size_per_token`` of SGLang's host pool classes (``mem_cache/pool_host``), and
``get_pp_indices`` (``distributed/utils.py``).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from checks.framework.unknown import Unknown, UnknownFactError, require
from checks.releases.sglang import Indexer, SglangRelease
from preflight.engines.sglang.model_geometry import (
    AttentionKind,
    Heads,
    LayerKind,
    LinearState,
    ModelGeometry,
)

# Of full-attention tokens, what a sliding-window layer keeps (--swa-full-tokens-ratio; SGLang's
# fallback since 0.5.2).
DEFAULT_SWA_RATIO = 0.8


class PoolRequest(NamedTuple):
    """What decides the host pools of one rank.

    Attributes:
        page_tokens: The allocator's page (``--page-size`` after SGLang's own changes to it); under
            decode context parallelism the widened one, ``dcp`` times the physical page.
        attention_dp: Data-parallel attention, which leaves ``tp // dp`` ranks to shard the heads.
        kv_item_bytes: One element of the cache (fp8: 1); None takes the model's.
        size_gb: ``--hicache-size``; 0 or less is unset.
        ratio: ``--hicache-ratio``, resolved.
        device_tokens: The L1 pool's tokens, ``--max-total-tokens`` where that binds; None if
            unknown.
        packed_drafts: One-layer NEXTN/MTP drafts that join the target's pool.
        draft: An EAGLE or STANDALONE draft model with a separate pool, sharded as the target.
        draft_item_bytes: One element of its cache; None takes ``kv_item_bytes``.
        raw_fp8_rows: An fp8 sparse-attention cache without per-block scales (trtllm, tilelang).
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

    @property
    def physical_page_tokens(self) -> int:
        """The page of one rank: the allocator's, shared out under decode context parallelism."""
        return self.page_tokens // self.dcp

    @property
    def attention_ranks(self) -> int:
        """The ranks over which key/value heads are sharded."""
        return max(1, self.tp // self.dp) if self.attention_dp else self.tp

    def of_draft(self) -> PoolRequest:
        """Return the request for the draft model's pools: a rank has all layers of the draft."""
        assert self.draft is not None
        item = self.draft_item_bytes or self.kv_item_bytes
        alone = self._replace(geometry=self.draft, draft=None, packed_drafts=0, kv_item_bytes=item)
        return alone._replace(pp=1, stage=0, dcp=1)


class PoolKind(Enum):
    """What a host pool keeps."""

    KV = "KV"
    WINDOW = "sliding-window KV"
    INDEXER = "indexer"
    DRAFT = "draft KV"
    DRAFT_INDEXER = "draft indexer"


class HostPool(NamedTuple):
    """One host pool.

    Attributes:
        tokens: Its slots, in whole pages.
        bytes: The sum of its tensors.
        allocations_bytes: Each tensor as allocated, in order.
        requested_bytes: The size that SGLang's admission gate compares, for the indexer one page
            less than allocated; None if no gate compares it.
        halves: The NICs register its one tensor as two regions, K and V.
        page_objects: The store's objects for one page: two (K and V), or one with latent attention.
    """

    kind: PoolKind
    tokens: int
    pages: int
    bytes: int
    allocations_bytes: tuple[int, ...]
    requested_bytes: int | None
    halves: bool = False
    page_objects: int = 1

    @property
    def taken_bytes(self) -> int:
        return sum(self.allocations_bytes)

    def object_bytes(self, page_tokens: int | None) -> int:
        """Return the bytes of one object of the store.

        Args:
            page_tokens: ``--page-size``; None for 1.
        """
        return self.bytes // self.tokens * max(1, page_tokens or 1) // self.page_objects


class HostPools(NamedTuple):
    """All pools of one rank, in the order in which they are allocated."""

    pools: tuple[HostPool, ...]

    @property
    def bytes(self) -> int:
        return sum(host_pool.bytes for host_pool in self.pools)

    @property
    def allocations_bytes(self) -> tuple[int, ...]:
        return tuple(size for host_pool in self.pools for size in host_pool.allocations_bytes)


class Refusal(Unknown):
    """SGLang stops when it makes these pools: the reason names its exception."""

    __slots__ = ()


class HostBytes(NamedTuple):
    """The bounds of pools that cannot be named one by one, with the reason.

    Attributes:
        missing: The unknown fact of the model, or None if that is not the reason.
    """

    least_bytes: int
    most_bytes: int | Unknown
    reason: str
    missing: Unknown | None = None


def page_count(request: PoolRequest, tokens: int) -> int:
    """Return the pages that a pool asked to hold ``tokens`` gets."""
    return tokens // request.physical_page_tokens + request.release.extra_page


def kv_pool(request: PoolRequest, pool_kind: PoolKind, row: RowBytes, pages: int) -> HostPool:
    """Return a pool of ``pages`` pages with ``row`` bytes a token."""
    tokens = pages * request.physical_page_tokens
    parts = tuple(tokens * part for part in row.parts)
    geometry = request.geometry
    # The prefix cache's own pool alone; a draft's is registered whole (mooncake_store.py).
    has_both = isinstance(geometry, ModelGeometry) and geometry.kind is AttentionKind.MHA
    one_tensor = pool_kind is PoolKind.KV and len(parts) == 1
    two_halves = one_tensor and request.release.registers_halves and has_both
    mapped = parts
    if request.release.pinned_power_of_two:  # torch's pinned allocator; others map exact sizes
        mapped = tuple(1 << (size - 1).bit_length() for size in parts)
    sizes, objects = (sum(parts), mapped, tokens * row.sized), 2 if has_both else 1
    return HostPool(pool_kind, tokens, pages, *sizes, halves=two_halves, page_objects=objects)


# One float32 scale for each block of this many elements (DSATokenToKVPool.quant_block_size).
INDEX_BLOCK = 128
SCALE_BYTES = 4
# The rotary part of an fp8 sparse-attention row stays bfloat16, as do convolution states.
BFLOAT16_BYTES = 2


class StageLayers(NamedTuple):
    """How many layers of each kind one pipeline stage has, packed drafts included."""

    full: int
    sliding: int
    linear: int
    index_keys: int


class RowBytes(NamedTuple):
    """The bytes per token of one rank in one pipeline stage.

    Attributes:
        parts: The bytes in each tensor of the KV pool.
        sized: --hicache-size divided by these gives the tokens.
        layers: Of the stage.
        index_per_layer, index_layers: Index keys of sparse attention.
        sliding_parts: As ``parts``, of the window pool.
        linear: The states of one request.
    """

    parts: tuple[int, ...]
    sized: int
    layers: StageLayers
    index_per_layer: int = 0
    index_layers: int = 0
    sliding_parts: tuple[int, ...] = ()
    linear: int | Unknown = 0

    @property
    def sliding(self) -> int:
        return sum(self.sliding_parts)


def stage_rows(request: PoolRequest) -> tuple[RowBytes, ...]:
    """Return one rank's bytes per token in each pipeline stage.

    Raises:
        UnknownFactError: If a fact that it needs is not known.
    """
    geometry = require(request.geometry)
    return tuple(_row_bytes(request, geometry, stage) for stage in range(request.pp))


def _stage_layers(request: PoolRequest, geometry: ModelGeometry, stage: int) -> StageLayers:
    """Return the layers of one pipeline stage by kind; drafts are in the last stage."""
    first, last = _layer_range(request, len(geometry.layers), stage)
    kinds = geometry.layers[first:last]
    # Drafts predict from the last stage's output and live there.
    drafts = request.packed_drafts if stage == request.pp - 1 else 0
    index = sum(first <= layer < last for layer in geometry.index_layers)
    if not request.release.compact_index and geometry.index_layers:
        index = len(kinds)
    full, sliding, linear = map(kinds.count, (LayerKind.FULL, LayerKind.SLIDING, LayerKind.LINEAR))
    return StageLayers(full + drafts, sliding, linear, index + drafts * bool(geometry.index_layers))


def _layer_range(request: PoolRequest, layers: int, stage: int) -> tuple[int, int]:
    """Return the number of a stage's first layer, and of the first layer behind the stage."""
    each, rest = divmod(layers, request.pp)
    if not request.release.spread_layers:
        return stage * each, layers if stage == request.pp - 1 else (stage + 1) * each
    without = request.pp - rest
    first = stage * each + max(0, stage - without)
    return first, first + each + (stage >= without)


def _row_bytes(request: PoolRequest, geometry: ModelGeometry, stage: int) -> RowBytes:
    """Return the bytes of one token in one pipeline stage, by its parts."""
    item = request.kv_item_bytes or geometry.dtype_bytes
    layers = _stage_layers(request, geometry, stage)
    linear = _linear_bytes(request, geometry.linear, layers.linear)
    if geometry.kind is AttentionKind.MHA:
        parts = _mha_parts(request, geometry.heads, layers.full, item)
        window = geometry.sliding
        sliding = () if window is None else _mha_parts(request, window, layers.sliding, item)
        return RowBytes(parts, sum(parts), layers, sliding_parts=sliding, linear=linear)
    row = _latent_width(request, geometry, item) * item * layers.full
    if not layers.index_keys or request.release.indexer is Indexer.NONE:
        return RowBytes((row,), row, layers, linear=linear)
    index = index_key_bytes(geometry)
    inside = request.release.indexer is not Indexer.ON_TOP
    sized = row + index * layers.index_keys * inside
    return RowBytes((row,), sized, layers, index, layers.index_keys, linear=linear)


def _mha_parts(request: PoolRequest, heads: Heads, layers: int, item_bytes: int) -> tuple[int, ...]:
    """Return a token's bytes in each tensor: one for K and V, or two if their widths differ."""
    # Fewer heads than ranks: every rank keeps one whole head, a copy of its neighbour's.
    per_rank = max(1, heads.kv_heads // request.attention_ranks)
    keys = heads.head_dim * per_rank * layers * item_bytes
    values = heads.v_head_dim * per_rank * layers * item_bytes
    return (keys + values,) if heads.head_dim == heads.v_head_dim else (keys, values)


def _latent_width(request: PoolRequest, geometry: ModelGeometry, item_bytes: int) -> int:
    """Return the elements of one latent row, with the scales of fp8 rows.

    Every rank has the whole row.

    Raises:
        UnknownFactError: In a release without a pool for such rows.
    """
    rank, rope = geometry.kv_lora_rank, geometry.qk_rope_head_dim
    if item_bytes > 1 or not geometry.index_layers or request.raw_fp8_rows:
        return rank + rope
    if request.release.indexer is Indexer.NONE:
        why = "this release has no host pool for fp8 sparse-attention rows"
        raise UnknownFactError(Unknown(why))
    # Eight-bit latents, a float32 scale per block, and the rotary part unquantised: 656 bytes.
    return rank + rank // INDEX_BLOCK * SCALE_BYTES + rope * BFLOAT16_BYTES


def index_key_bytes(geometry: ModelGeometry) -> int:
    """Return the bytes of a token's index key of one layer: 8-bit elements, a float32 a block."""
    width = geometry.index_head_dim
    return width + width // INDEX_BLOCK * SCALE_BYTES


def _linear_bytes(
    request: PoolRequest, state: LinearState | Unknown | None, layers: int
) -> int | Unknown:
    """Return the bytes of a request's linear states on one rank: window and temporal state.

    Returns:
        0 without linear layers; Unknown if the state is unknown, or the ranks cannot share its
        heads.
    """
    if not layers or state is None:
        return 0
    if isinstance(state, Unknown):
        return state
    ranks = request.attention_ranks
    if state.key_heads % ranks or state.value_heads % ranks:
        return Unknown(f"the linear layers' heads do not divide by {ranks} ranks")
    width = state.value_heads * state.value_dim + 2 * state.key_heads * state.key_dim
    window = width // ranks * (state.conv_kernel - 1) * BFLOAT16_BYTES
    heads = state.value_heads // ranks
    temporal = heads * state.value_dim * state.key_dim * state.temporal_item_bytes
    return (window + temporal) * layers
