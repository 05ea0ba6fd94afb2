"""Every setting that Mooncake's C++ library reads from the environment, and how it reads each.

The table is ``data/mooncake_variables.json``; huge pages, the arena and the local hot cache's size
are ``store_environment``'s. Source of every row: Mooncake 3b5a594 (2026-08-22), at the file and
line that the row names; ``te/`` stands for ``mooncake-transfer-engine/src/``, ``store/`` for
``mooncake-store/src/``. Of the readers: ``mooncake-common/include/integer_parser.h``,
``store/file_storage.cpp``; glibc's atoi and atoll, C++'s stoi and stoull; confirmed by running
0.3.13.post1 and 0.3.14.
"""

import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from checks.framework.regex import regex
from preflight.base.program import data_file
from preflight.engines.programs.store_environment import STRTOD_BLANKS

Row = TypeVar("Row", bound=tuple[Any, ...])


class Reader(Enum):
    """How the code turns a text into a number."""

    ATOI = "leading digits, 32 bits; a text is 0"
    ATOLL = "leading digits, 64 bits; a text is 0"
    STOI = "leading digits, 32 bits; a text keeps the default"
    STOLL = "leading digits and a sign, 64 bits; a text keeps the default"
    STOULL = "leading digits, 64 bits; a text keeps the default"
    WHOLE = "the whole text, blanks around it and a leading + allowed; else the default"
    STRICT = "the whole text, digits and a leading - alone; else the default"


class Number(NamedTuple):
    """A variable that holds a number.

    Attributes:
        default: The effect without the variable, in words.
        least, most: The bounds of a number that is taken, or None.
        values: The only numbers that are taken.
        beyond: The effect of any other number, in words; "" if the default holds.
        refused: The error, if such a number ends the process.
        nonzero: Any number but 0 is taken.
        negative_wraps: -1 is read as 2^64 - 1.
        unless: A variable that replaces this one if it is set.
    """

    name: str
    reader: Reader
    default: str
    least: int | None
    most: int | None
    source: str
    values: tuple[int, ...] = ()
    beyond: str = ""
    refused: str = ""
    nonzero: bool = False
    negative_wraps: bool = False
    unless: str = ""

    def takes(self, value: int) -> bool:
        """Tell whether Mooncake uses the number ``value``, or refuses or replaces that number."""
        if self.values:
            return value in self.values
        if self.nonzero:
            return value != 0
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)

    @property
    def range(self) -> str:
        """Return in words the numbers that Mooncake takes."""
        if self.values or self.nonzero:
            return " or ".join(map(str, self.values)) or "any number but 0"
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"


class Switch(NamedTuple):
    """A variable that holds a truth value: words for on, words for off, and the effect of
    others.
    """

    name: str
    on: tuple[str, ...]
    off: tuple[str, ...]
    otherwise: bool | None  # None: the default holds
    default: str
    source: str
    exact: bool = False  # case and blanks count


class Choice(NamedTuple):
    """A variable that holds one of the words ``taken``; any other is read as ``otherwise``."""

    name: str
    taken: tuple[str, ...]
    default: str
    otherwise: str
    source: str
    any_case: bool = False


class Ratio(NamedTuple):
    """A variable that holds a share in (0, 1]; any other text leaves the default, silently."""

    name: str
    default: float
    source: str
    unless: str = ""


class PortRange(NamedTuple):
    """Two variables that are one range of ports; if either is wrong, both are reset."""

    least: str
    most: str
    default: tuple[int, int]
    reader: Reader
    source: str


# mooncake-transfer-engine/src/config.cpp ValidatePortRange: the ports that a kernel gives to
# outgoing connections (the usual net.ipv4.ip_local_port_range) are not taken.
PORTS = (1024, 65535)
EPHEMERAL_PORTS = (32768, 60999)


