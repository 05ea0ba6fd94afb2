"""Many things by what they have in common."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TypeVar

Key = TypeVar("Key")
One = TypeVar("One")


def grouped(pairs: Iterable[tuple[Key, One]]) -> dict[Key, list[One]]:
    """Each key, in the order of its first, with all that come with it."""
    found: dict[Key, list[One]] = {}
    for key, one in pairs:
        found.setdefault(key, []).append(one)
    return found


def holders(rows: Iterable[tuple[int, Sequence[int]]]) -> dict[int, array[int]]:
    """number -> the places that hold it, ascending. rows: (place, its numbers).

    Nodes that say the same share one list, so that most of a fleet is looked at once.
    """
    alike: dict[int, tuple[Sequence[int], array[int]]] = {}
    for place, numbers in rows:
        alike.setdefault(id(numbers), (numbers, array("I")))[1].append(place)
    found: dict[int, array[int]] = {}
    for numbers, places in alike.values():
        for number in numbers:
            found.setdefault(number, array("I")).extend(places)
    return {number: array("I", sorted(places)) for number, places in found.items()}
