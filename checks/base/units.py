"""Byte units, rounding, and how sizes are printed."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3
# What SGLang's --hicache-size is a number of: decimal gigabytes, not GiB.
GIGABYTE = 10**9
TIB = 1024**4


def format_bytes(size_bytes: int) -> str:
    """``"264.06 GiB"``: two decimals, the largest binary unit that is not below one."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes} B"


def format_need(need_bytes: int, have_bytes: int) -> str:
    """``"50.00 GiB (3.20 MiB more)"``: a need, by how much where its digits do not show it."""
    need = format_bytes(need_bytes)
    if need_bytes <= have_bytes or need != format_bytes(have_bytes):
        return need
    return f"{need} ({format_bytes(need_bytes - have_bytes)} more)"


def format_page_size(page_size_bytes: int) -> str:
    """``"2 MiB"``: a page size, which is a whole number of its unit."""
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if page_size_bytes >= scale:
            return f"{page_size_bytes / scale:g} {unit}"
    return f"{page_size_bytes} B"


def round_up(size: int, step: int) -> int:
    """The least multiple of ``step`` that is at least ``size``."""
    return -(-size // step) * step
