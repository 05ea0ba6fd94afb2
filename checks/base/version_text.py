"""A release's number as a wheel spells it: ``0.3.13.post1``, the same for Mooncake and SGLang."""

from __future__ import annotations

import re

_VERSION = re.compile(
    r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:\.?post(\d{1,6}))?(?:(?:a|b|rc|\.dev|\+)[\w.]*)*",
    re.ASCII,
)


Numbers = tuple[int, int, int, int]


def version_numbers(text: str, product: str, examples: str) -> Numbers:
    """Return the numbers of a version: ``"0.3.13.post1"`` is ``(0, 3, 13, 1)``.

    Raises ValueError that names ``product`` (with its article) and ``examples`` of the spelling.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not {product} version: write all three numbers, as {examples}"
        )
    major, minor, patch, post = match.groups()
    return (int(major), int(minor), int(patch), int(post or 0))


# A build for one accelerator is the release all the same: 0.5.23+cu130.
_UNRELEASED = re.compile(r"\d(?:a|b|rc)\d|\.dev|\+(?!cu\d|cpu|rocm|npu|musa|xpu)", re.ASCII)


def is_release(text: str) -> bool:
    """Return whether ``text`` names a release, and no nightly, candidate or fork of one."""
    return _UNRELEASED.search(text) is None
