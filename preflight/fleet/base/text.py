"""What the answers about a fleet have in common: counts, times, colours, and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from preflight.base.one_line import shortened
from preflight.fleet.base.node_sets import fold

Paint = Callable[[str, str], str]
Key = TypeVar("Key")
One = TypeVar("One")

COLOURS = {"fail": "red", "unknown": "magenta", "warn": "yellow", "pass": "green"}
# The whole of each list is in --json; a screen holds some forty lines.
LONGEST_NODES = 60
LONGEST_VALUE = 72


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def nodes_text(names: Sequence[str]) -> str:
    """Return the node set of names; a long text is cut, and then has the number of nodes."""
    text = fold(names)
    if len(text) <= LONGEST_NODES:
        return text
    end = text.rfind(",", 0, LONGEST_NODES)
    return f"{text[: end if end > 0 else LONGEST_NODES]},... ({len(names)} nodes)"


def cut(text: str) -> str:
    """Return a value on one line, with nothing that moves the cursor."""
    return shortened(text, LONGEST_VALUE)


def rest_of(shown: int, rows: Sequence[object]) -> list[str]:
    """Return the line that says how many rows are left out; [] if none is."""
    return [f"and {len(rows) - shown} more, in --json"] if len(rows) > shown else []


def grouped(pairs: Iterable[tuple[Key, One]]) -> dict[Key, list[One]]:
    """Return key -> all items that come with it; keys in the order in which they first come."""
    groups: dict[Key, list[One]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def largest_and_others(groups: Mapping[Key, Sequence[One]]) -> tuple[Key | None, list[Key]]:
    """Return the key of the largest group, and the other keys, the smallest group first.

    If two groups are the largest: None, and all keys. At least one group is needed.
    """
    keys = sorted(groups, key=lambda key: len(groups[key]))
    if len(keys) > 1 and len(groups[keys[-1]]) == len(groups[keys[-2]]):
        return None, keys
    return keys[-1], keys[:-1]
