"""Mooncake's own reading of environment values, as its C++ code does it.

Each function says what the library makes of a text, however surprising. Sources: Mooncake
``mooncake-store/include/utils.h`` (byte sizes), ``mooncake-store/src/client_service.cpp`` (leading
digits), ``mooncake-common/include/bool_parser.h`` and ``integer_parser.h``,
``store/file_storage.cpp``; glibc's atoi and atoll, C++'s stoi and stoull; confirmed by running
0.3.13.post1 and 0.3.14.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from preflight.programs.mooncake_variables import (
    EPHEMERAL_PORTS,
    PORTS,
    Choice,
    Number,
    Reader,
    Switch,
)

UINT64_MAX = 2**64 - 1

_UNIT_BYTES = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNIT_BYTES[_letter] = _UNIT_BYTES[_letter + "B"] = 1024**_power

# What C++'s std::stod takes, longest match first: hexadecimal, decimal, infinity, not-a-number.
_STOD = re.compile(
    r"[+-]?(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
    r"|inf(?:inity)?|nan(?:\([0-9A-Za-z_]*\))?)",
    re.IGNORECASE | re.ASCII,
)
_BLANKS = " \t\r\n"
_STRTOD_BLANKS = _BLANKS + "\v\f"
_LEAST_NORMAL = 2.0**-1022


def byte_size(text: str, negative_wraps: bool = False) -> int | None:
    """A size in bytes, or None where the library rejects it. Units are powers of 1024.

    ``MiB`` and ``GiB`` are rejected; ``1.5gb``, ``1e9``, ``0x10`` and ``infinite`` are not.
    negative_wraps: as ``Release.negative_sizes_wrap`` says; -5 is then 2^64 - 5.
    """
    stripped = text.strip(_BLANKS)
    if stripped == "infinite":
        return UINT64_MAX
    start = len(stripped) - len(stripped.lstrip(_STRTOD_BLANKS))
    number = _STOD.match(stripped, start)
    if number is None:
        return None
    value = _to_float(number.group())
    if value is None or (value < 0 and not negative_wraps):
        return None
    unit = stripped[number.end() :].lstrip(_BLANKS).upper()
    if unit not in _UNIT_BYTES:
        return None
    return _to_uint64(value * _UNIT_BYTES[unit])


def leading_digits(text: str) -> int | None:
    """What ``std::stoull`` makes of a text: its leading digits, the rest ignored (``4GB`` is 4).

    None where the library warns and keeps its default: no digit first, zero, or a minus sign as
    the first character. Behind a blank nothing looks for the sign, and `` -4`` is 2^64 - 4.
    """
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(\d+)", text, re.ASCII)
    if match is None or text.startswith("-"):
        return None
    value = int(match.group(2)[:40])
    if not 0 < value <= UINT64_MAX:
        return None
    return 2**64 - value if match.group(1) == "-" else value


def boolean(text: str, common_reader: bool = True) -> bool | None:
    """``TryParseBool``: None for anything that is not one of its ten words.

    common_reader: as ``Release.common_reader`` says; without it there are eight words.
    """
    word = text.strip(_STRTOD_BLANKS if common_reader else _BLANKS).lower()
    if word in ("1", "true", "yes", "on") or (common_reader and word == "enable"):
        return True
    if word in ("0", "false", "no", "off") or (common_reader and word == "disable"):
        return False
    return None


def _to_uint64(value: float) -> int:
    """``static_cast<uint64_t>`` where C++ leaves it undefined, as GCC's x86-64 code does it."""
    if value != value:
        return 2**63
    if value >= 2.0**64:
        return 0
    if value <= -(2.0**63):
        return 2**63
    return int(value) % 2**64


def _to_float(text: str) -> float | None:
    """``std::stod``; None where it is out of range, which the library catches."""
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


_LEADING = re.compile(rf"[{_STRTOD_BLANKS}]*([+-]?\d+)", re.ASCII)
_SIGNED = re.compile(r"-?\d+", re.ASCII)
# Where the code that calls stoull looks for a minus sign itself, as it does for sizes.
_RANGES = {
    Reader.STOI: (-(2**31), 2**31 - 1),
    Reader.STOLL: (-(2**63), 2**63 - 1),
    Reader.STOULL: (0, 2**64 - 1),
}
# Longer than any 64-bit number; keeps int() from a text of a million digits.
_MOST_DIGITS = 40


class NumberRead(NamedTuple):
    """What a text comes to. value: None where the code keeps its default. cut: the text is more
    than a number, or none at all."""

    value: int | None
    cut: bool


def read_number(reader: Reader, text: str) -> NumberRead:
    """Return the number that ``reader`` takes from ``text``, before any range is looked at."""
    if reader in (Reader.WHOLE, Reader.STRICT):
        return NumberRead(_whole(reader, text), not _is_number(text))
    match = _LEADING.match(text)
    value = int(match.group(1)[:_MOST_DIGITS]) if match else None
    cut = not _is_number(text)
    if reader in (Reader.ATOI, Reader.ATOLL):
        return NumberRead(_as_signed(value or 0, reader), cut)
    least, most = _RANGES[reader]
    if value is None or not least <= value <= most:
        return NumberRead(None, cut)  # std::invalid_argument, std::out_of_range
    return NumberRead(value, cut)


def becomes(row: Number, value: int) -> str:
    """Return what holds in place of a number that ``row`` does not take, in words."""
    if row.negative_wraps and value < 0:
        return f"read as {value + 2**64}"
    return row.refused or row.beyond or f"{row.default} is used"


def read_switch(row: Switch, text: str) -> bool | None:
    """Return what a word does: on, off, or None where the default holds."""
    word = text if row.exact else text.strip(_STRTOD_BLANKS).lower()
    if word in row.on:
        return True
    return False if word in row.off else row.otherwise


def takes_word(row: Choice, text: str) -> bool:
    """Tell whether ``text`` is one of the words."""
    return (text.lower() if row.any_case else text) in row.words


def read_ratio(text: str) -> float | None:
    """A share in (0, 1]; None where the code keeps its default."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 and "_" not in text and text == text.rstrip() else None


def usable_ports(least: int, most: int) -> bool:
    """Tell whether Mooncake takes a range of ports."""

    def usable(port: int) -> bool:
        ephemeral = EPHEMERAL_PORTS[0] <= port <= EPHEMERAL_PORTS[1]
        return PORTS[0] <= port <= PORTS[1] and not ephemeral

    return usable(least) and usable(most) and least <= most


def _whole(reader: Reader, text: str) -> int | None:
    if reader is Reader.WHOLE:
        text = text.strip(_STRTOD_BLANKS)
        text = text[1:] if text.startswith("+") and not text.startswith("+-") else text
    return int(text[:_MOST_DIGITS]) if _SIGNED.fullmatch(text) else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text.strip(_STRTOD_BLANKS), re.ASCII) is not None


def _as_signed(value: int, reader: Reader) -> int:
    """As glibc converts: strtol saturates at 64 bits, atoi then keeps the low 32."""
    value = max(-(2**63), min(2**63 - 1, value))
    if reader is Reader.ATOI:
        value &= 2**32 - 1
        value -= 2**32 if value >= 2**31 else 0
    return value
