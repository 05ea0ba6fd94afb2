"""Numbers as C programs read and write them: environment variables, files of the kernel."""

from __future__ import annotations

import re


def leading_integer(text: str) -> int | None:
    """Return the integer that ``text`` starts with, after blanks, as ``atoi`` and ``std::stoi`` do.

    None where there is none: ``atoi`` makes 0 of that, ``stoi`` throws.
    """
    match = re.match(r"[ \t\n\v\f\r]*([+-]?\d{1,18})", text, re.ASCII)
    return int(match.group(1)) if match else None


def kernel_number(text: str) -> int | None:
    """Return a number as the kernel prints it, else None: decimal, 64 bits at most, or negative.

    ``int`` takes more, which is no number of a kernel's file: digits of other scripts, ``1_000``;
    and it raises on very long ones. Blanks around it are cut off.
    """
    word = text.strip()
    digits = word.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 20:
        return None
    number = int(word)
    return number if number < 1 << 64 else None


def kernel_count(text: str) -> int | None:
    """Return a count as the kernel prints it, which is never negative; else None."""
    number = kernel_number(text)
    return None if number is None or number < 0 else number
