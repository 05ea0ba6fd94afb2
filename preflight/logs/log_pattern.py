"""What a known line of a log is: how it is recognised, what it means, which check foresees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple


class Layer(Enum):
    """Who printed the line."""

    SGLANG = "SGLang"
    MOONCAKE = "Mooncake"
    KERNEL = "kernel"
    CUDA = "CUDA"
    LIBRARY = "system library"
    RUNTIME = "container or shell"


class Stage(IntEnum):
    """How near to the root cause a line stands; explanations are shown in this order."""

    KERNEL = 0  # the kernel's own words: they decide what an errno meant
    CAUSE = 1
    SYMPTOM = 2  # has several causes
    WARNING = 3  # it runs, not as meant
    CONSEQUENCE = 4  # something else failed before

    @property
    def word(self) -> str:
        return ("root cause", "root cause", "symptom", "warning", "consequence")[self]


# The named groups of a match; a group that took no part is not in it.
Groups = Mapping[str, str]


class Hit(NamedTuple):
    """What a log holds of one pattern: how often, from which line on, the first and last match.

    names: the distinct devices, addresses, variables or keys (the group ``name``), a few of them.
    """

    times: int
    line: int
    excerpt: str
    first: Groups
    last: Groups
    names: tuple[str, ...]


# Everything that was found in one log, by the ids of the patterns.
Seen = Mapping[str, Hit]


class Reading(NamedTuple):
    """What this log tells beyond the pattern's own words; what is empty leaves those standing.

    sums: what follows from the numbers of the line, a sentence. decided: what other lines of the
    same log decide.
    """

    sums: str = ""
    decided: str = ""
    cause: str = ""
    remedy: str = ""
    checks: tuple[str, ...] = ()
    stage: Stage | None = None


Reader = Callable[[Groups, Seen], Reading]


class Pattern(NamedTuple):
    """One known line.

    literals: one of them stands in the line; they are searched first, for speed. regex: searched
    around it; named groups hold sizes, devices, errno. checks: ids of the checks and rules that
    see it coming, the first is the best. cause, remedy, apart (what tells it from look-alikes) may
    name groups in braces. unless: ids that say the same better: found in the log, they silence
    this one. A pattern without a cause is a mark: it explains nothing, others read it.
    """

    id: str
    layer: Layer
    stage: Stage
    literals: tuple[str, ...]
    regex: str
    checks: tuple[str, ...] = ()
    cause: str = ""
    remedy: str = ""
    apart: str = ""
    read: Reader | None = None
    unless: tuple[str, ...] = ()


class Printer(NamedTuple):
    """Who prints the lines of a module."""

    layer: Layer

    def line(
        self,
        id_: str,
        stage: Stage,
        literals: str | tuple[str, ...],
        regex: str,
        checks: tuple[str, ...],
        cause: str,
        remedy: str,
        apart: str = "",
    ) -> Pattern:
        found = (literals,) if isinstance(literals, str) else literals
        return Pattern(id_, self.layer, stage, found, regex, checks, cause, remedy, apart)


def mark(id_: str, layer: Layer, literal: str, regex: str) -> Pattern:
    """A line of a good start that decides how others are to be read."""
    return Pattern(id_, layer, Stage.WARNING, (literal,), regex)


def number(groups: Groups, name: str) -> int | None:
    """A group as a whole number, decimal or 0x; None where it is missing or absurd."""
    text = groups.get(name, "")
    if len(text) > 40:
        return None
    try:
        return int(text, 0) if text.startswith("0x") else int(text)
    except ValueError:
        return None


# The sizes that Mooncake names in its messages.
PAGE_BYTES = {"2MB": 2 << 20, "512MB": 512 << 20, "1GB": 1 << 30}