def _rows(row_type: type[Row], rows: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Build the rows of one table; lists become tuples, and a reader's name a ``Reader``."""
    result = []
    for row in rows:
        fields = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
        reader = {"reader": Reader[row["reader"]]} if "reader" in row else {}
        result.append(row_type(**fields | reader))
    return tuple(result)


with open(data_file("mooncake_variables.json"), encoding="utf-8") as _file:
    _TABLE = json.load(_file)
NUMBERS = _rows(Number, _TABLE["numbers"])
# Of SSD offload; MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES is a rule of its own. What a number out
# of range does is FileStorageConfig::Validate's business: it throws.
OFFLOAD_NUMBERS = _rows(Number, _TABLE["offload_numbers"])
SWITCHES = _rows(Switch, _TABLE["switches"])
CHOICES = _rows(Choice, _TABLE["choices"])
RATIOS = _rows(Ratio, _TABLE["ratios"])
PORT_RANGES = _rows(PortRange, _TABLE["port_ranges"])
# getenv alone: any text turns them on, 0 and the empty one too.
PRESENCE: Mapping[str, str] = _TABLE["presence"]

_LEADING = regex(rf"[{STRTOD_BLANKS}]*([+-]?\d+)", re.ASCII)
_SIGNED = regex(r"-?\d+", re.ASCII)
# Where the code that calls stoull looks for a minus sign itself, as it does for sizes.
_INT, _LONG = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_RANGES = {Reader.STOI: _INT, Reader.STOLL: _LONG, Reader.STOULL: (0, 2**64 - 1)}
# Longer than any 64-bit number; keeps int() from a text of a million digits.
_MOST_DIGITS = 40


class NumberRead(NamedTuple):
    """The number that is read from a text.

    Attributes:
        value: None if the code keeps its default.
        cut: True if the text is more than a number, or has none.
    """

    value: int | None
    cut: bool


def read_number(reader: Reader, text: str) -> NumberRead:
    """Return the number that ``reader`` takes from ``text``; bounds of the row are not checked."""
    if reader in (Reader.WHOLE, Reader.STRICT):
        return NumberRead(_read_whole(reader, text), not _is_number(text))
    match = _LEADING.match(text)
    value = int(match.group(1)[:_MOST_DIGITS]) if match else None
    cut = not _is_number(text)
    if reader in (Reader.ATOI, Reader.ATOLL):  # glibc: strtol saturates, atoi keeps the low 32 bits
        value = max(_LONG[0], min(_LONG[1], value or 0))
        low = value & 2**32 - 1
        return NumberRead((low ^ 2**31) - 2**31 if reader is Reader.ATOI else value, cut)
    least, most = _RANGES[reader]
    if value is None or not least <= value <= most:
        return NumberRead(None, cut)  # std::invalid_argument, std::out_of_range
    return NumberRead(value, cut)


def effect_of(row: Number, value: int) -> str:
    """Return in words the effect of a number that Mooncake does not take."""
    if row.negative_wraps and value < 0:
        return f"read as {value + 2**64}"
    return row.refused or row.beyond or f"{row.default} is used"


def read_switch(row: Switch, text: str) -> bool | None:
    """Return whether a text turns the switch on; None if the default holds."""
    word = text if row.exact else text.strip(STRTOD_BLANKS).lower()
    if word in row.on:
        return True
    return False if word in row.off else row.otherwise


def takes_word(row: Choice, text: str) -> bool:
    """Tell whether ``text`` is one of the words that the variable takes."""
    return (text.lower() if row.any_case else text) in row.taken


def read_ratio(text: str) -> float | None:
    """Return the share in (0, 1] that ``text`` holds; None if Mooncake keeps its default."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 and "_" not in text and text == text.rstrip() else None


def usable_ports(least: int, most: int) -> bool:
    """Tell whether Mooncake takes a range of ports."""
    first, last = EPHEMERAL_PORTS
    ephemeral = any(first <= port <= last for port in (least, most))
    return PORTS[0] <= least <= most <= PORTS[1] and not ephemeral


def _read_whole(reader: Reader, text: str) -> int | None:
    if reader is Reader.WHOLE:
        text = text.strip(STRTOD_BLANKS)
        text = text[1:] if text.startswith("+") and not text.startswith("+-") else text
    return int(text[:_MOST_DIGITS]) if _SIGNED.fullmatch(text) else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text.strip(STRTOD_BLANKS), re.ASCII) is not None
