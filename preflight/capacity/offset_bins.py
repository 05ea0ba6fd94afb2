"""What an object takes of a segment: Mooncake's offset allocator rounds it up to a bin.

Bins are small floats of three mantissa bits, so eight for each power of two: nothing is lost at
their edges, and up to a ninth just above one. A segment above 3.75 GiB is counted in units of the
least power of two with which its size fits 32 bits' worth of bins.
Source: Mooncake ``mooncake-store/src/offset_allocator.cpp`` (``SmallFloat``,
``calculateMultiplier``); held against a real store in ``tests/test_capacity_store.py``.
"""

from __future__ import annotations

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
