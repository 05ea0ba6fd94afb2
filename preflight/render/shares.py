"""Sizes as whole columns of a line."""

from __future__ import annotations

from collections.abc import Sequence


def columns_of(sizes: Sequence[int], width: int) -> list[int]:
    """Columns in proportion to ``sizes``, ``width`` in all; what is there at all has one or more.

    Where more than ``width`` sizes are above 0, the largest have a column each.
    """
    filled = [at for at, size in enumerate(sizes) if size > 0]
    columns = [0] * len(sizes)
    if not filled or width <= 0:
        return columns
    by_size = sorted(filled, key=lambda at: (-sizes[at], at))
    for at in by_size[:width]:
        columns[at] = 1
    # Each further column goes to whoever is furthest from its share, the first of equals.
    total = sum(sizes[at] for at in filled)
    spare = width - sum(columns)
    over = {at: max(0, sizes[at] * width - total) for at in filled}
    missing = sum(over.values())
    if spare <= 0 or not missing:
        return columns
    exact = {at: over[at] * spare for at in filled}
    for at in filled:
        columns[at] += exact[at] // missing
    left = width - sum(columns)
    for at in sorted(filled, key=lambda at: (-(exact[at] % missing), at))[:left]:
        columns[at] += 1
    return columns
