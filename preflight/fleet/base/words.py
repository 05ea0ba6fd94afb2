"""Words of the answers about a fleet: counts, colours, and texts cut to a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from preflight.base.one_line import clean
from preflight.fleet.base.node_sets import fold

Paint = Callable[[str, str], str]

COLOURS = {"fail": "red", "unknown": "magenta", "warn": "yellow", "pass": "green"}
# The whole of each list is in --json; a screen holds some forty lines.
LONGEST_NODES = 60
LONGEST_VALUE = 72


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def shortened_names(names: Sequence[str]) -> str:
    """Nodes folded, and cut with their number where they would fill the line."""
    return cut_set(fold(names), len(names))


def cut_set(text: str, count: int) -> str:
    if len(text) <= LONGEST_NODES:
        return text
    end = text.rfind(",", 0, LONGEST_NODES)
    return f"{text[: end if end > 0 else LONGEST_NODES]},... ({count} nodes)"


def cut(text: str, most: int = LONGEST_VALUE) -> str:
    """On one line, not too long, with nothing that moves the cursor."""
    text = clean(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def have_and_need(have: str, need: str, most: int = LONGEST_VALUE) -> str:
    """``have 8 MiB, need 1 GiB``, without what is empty."""
    pairs = (("have", have), ("need", need))
    return ", ".join(f"{word} {cut(text, most)}" for word, text in pairs if text)
