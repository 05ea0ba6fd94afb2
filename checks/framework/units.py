"""Byte units, rounding, and how sizes are printed and read."""

from __future__ import annotations

import re

from checks.framework.regex import regex

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
# What SGLang's --hicache-size is a number of: decimal gigabytes, not GiB.
GIGABYTE = 10**9


class Quantity(str):
    """An amount as text for a person, which also knows its number."""

    def __new__(
        cls, text: str, value: float | None = None, unit: str = "", least: bool = False
    ) -> Quantity:
        """Make a text with its number.

        Args:
            value: None if the text has no number.
        """
        made = super().__new__(cls, text)
        made.value, made.unit, made.least = value, unit, least
        return made

    value: float | None
    unit: str  # bytes, pages, files ...: what ``value`` counts
    least: bool  # it may be more than ``value``


def or_more(amount: str) -> str:
    """Return an amount as ``"8.22 GiB or more"``.

    A ``Quantity`` that is marked ``least`` says so already, and is returned unchanged; plain text
    always gets the words.
    """
    if not isinstance(amount, Quantity):
        return f"{amount} or more"
    if amount.least:
        return amount
    return Quantity(f"{amount} or more", amount.value, amount.unit, least=True)


def _scaled(size_bytes: int, style: str) -> str:
    """Return a size in the largest binary unit in which it is at least one."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:{style}} {unit}"
    return f"{size_bytes} B"


def format_bytes(size_bytes: int, template: str = "{}") -> Quantity:
    """Return a size as ``"264.06 GiB"``.

    Args:
        template: The text around the size.
    """
    return Quantity(template.replace("{}", _scaled(size_bytes, ".2f")), size_bytes, "bytes")


def format_need(need_bytes: int, have_bytes: int, template: str = "{}") -> Quantity:
    """Return a need as text.

    If ``have_bytes`` would print the same, the text adds the difference: ``"5 GiB (3 MiB more)"``.
    """
    if need_bytes > have_bytes and format_bytes(need_bytes) == format_bytes(have_bytes):
        template = template.replace("{}", f"{{}} ({format_bytes(need_bytes - have_bytes)} more)")
    return format_bytes(need_bytes, template)


def format_page_size(page_size_bytes: int) -> Quantity:
    """Return a page size in whole units, as ``"2 MiB"``."""
    return Quantity(_scaled(page_size_bytes, "g"), page_size_bytes, "bytes")


def kernel_size(page_size_bytes: int) -> str:
    """Return a page size as the kernel writes it: 1G, 2M, 64K (mm/hugetlb_cgroup.c, mem_fmt)."""
    for unit, scale in (("G", GIB), ("M", MIB)):
        if page_size_bytes >= scale:
            return f"{page_size_bytes // scale}{unit}"
    return f"{page_size_bytes // KIB}K"


def counted(number: int, unit: str, template: str = "{}") -> Quantity:
    """Return a number with its unit, a plural, in a template: ``"120000 pages left"``."""
    return Quantity(template.replace("{}", f"{number} {unit}"), number, unit)


def round_up(size: int, step: int) -> int:
    """Return the least multiple of ``step`` that is at least ``size``."""
    return -(-size // step) * step


LARGEST_BYTES = 2**63 - 1  # a signed 64-bit length: no call in the chain carries more
_UNITS = {"b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}b"] = _UNITS[f"{_letter}ib"] = 1024**_power
_SIZE = regex(r"(\d+)(?:\.(\d+))?([a-z]*)", re.ASCII)


def parse_size(text: str, *, bare_bytes: bool = False) -> int:
    """Return the bytes of a size such as ``"64gb"``, in powers of 1024, as Mooncake's own helper.

    A number without a unit is refused, because programs read it differently; 0 is accepted, and
    with ``bare_bytes`` any number, as bytes.

    Raises:
        ValueError: With a sentence that names the value, the rule and the right spelling.
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
    too_large = ValueError(f"{text!r} is more than any machine can map (2^63 bytes)")
    if len(whole) > 24:
        raise too_large
    if not unit:
        if float(compact) == 0:
            return 0
        if not bare_bytes:
            raise ValueError(bare_number(text, compact))
    scale = _UNITS[unit or "b"]
    # The helper multiplies floats, which for whole numbers is exact up to 2^53.
    size = int(float(f"{whole}.{fraction}") * scale) if fraction else int(whole) * scale
    if size == 0 and float(f"{whole}.{fraction or 0}"):
        raise ValueError(f"{text!r} is less than one byte: sizes are whole bytes")
    if size > LARGEST_BYTES:
        raise too_large
    return size


def bare_number(text: str, number: str) -> str:
    """Return why ``text``, a number without a unit, is refused.

    Args:
        number: ``text`` as digits.
    """
    spellings = f"write {number}b for {number} bytes, or {number}gb for {number} GiB"
    return f"{text!r} has no unit: {spellings}"


def segment_text(size: int) -> str:
    """Return a size as SGLang and the store service both read it: whole ``gb``, else bytes."""
    return f"{size // GIB}gb" if size and size % GIB == 0 else str(size)
