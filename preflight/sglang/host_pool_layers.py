"""What one rank stores per token: its pipeline stage's layers, and their bytes.

Source: the ``get_size_per_token`` of SGLang's host pool classes (``mem_cache/pool_host``), and
``get_pp_indices`` (``distributed/utils.py``).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from checks.base.unknown import Unknown
from checks.releases.sglang import Indexer, SglangRelease
from preflight.sglang.model_geometry import AttentionKind, Heads, LinearState, ModelGeometry
from preflight.sglang.model_layers import LayerKind

# One float32 scale for each block of this many elements (DSATokenToKVPool.quant_block_size).
INDEX_BLOCK = 128
SCALE_BYTES = 4
# The rotary part of an fp8 sparse-attention row stays bfloat16, as do convolution states.
BFLOAT16_BYTES = 2


class Sharding(Protocol):
    """How a model is spread over ranks; see ``preflight.sglang.host_pools.PoolRequest``."""

    @property
    def release(self) -> SglangRelease: ...
    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def dp(self) -> int: ...
    @property
    def attention_dp(self) -> bool: ...
    @property
    def kv_item_bytes(self) -> int | None: ...
    @property
    def packed_drafts(self) -> int: ...
    @property
    def raw_fp8_rows(self) -> bool: ...


class StageLayers(NamedTuple):
    """How many layers of each kind one pipeline stage has, packed drafts included."""

    full: int
    sliding: int
    linear: int
    index_keys: int


class RowBytes(NamedTuple):
    """Bytes per token of one rank.

    parts: of each tensor of the KV pool. sized: what ``--hicache-size`` is divided by.
    index_per_layer, index_layers: the index keys of sparse attention. sliding_parts, sliding: the
    same for the sliding-window pool. linear: of one request slot's states.
    """

    parts: tuple[int, ...]
    sized: int
    index_per_layer: int = 0
    index_layers: int = 0
    sliding_parts: tuple[int, ...] = ()
    sliding: int = 0
    linear: int | Unknown = 0


def stage_layers(sharding: Sharding, geometry: ModelGeometry, stage: int) -> StageLayers:
    first, last = _span(sharding, len(geometry.layers), stage)
    kinds = geometry.layers[first:last]
    # Drafts predict from the last stage's output and live there.
    drafts = sharding.packed_drafts if stage == sharding.pp - 1 else 0
    if sharding.release.compact_index:
        index = sum(first <= layer < last for layer in geometry.index_layers)
    else:
        index = len(kinds) if geometry.index_layers else 0
    return StageLayers(
        kinds.count(LayerKind.FULL) + drafts,
        kinds.count(LayerKind.SLIDING),
        kinds.count(LayerKind.LINEAR),
        index + (drafts if geometry.index_layers else 0),
    )


def _span(sharding: Sharding, layers: int, stage: int) -> tuple[int, int]:
    """Return the layers of a stage: [first, last)."""
    each, rest = divmod(layers, sharding.pp)
    if not sharding.release.spread_layers:
        return stage * each, layers if stage == sharding.pp - 1 else (stage + 1) * each
    without = sharding.pp - rest
    first = stage * each + max(0, stage - without)
    return first, first + each + (stage >= without)


def attention_ranks(sharding: Sharding) -> int:
    """Return the ranks over which key/value heads are sharded."""
    return max(1, sharding.tp // sharding.dp) if sharding.attention_dp else sharding.tp


def row_bytes(
    sharding: Sharding, geometry: ModelGeometry, layers: StageLayers
) -> RowBytes | Unknown:
    """One rank's bytes per token, or Unknown where this release stores what is not known here."""
    item = sharding.kv_item_bytes or geometry.dtype_bytes
    linear = linear_bytes(sharding, geometry.linear, layers.linear)
    if geometry.kind is AttentionKind.MHA:
        parts = _mha_parts(sharding, geometry.heads, layers.full, item)
        sliding = (
            _mha_parts(sharding, geometry.sliding, layers.sliding, item)
            if geometry.sliding is not None
            else ()
        )
        return RowBytes(parts, sum(parts), 0, 0, sliding, sum(sliding), linear)
    latent = latent_width(sharding, geometry, item)
    if isinstance(latent, Unknown):
        return latent
    row = latent * item * layers.full
    if not layers.index_keys or sharding.release.indexer is Indexer.NONE:
        return RowBytes((row,), row, linear=linear)
    index = index_key_bytes(geometry)
    inside = sharding.release.indexer is not Indexer.ON_TOP
    return RowBytes(
        (row,), row + index * layers.index_keys * inside, index, layers.index_keys, linear=linear
    )


def _mha_parts(sharding: Sharding, heads: Heads, layers: int, item: int) -> tuple[int, ...]:
    """K and V in one tensor; in two where they differ in width."""
    # Fewer heads than ranks: every rank keeps one whole head, a copy of its neighbour's.
    per_rank = max(1, heads.kv_heads // attention_ranks(sharding))
    keys = heads.head_dim * per_rank * layers * item
    values = heads.v_head_dim * per_rank * layers * item
    return (keys + values,) if heads.head_dim == heads.v_head_dim else (keys, values)


def latent_width(sharding: Sharding, geometry: ModelGeometry, item: int) -> int | Unknown:
    """Return the elements of one latent row, whole on every rank."""
    rank, rope = geometry.kv_lora_rank, geometry.qk_rope_head_dim
    if item > 1 or not geometry.index_layers or sharding.raw_fp8_rows:
        return rank + rope
    if sharding.release.indexer is Indexer.NONE:
        return Unknown("this release has no host pool for fp8 sparse-attention rows")
    # Eight-bit latents, a float32 scale per block, and the rotary part unquantised: 656 bytes.
    return rank + rank // INDEX_BLOCK * SCALE_BYTES + rope * BFLOAT16_BYTES


def index_key_bytes(geometry: ModelGeometry) -> int:
    """One token's index key of one layer: eight-bit elements, and a float32 scale per block."""
    width = geometry.index_head_dim
    return width + width // INDEX_BLOCK * SCALE_BYTES


def linear_bytes(
    sharding: Sharding, state: LinearState | Unknown | None, layers: int
) -> int | Unknown:
    """One request slot's states on one rank: the convolution's window and the temporal state."""
    if not layers or state is None:
        return 0
    if isinstance(state, Unknown):
        return state
    ranks = attention_ranks(sharding)
    if state.key_heads % ranks or state.value_heads % ranks:
        return Unknown(f"the linear layers' heads do not divide by {ranks} ranks")
    width = state.value_heads * state.value_dim + 2 * state.key_heads * state.key_dim
    window = width // ranks * (state.conv_kernel - 1) * BFLOAT16_BYTES
    heads = state.value_heads // ranks
    temporal = heads * state.value_dim * state.key_dim * state.temporal_item_bytes
    return (window + temporal) * layers
