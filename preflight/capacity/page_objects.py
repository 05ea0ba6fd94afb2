"""The objects that a page is in the store: how many there are, and what room each of them takes.

A page of the KV cache is objects of the store. A rank stores K and V of a page as an object each, a
rank of latent attention the row as one, and then the first rank alone: all have the same (SGLang
0.5.23 ``mooncake_store.py``, ``_k`` and ``_v`` keys; ``cache_controller.py``). Data-parallel
attention groups share keys: the rank in a key is the one within its group.

Mooncake's offset allocator rounds an object up to a bin. Bins are small floats of three mantissa
bits, so eight for each power of two: nothing is lost at their edges, and up to a ninth just above
one. A segment above 3.75 GiB is counted in units of the least power of two with which its size fits
32 bits' worth of bins. Source: ``mooncake-store/src/offset_allocator.cpp`` (``SmallFloat``,
``calculateMultiplier``); held against a real store in ``tests/capacity/test_capacity_real.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown, UnknownFactError, known, or_unknown
from preflight.capacity.deployment import Bounds
from preflight.sglang.host_pool_records import PoolRequest, RowBytes, stage_rows
from preflight.sglang.model_geometry import AttentionKind, LayerKind, ModelGeometry


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


@or_unknown
def page_objects(request: PoolRequest) -> PageObjects:
    """Return the objects of a page of the server; Unknown where its model's are not known."""
    geometry = model_of(request)
    whole: list[int] = []
    beside: list[int] = []
    page = request.page_tokens
    for row in _rows(request):
        if geometry.kind is AttentionKind.MLA:
            whole += [page * row.parts[0], page * row.index_per_layer * row.index_layers]
        else:
            writers = request.attention_ranks
            whole += [page * size for size in _halves(row.parts)] * writers
            beside += [page * size for size in _halves(row.sliding_parts)] * writers
    if request.draft is not None:
        beside += known(page_objects(request.of_draft())).whole
    kept = tuple(size for size in whole if size)
    if not kept:
        raise UnknownFactError(Unknown(f"{geometry.name}: no layer of it keeps every token"))
    return PageObjects(page, kept, tuple(size for size in beside if size))


def model_of(request: PoolRequest) -> ModelGeometry:
    """Return the model; raise UnknownFactError with what to give where it is not known."""
    if isinstance(request.geometry, Unknown):
        raise UnknownFactError(Unknown(f"{request.geometry.reason}: give --model-config"))
    return request.geometry


def _rows(request: PoolRequest) -> tuple[RowBytes, ...]:
    """Return one rank's row in each pipeline stage. Raises UnknownFactError."""
    geometry = model_of(request)
    why = ""
    if request.dcp > 1:
        why = "decode context parallelism: how tokens spread over ranks is not computed"
    elif LayerKind.LINEAR in geometry.layers:
        why = (
            f"{geometry.name} has linear-attention layers, whose states follow requests and "
            "not tokens"
        )
    if why:
        raise UnknownFactError(Unknown(why))
    return stage_rows(request)


@or_unknown
def held_token_bytes(request: PoolRequest) -> Bounds:
    """Return the bytes of one token on the ranks of one group.

    The bounds differ by the sliding-window layers, which hold a part of the tokens.
    """
    rows = _rows(request)
    row = sum(sum(row.parts) + row.index_per_layer * row.index_layers for row in rows)
    sliding = sum(row.sliding for row in rows)
    return Bounds(row, row + sliding).times(request.attention_ranks)


def _halves(parts: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of K and V: halves of one tensor, or a tensor each where widths differ."""
    return (parts[0] // 2, parts[0] // 2) if len(parts) == 1 else parts


_MANTISSA_BITS = 3
# SmallFloat::MAX_BIN_SIZE, in units.
_MOST_UNITS = 4026531840


def occupied_bytes(object_bytes: int, segment_bytes: int) -> int | None:
    """Return what an object of ``object_bytes`` takes; None where it is larger than any bin."""
    unit_bits = 0
    while segment_bytes >> unit_bits > _MOST_UNITS:
        unit_bits += 1
    units = -(-object_bytes // (1 << unit_bits))
    if units > _MOST_UNITS:
        return None
    return _bin_units(units) << unit_bits


def _bin_units(units: int) -> int:
    """Return the size of the least bin that is not smaller than ``units``."""
    if units < 1 << _MANTISSA_BITS:
        return units
    step = 1 << (units.bit_length() - 1 - _MANTISSA_BITS)
    return -(-units // step) * step


def objects_that_fit(object_bytes: int, segment_bytes: int) -> int:
    """Return how many objects of one size a segment takes."""
    taken = occupied_bytes(object_bytes, segment_bytes)
    return 0 if not taken else segment_bytes // taken
