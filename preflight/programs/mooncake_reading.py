"""What Mooncake makes of a number, a truth value or a share in its environment.

Pure; the table is ``mooncake_variables``. Sources: glibc's atoi and atoll, C++'s stoi and stoull,
Mooncake ``mooncake-common/include/integer_parser.h`` and ``store/file_storage.cpp``; confirmed by
what 0.3.13.post1 logs.
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

_BLANKS = " \t\n\v\f\r"
_LEADING = re.compile(rf"[{_BLANKS}]*([+-]?\d+)", re.ASCII)
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
    """The number that ``reader`` takes from ``text``, before any range is looked at."""
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
    """What holds in place of a number that ``row`` does not take, in words."""
    if row.negative_wraps and value < 0:
        return f"read as {value + 2**64}"
    return row.refused or row.beyond or f"{row.default} holds"


def read_switch(row: Switch, text: str) -> bool | None:
    """What a word does: on, off, or None where the default holds."""
    word = text if row.exact else text.strip(_BLANKS).lower()
    if word in row.on:
        return True
    return False if word in row.off else row.otherwise


def takes_word(row: Choice, text: str) -> bool:
    """Whether ``text`` is one of the words."""
    return (text.lower() if row.any_case else text) in row.words


def read_ratio(text: str) -> float | None:
    """A share in (0, 1]; None where the code keeps its default."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 and "_" not in text and text == text.rstrip() else None


def usable_ports(least: int, most: int) -> bool:
    """Whether Mooncake takes a range of ports."""

    def usable(port: int) -> bool:
        ephemeral = EPHEMERAL_PORTS[0] <= port <= EPHEMERAL_PORTS[1]
        return PORTS[0] <= port <= PORTS[1] and not ephemeral

    return usable(least) and usable(most) and least <= most


def _whole(reader: Reader, text: str) -> int | None:
    if reader is Reader.WHOLE:
        text = text.strip(_BLANKS)
        text = text[1:] if text.startswith("+") and not text.startswith("+-") else text
    return int(text[:_MOST_DIGITS]) if _SIGNED.fullmatch(text) else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text.strip(_BLANKS), re.ASCII) is not None


def _as_signed(value: int, reader: Reader) -> int:
    """As glibc converts: strtol saturates at 64 bits, atoi then keeps the low 32."""
    value = max(-(2**63), min(2**63 - 1, value))
    if reader is Reader.ATOI:
        value &= 2**32 - 1
        value -= 2**32 if value >= 2**31 else 0
    return value
