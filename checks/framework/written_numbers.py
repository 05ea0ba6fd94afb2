"""Numbers as others write them: C programs, the kernel's files, releases (``0.3.13.post1``)."""

from __future__ import annotations

import re

from checks.framework.regex import regex


def leading_integer(text: str) -> int | None:
    """Return the integer at the start of ``text``, as ``atoi`` and ``std::stoi`` do, or None."""
    match = re.match(r"[ \t\n\v\f\r]*([+-]?\d{1,18})", text, re.ASCII)
    return int(match.group(1)) if match else None


def kernel_number(text: str) -> int | None:
    """Return a number as the kernel prints it (decimal, signed, 64 bits at most), else None."""
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


_VERSION = regex(
    r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:\.?post(\d{1,6}))?(?:(?:a|b|rc|\.dev|\+)[\w.]*)*",
    re.ASCII,
)


Numbers = tuple[int, int, int, int]


def version_numbers(text: str, product: str, examples: str) -> Numbers:
    """Return a version as (0, 3, 13, 1).

    Raises:
        ValueError: With ``product`` and ``examples``.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not {product} version: write all three numbers, as {examples}"
        )
    major, minor, patch, post = match.groups()
    return (int(major), int(minor), int(patch), int(post or 0))


# A build for one accelerator is the release all the same: 0.5.23+cu130.
_UNRELEASED = regex(r"\d(?:a|b|rc)\d|\.dev|\+(?!cu\d|cpu|rocm|npu|musa|xpu)", re.ASCII)


def is_release(text: str) -> bool:
    """Return whether ``text`` names a release, and no nightly, candidate or fork of one."""
    return _UNRELEASED.search(text) is None
