"""Sizes as a user writes them: the grammar of Mooncake's documented helper."""

from __future__ import annotations

import re

from checks.base.units import GIB

# The largest size that any call in the chain can carry: a signed 64-bit length.
LARGEST_BYTES = 2**63 - 1

_UNITS = {"b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}b"] = _UNITS[f"{_letter}ib"] = 1024**_power

_SIZE = re.compile(r"(\d+)(?:\.(\d+))?([a-z]*)", re.ASCII)


def parse_size(text: str, *, bare_bytes: bool = False) -> int:
    """Return the bytes of a size such as ``"64gb"``. Units are powers of 1024.

    The grammar is that of Mooncake's documented helper. A number without a unit is refused, zero
    apart: its meaning depends on who reads it. To the helper itself (``bare_bytes``) it is bytes.
    Raises ValueError with a sentence that names the value, the rule and the right spelling.
    """
    compact = text.strip().lower().replace("_", "")
    match = _SIZE.fullmatch(compact)
    if match is None:
        if re.fullmatch(r"-[\d.]+[a-z]*", compact):
            raise ValueError(f"{text!r} is negative: a size is 0 or more, such as 64gb")
        raise ValueError(
            f"{text!r} is not a size: write digits and a unit (b, kb, mb, gb, tb), such as 64gb"
        )
    whole, fraction, unit = match.groups()
    if unit and unit not in _UNITS:
        raise ValueError(
            f"{text!r} has the unknown unit {unit!r}: use b, kb, mb, gb or tb (powers of 1024)"
        )
    if len(whole) > 24:
        raise ValueError(f"{text!r} is more than any machine can map (2^63 bytes)")
    if not unit:
        if float(compact) == 0:
            return 0
        if not bare_bytes:
            raise ValueError(bare_number(text, compact))
        unit = "b"
    # The helper multiplies floats, which for whole numbers is exact up to 2^53.
    size = (
        int(float(f"{whole}.{fraction}") * _UNITS[unit]) if fraction else int(whole) * _UNITS[unit]
    )
    if size == 0 and float(f"{whole}.{fraction or 0}"):
        raise ValueError(f"{text!r} is less than one byte: sizes are whole bytes")
    if size > LARGEST_BYTES:
        raise ValueError(f"{text!r} is more than any machine can map (2^63 bytes)")
    return size


def bare_number(text: str, number: str) -> str:
    """Return why a number without a unit is refused, with both spellings."""
    return (
        f"{text!r} has no unit: write {number}b for {number} bytes, or {number}gb for {number} GiB"
    )


def segment_text(size: int) -> str:
    """Return a size as SGLang since 0.5.4 and the store service read it alike.

    It is whole ``gb`` (2^30), else bytes.
    """
    return f"{size // GIB}gb" if size and size % GIB == 0 else str(size)
