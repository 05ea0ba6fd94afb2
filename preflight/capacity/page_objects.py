"""A page of the KV cache as objects of the store, what they take there; a token on the ranks.

A rank stores K and V of a page as an object each, a rank of latent attention the row as one, and
then the first rank alone: all have the same (SGLang 0.5.23 ``mooncake_store.py``, ``_k`` and ``_v``
keys; ``cache_controller.py``). Data-parallel attention groups share keys: the rank in a key is the
one within its group.

Mooncake's offset allocator rounds an object up to a bin. Bins are small floats of three mantissa
bits, so eight for each power of two: nothing is lost at their edges, and up to a ninth just above
one. A segment above 3.75 GiB is counted in units of the least power of two with which its size fits
32 bits' worth of bins. Source: Mooncake ``mooncake-store/src/offset_allocator.cpp``
(``SmallFloat``, ``calculateMultiplier``); held against a real store in
``tests/capacity/test_capacity_real.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.sglang.host_pool_layers import RowBytes, attention_ranks, row_bytes, stage_layers
from preflight.sglang.host_pools import PoolRequest
from preflight.sglang.model_geometry import AttentionKind, ModelGeometry


class PageObjects(NamedTuple):
    """The objects of one page, all writing ranks together, in bytes.

    whole: what every page has. beside: what comes on top for some or all of them (the keys of a
    sliding window, a draft's cache): between none and all of it is stored.
    """

    page_tokens: int
    whole: tuple[int, ...]
    beside: tuple[int, ...] = ()

    @property
    def token_bytes(self) -> int:
        return sum(self.whole) // self.page_tokens


def page_objects(request: PoolRequest) -> PageObjects | Unknown:
    """The objects of a page of ``request``'s server; Unknown where its model's are not known."""
    rows = stage_rows(request)
    if isinstance(rows, Unknown):
        return rows
    geometry = request.geometry
    assert isinstance(geometry, ModelGeometry)
    whole: list[int] = []
    beside: list[int] = []
    page = request.page_tokens
    for row in rows:
        if geometry.kind is AttentionKind.MLA:
            whole.append(page * row.parts[0])
            if row.index_layers:
                whole.append(page * row.index_per_layer * row.index_layers)
        else:
            writers = attention_ranks(request)
            whole += [page * size for size in _halves(row.parts)] * writers
            beside += [page * size for size in _halves(row.sliding_parts)] * writers
    if request.draft is not None:
        alone = request._replace(
            geometry=request.draft,
            draft=None,
            packed_drafts=0,
            pp=1,
            stage=0,
            kv_item_bytes=request.draft_item_bytes or request.kv_item_bytes,
        )
        draft = page_objects(alone)
        if isinstance(draft, Unknown):
            return draft
        beside += draft.whole
    kept = tuple(size for size in whole if size)
    if not kept:
        return Unknown(f"{geometry.name}: no layer of it keeps every token")
    return PageObjects(page, kept, tuple(size for size in beside if size))


def stage_rows(request: PoolRequest) -> tuple[RowBytes, ...] | Unknown:
    """One rank's row in each pipeline stage."""
    geometry = request.geometry
    if isinstance(geometry, Unknown):
        return Unknown(f"{geometry.reason}: give --model-config")
    if request.dcp > 1:
        return Unknown("decode context parallelism: how tokens spread over ranks is not computed")
    rows: list[RowBytes] = []
    for stage in range(request.pp):
        layers = stage_layers(request, geometry, stage)
        row = row_bytes(request, geometry, layers)
        if isinstance(row, Unknown):
            return row
        if layers.linear:
            return Unknown(
                f"{geometry.name} has linear-attention layers, whose states follow requests and "
                "not tokens"
            )
        rows.append(row)
    return tuple(rows)


def held_token_bytes(request: PoolRequest, ranks: int) -> tuple[int, int] | Unknown:
    """One token on the ranks of one group, ``ranks`` of them in each stage, least and most.

    They differ by the sliding-window layers, which keep a part of the tokens.
    """
    rows = stage_rows(request)
    if isinstance(rows, Unknown):
        return rows
    least = ranks * sum(sum(row.parts) + row.index_per_layer * row.index_layers for row in rows)
    return least, least + ranks * sum(row.sliding for row in rows)


def _halves(parts: tuple[int, ...]) -> tuple[int, ...]:
    """K and V: the two halves of one tensor, or a tensor each where they differ in width."""
    return (parts[0] // 2, parts[0] // 2) if len(parts) == 1 else parts


_MANTISSA_BITS = 3
# SmallFloat::MAX_BIN_SIZE, in units.
_MOST_UNITS = 4026531840


def occupied_bytes(object_bytes: int, segment_bytes: int) -> int | None:
    """What an object of ``object_bytes`` takes; None where it is larger than any bin."""
    unit_bits = 0
    while segment_bytes >> unit_bits > _MOST_UNITS:
        unit_bits += 1
    units = -(-object_bytes // (1 << unit_bits))
    if units > _MOST_UNITS:
        return None
    return _bin_units(units) << unit_bits


def _bin_units(units: int) -> int:
    """The least bin that is not smaller."""
    if units < 1 << _MANTISSA_BITS:
        return units
    step = 1 << (units.bit_length() - 1 - _MANTISSA_BITS)
    return -(-units // step) * step


def objects_that_fit(object_bytes: int, segment_bytes: int) -> int:
    """How many objects of one size a segment takes."""
    taken = occupied_bytes(object_bytes, segment_bytes)
    return 0 if not taken else segment_bytes // taken
