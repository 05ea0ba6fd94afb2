"""Byte units, rounding, and how sizes are printed."""

from __future__ import annotations

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
        """Make a text that carries its number."""
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


def format_bytes(size_bytes: int, said: str = "{}") -> Quantity:
    """Return a size in the largest binary unit in which it is at least one, as ``"264.06 GiB"``.

    said: the text around it, as ``"{} free"``.
    """
    text = f"{size_bytes} B"
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale:
            text = f"{size_bytes / scale:.2f} {unit}"
            break
    return Quantity(said.replace("{}", text), size_bytes, "bytes")


def format_need(need_bytes: int, have_bytes: int, said: str = "{}") -> Quantity:
    """Return a need, with the bytes that are missing where the digits of both are the same.

    As ``"50.00 GiB (3.20 MiB more)"``. said: the text around it, as ``"{} in one region"``.
    """
    need = format_bytes(need_bytes)
    if need_bytes > have_bytes and need == format_bytes(have_bytes):
        said = said.replace("{}", f"{{}} ({format_bytes(need_bytes - have_bytes)} more)")
    return format_bytes(need_bytes, said)


def format_page_size(page_size_bytes: int) -> Quantity:
    """Return a page size, which is a whole number of its unit, as ``"2 MiB"``."""
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


def counted(number: int, unit: str, said: str = "{}") -> Quantity:
    """Return a number with its unit, which is a plural, as ``"120000 pages"``.

    said: the text around it, as ``"{} left"``.
    """
    return Quantity(said.replace("{}", f"{number} {unit}"), number, unit)


def round_up(size: int, step: int) -> int:
    """Return the least multiple of ``step`` that is at least ``size``."""
    return -(-size // step) * step
