"""Byte units, rounding, and how sizes are printed and read."""

from __future__ import annotations

import re

from checks.base.regex import regex

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4
# What SGLang's --hicache-size is a number of: decimal gigabytes, not GiB.
GIGABYTE = 10**9


class Quantity(str):
    """An amount as a person reads it, which knows its number; within another text it is a text.

    unit: bytes, pages, files ...: what ``value`` counts. least: it may be more than ``value``.
    """

    def __new__(
        cls, text: str, value: float | None = None, unit: str = "", least: bool = False
    ) -> Quantity:
        """Make a text with its number."""
        made = super().__new__(cls, text)
        made.value, made.unit, made.least = value, unit, least
        return made

    value: float | None
    unit: str
    least: bool


def or_more(amount: str) -> str:
    """Return ``"8.22 GiB or more"``."""
    if not isinstance(amount, Quantity):
        return f"{amount} or more"
    if amount.least:
        return amount
    return Quantity(f"{amount} or more", amount.value, amount.unit, least=True)


def format_bytes(size_bytes: int, template: str = "{}") -> Quantity:
    """Return a size in the largest binary unit in which it is at least one, as ``"264.06 GiB"``.

    template: the text around it, as ``"{} free"``.
    """
    text = f"{size_bytes} B"
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale:
            text = f"{size_bytes / scale:.2f} {unit}"
            break
    return Quantity(template.replace("{}", text), size_bytes, "bytes")


def format_need(need_bytes: int, have_bytes: int, template: str = "{}") -> Quantity:
    """Return a need; if its digits are those of the bytes there are, with the missing bytes.

    As ``"50.00 GiB (3.20 MiB more)"``. template: the text around it, ``"{} in one region"``.
    """
    if need_bytes > have_bytes and format_bytes(need_bytes) == format_bytes(have_bytes):
        template = template.replace("{}", f"{{}} ({format_bytes(need_bytes - have_bytes)} more)")
    return format_bytes(need_bytes, template)


def format_page_size(page_size_bytes: int) -> Quantity:
    """Return a page size in whole units, as ``"2 MiB"``."""
    text = f"{page_size_bytes} B"
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if page_size_bytes >= scale:
            text = f"{page_size_bytes / scale:g} {unit}"
            break
    return Quantity(text, page_size_bytes, "bytes")


def kernel_size(page_size_bytes: int) -> str:
    """Return a page size as the kernel writes it: 1G, 2M, 64K (mm/hugetlb_cgroup.c, mem_fmt)."""
    for unit, scale in (("G", GIB), ("M", MIB)):
        if page_size_bytes >= scale:
            return f"{page_size_bytes // scale}{unit}"
    return f"{page_size_bytes // KIB}K"


def counted(number: int, unit: str, template: str = "{}") -> Quantity:
    """Return a number with its unit, which is a plural, as ``"120000 pages"``.

    template: the text around it, as ``"{} left"``.
    """
    return Quantity(template.replace("{}", f"{number} {unit}"), number, unit)


def round_up(size: int, step: int) -> int:
    """Return the least multiple of ``step`` that is at least ``size``."""
    return -(-size // step) * step


# The largest size that any call in the chain can carry: a signed 64-bit length.
LARGEST_BYTES = 2**63 - 1

_UNITS = {"b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}b"] = _UNITS[f"{_letter}ib"] = 1024**_power

_SIZE = regex(r"(\d+)(?:\.(\d+))?([a-z]*)", re.ASCII)


def parse_size(text: str, *, bare_bytes: bool = False) -> int:
    """Return the bytes of a size such as ``"64gb"``. Units are powers of 1024.

    The grammar is that of Mooncake's documented helper. A number without a unit is refused,
    except zero: programs read such numbers differently. With ``bare_bytes`` it means bytes, as
    to the helper itself. Raises ValueError with a sentence that names the value, the rule and
    the right spelling.
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
    """Return a size as SGLang and the store service both read it: whole ``gb``, else bytes."""
    return f"{size // GIB}gb" if size and size % GIB == 0 else str(size)
