"""How much can be registered, with few registrations: sizes double, then the gap is halved.

What was registered stays registered, so a step costs one registration, and the sum grows as fast
as the sizes do. Where N regions fit, log2(N) + 1 registrations reach the limit and log2(N) more
find it to the region; a length that one registration may not exceed adds what holding
the sum takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Registers so many bytes more: True, they are held; False, a limit was met and nothing changed.
Register = Callable[[int], bool]


class Found(NamedTuple):
    """held_bytes: the sum that is held. met: a limit keeps one region more from being held.

    tries: registrations asked for, those refused included.
    """

    held_bytes: int
    met: bool
    tries: int


def search(register: Register, region_bytes: int, largest_bytes: int, up_to_bytes: int) -> Found:
    """Find how many regions of ``region_bytes`` are held, up to ``up_to_bytes`` in all.

    largest_bytes: of one registration, at least ``region_bytes``.
    """
    most = max(1, largest_bytes // region_bytes)  # regions in one registration
    wanted = up_to_bytes // region_bytes
    held = tries = 0
    step = 1
    while held < wanted:
        asked = min(step, most, wanted - held)
        tries += 1
        if not register(asked * region_bytes):
            return _halve(register, region_bytes, held, asked - 1, tries)
        held += asked
        step *= 2
    return Found(held * region_bytes, False, tries)


def _halve(register: Register, region_bytes: int, held: int, gap: int, tries: int) -> Found:
    """Between ``held`` regions, which fit, and ``held + gap``, the most that may."""
    while gap:
        asked = (gap + 1) // 2
        tries += 1
        if register(asked * region_bytes):
            held += asked
            gap -= asked
        else:
            gap = asked - 1
    return Found(held * region_bytes, True, tries)
