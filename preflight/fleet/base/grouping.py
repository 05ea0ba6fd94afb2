"""Many things by what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")
One = TypeVar("One")


def grouped(pairs: Iterable[tuple[Key, One]]) -> dict[Key, list[One]]:
    """Return each key, in the order of its first, with all that come with it."""
    found: dict[Key, list[One]] = {}
    for key, one in pairs:
        found.setdefault(key, []).append(one)
    return found


def by_size(groups: Mapping[Key, Sequence[One]]) -> tuple[Key | None, list[Key]]:
    """Return the key of the largest group, None of a tie, and the others, the smallest first."""
    keys = sorted(groups, key=lambda key: len(groups[key]))
    if len(keys) > 1 and len(groups[keys[-1]]) == len(groups[keys[-2]]):
        return None, keys
    return keys[-1], keys[:-1]
