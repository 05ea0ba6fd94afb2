"""The largest value that passes, where passing need not begin at the least value."""

from __future__ import annotations

from collections.abc import Callable


def largest(
    passes: Callable[[int], bool],
    least: int,
    most: int,
    too_small: Callable[[int], bool] = lambda number: False,
) -> int | None:
    """The largest whole number from ``least`` to ``most`` that passes; None where none does.

    Above the answer everything fails. Below it a launch may fail as well (a segment too small to be
    mapped, a pool smaller than the GPU's): numbers are looked at from the top, each half of the one
    before, until one passes; then the stretch above it is halved. Where one fails that is
    ``too_small``, which is true of no number above the answer, the answer is looked for above it.
    """
    if least > most:
        return None
    high, low, looked = most + 1, most, False
    while not passes(low):
        if not looked and too_small(low):
            looked = True
            end = _end(lambda number: passes(number) or too_small(number), low, high)
            if passes(end):
                return end
        if low == least:
            return None
        high, low = low, least + (low - least) // 2
    return _end(passes, low, high)


def _end(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number that holds, where ``low`` does and ``high`` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def largest_from(passes: Callable[[int], bool], low: int, most: int) -> int:
    """The largest that passes where ``low`` does, and the answer is hardly above it."""
    step, high = 1, most + 1
    while low + step < high:
        if not passes(low + step):
            high = low + step
            break
        low += step
        step *= 8
    return _end(passes, low, high)
