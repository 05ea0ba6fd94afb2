"""Mooncake's own reading of environment values, as its C++ code does it.

Each function says what the library makes of a text, however surprising. Sources: Mooncake
``mooncake-store/include/utils.h`` (byte sizes), ``mooncake-store/src/client_service.cpp`` (leading
digits), ``mooncake-common/include/bool_parser.h``; C++'s stod and stoull; confirmed by running
0.3.13.post1 and 0.3.14.
"""

from __future__ import annotations

import re

UINT64_MAX = 2**64 - 1

_UNIT_BYTES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNIT_BYTES[_letter] = _UNIT_BYTES[_letter + "B"] = 1024**_power

# What C++'s std::stod takes, longest match first: hexadecimal, decimal, infinity, not-a-number.
_STOD = (
    r"[+-]?(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
    r"|inf(?:inity)?|nan(?:\([0-9A-Za-z_]*\))?)"
)
_BLANKS = " \t\r\n"
STRTOD_BLANKS = _BLANKS + "\v\f"
_LEAST_NORMAL = 2.0**-1022


def byte_size(text: str, negative_wraps: bool = False) -> int | None:
    """Return a size in bytes, or None if the library rejects it. Units are powers of 1024.

    ``MiB`` and ``GiB`` are rejected; ``1.5gb``, ``1e9``, ``0x10`` and ``infinite`` are not.
    negative_wraps: as ``Release.negative_sizes_wrap`` says; -5 is then 2^64 - 5.
    """
    stripped = text.strip(_BLANKS)
    if stripped == "infinite":
        return UINT64_MAX
    start = len(stripped) - len(stripped.lstrip(STRTOD_BLANKS))
    number = re.compile(_STOD, re.IGNORECASE | re.ASCII).match(stripped, start)
    if number is None:
        return None
    value = _to_float(number.group())
    if value is None or (value < 0 and not negative_wraps):
        return None
    unit = stripped[number.end() :].lstrip(_BLANKS).upper()
    return None if unit not in _UNIT_BYTES else _to_uint64(value * _UNIT_BYTES[unit])


def leading_digits(text: str) -> int | None:
    """Return the number that ``std::stoull`` reads: the leading digits (``4GB`` is 4).

    None if the library warns and keeps its default: no digit first, zero, or a minus sign as the
    first character. Behind a blank nothing looks for the sign, and `` -4`` is 2^64 - 4.
    """
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(\d+)", text, re.ASCII)
    if match is None or text.startswith("-"):
        return None
    value = int(match.group(2)[:40])
    if not 0 < value <= UINT64_MAX:
        return None
    return 2**64 - value if match.group(1) == "-" else value


def boolean(text: str, common_reader: bool = True) -> bool | None:
    """Return the boolean that ``TryParseBool`` reads, or None; old releases know eight words."""
    word = text.strip(STRTOD_BLANKS if common_reader else _BLANKS).lower()
    if word in ("1", "true", "yes", "on") or (common_reader and word == "enable"):
        return True
    if word in ("0", "false", "no", "off") or (common_reader and word == "disable"):
        return False
    return None


def _to_uint64(value: float) -> int:
    """Return ``static_cast<uint64_t>`` as GCC on x86-64 does it, undefined cases too."""
    if value != value:
        return 2**63
    if value >= 2.0**64:
        return 0
    return 2**63 if value <= -(2.0**63) else int(value) % 2**64


def _to_float(text: str) -> float | None:
    """Return the number that ``std::stod`` reads; None if out of range: the library catches it."""
    lower = text.lower()
    if "nan" in lower:
        return float("nan")
    try:
        value = float.fromhex(text) if "x" in lower else float(text)
    except OverflowError:
        return None
    overflowed = value in (float("inf"), float("-inf")) and "inf" not in lower
    digits = re.split("[pe]" if "x" not in lower else "p", lower.replace("0x", "", 1))[0]
    vanished = abs(value) < _LEAST_NORMAL and re.search("[1-9a-f]", digits) is not None
    return None if overflowed or vanished else value
