"""The known lines of logs: records, and the reader of the tables in this folder that hold them.

A table is TOML: rows of ``[[line]]``, each with ``[[line.when]]`` for what other words of the same
log decide. ``<<word>>`` stands for an entry of its ``[shared]``. What each key means stands at the
fields of ``Pattern`` and ``Case``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Where several patterns look for the same words, the first that matches a line has it.
TABLES = "kernel memory registration rdma services store sglang system".split()
# Who prints a line.
PRINTERS = ("SGLang", "Mooncake", "kernel", "CUDA", "system library", "container or shell")
_SHARED = re.compile(r"<<([\w-]+)>>")
_KINDS: dict[type, str] = {str: "text", list: "list", dict: "table"}


class Stage(IntEnum):
    """How near to the root cause a line stands; explanations are shown in this order."""

    KERNEL = 0  # the kernel's own words: they decide what an errno meant
    CAUSE = 1
    SYMPTOM = 2  # has several causes
    WARNING = 3  # it runs, not as meant
    CONSEQUENCE = 4  # something else failed before

    @property
    def word(self) -> str:
        """What it is called before a reader."""
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


class Case(NamedTuple):
    """What a log tells beyond a pattern's own words; the first whose conditions all hold counts.

    Conditions: seen (one of these ids is in the log), unseen (none is), and by group of the line:
    is_ (it is one of these words, "" where it is missing), begins and has (with one of them), above
    (a number above this). A group may be one of the first id of ``seen`` that the log holds:
    ``seen.limit`` of its first line, ``last.limit`` of its last.
    The rest replaces the pattern's where it is given; decided: what is known for certain here.
    """

    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    is_: Mapping[str, tuple[str, ...]] = {}
    begins: Mapping[str, tuple[str, ...]] = {}
    has: Mapping[str, tuple[str, ...]] = {}
    above: Mapping[str, int] = {}
    decided: str = ""
    sums: str = ""
    cause: str = ""
    remedy: str = ""
    checks: tuple[str, ...] = ()
    stage: Stage | None = None


class Pattern(NamedTuple):
    """One known line.

    find: one of these texts stands in the line; they are searched first, for speed. regex: searched
    around it, the first text itself where it is left out; named groups hold sizes, devices, errno;
    ``name2`` is ``name`` in another branch. example: such a line. checks: ids of the checks and
    rules that see it coming, the first is the best. cause, remedy, apart (what tells it from
    look-alikes) may name groups in braces. unless: ids that say the same better: found in the log,
    they silence this one. sums: what its numbers come to, left out where one is missing or 0;
    ``{size:bytes}`` is a number with its unit. compute: the function of ``conclusions`` that adds
    to the groups. A pattern without a cause is a mark: it explains nothing, others read it.
    """

    id: str
    printer: str
    stage: Stage
    find: tuple[str, ...]
    regex: str
    example: str = ""
    checks: tuple[str, ...] = ()
    cause: str = ""
    remedy: str = ""
    apart: str = ""
    unless: tuple[str, ...] = ()
    sums: str = ""
    compute: str = ""
    cases: tuple[Case, ...] = ()


class TableError(ValueError):
    """A table that is not as it has to be; says which row and key."""


class _Row:
    """The keys of one row, taken one by one; what is left over at the end is a mistake."""

    def __init__(self, keys: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> None:
        self._left, self._shared, self.where = dict(keys), shared, where

    def wrong(self, what: str) -> TableError:
        return TableError(f"{self.where}: {what}")

    def take(self, key: str, default: Any) -> Any:
        """The key's value, of the kind that its default is."""
        value = self._left.pop(key, default)
        if not isinstance(value, type(default)):
            raise self.wrong(f"{key} is {value!r}, not a {_KINDS[type(default)]}")
        return value

    def text(self, key: str) -> str:
        """A text, or texts that are joined; "" where it is not there."""
        joined = isinstance(self._left.get(key), list)
        text = "".join(self._texts(key, self.take(key, []))) if joined else self.take(key, "")
        return _SHARED.sub(lambda found: self._word(found.group(1), ""), text)

    def prose(self, key: str) -> str:
        """A text whose lines are one."""
        return " ".join(self.text(key).split())

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, in which an entry of [shared] may stand for several."""
        every: list[str] = []
        for each in self._texts(key, self.take(key, [])):
            found = _SHARED.fullmatch(each)
            every += self._word(found.group(1), []) if found else [each]
        return tuple(every)

    def words(self, key: str) -> dict[str, tuple[str, ...]]:
        """By group, one text or several."""
        table = self.take(key, {}).items()
        return {name: self._texts(key, v if isinstance(v, list) else [v]) for name, v in table}

    def rows(self, key: str) -> list[_Row]:
        rows = enumerate(self.take(key, []), 1)
        return [_Row(row, self._shared, f"{self.where}, {key} {n}") for n, row in rows]

    def stage(self) -> Stage | None:
        word = self.text("stage")
        if word and word.upper() not in Stage.__members__:
            raise self.wrong(
                f"stage is {word!r}, not one of {', '.join(Stage.__members__).lower()}"
            )
        return Stage[word.upper()] if word else None

    def done(self) -> None:
        if self._left:
            raise self.wrong(f"no such key: {', '.join(self._left)}")

    def _texts(self, key: str, several: list[Any]) -> tuple[str, ...]:
        if not all(isinstance(each, str) for each in several):
            raise self.wrong(f"{key} is {several!r}, not texts")
        return tuple(several)

    def _word(self, name: str, kind: Any) -> Any:
        value = self._shared.get(name)
        if not isinstance(value, type(kind)):
            raise self.wrong(f"[shared] has no {_KINDS[type(kind)]} {name!r}")
        return value


def read_table(text: str, name: str) -> list[Pattern]:
    """Return the patterns of a table. Raises TableError with the row and key that are wrong."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"{name}: {error}") from None
    whole = _Row(table, table.pop("shared", {}), name)
    patterns = [_pattern(row) for row in whole.rows("line")]
    whole.done()
    return patterns


@lru_cache(maxsize=1)
def read_patterns() -> tuple[Pattern, ...]:
    """Return every pattern of every table, in the order in which a line is held against them."""
    folder = os.path.dirname(__file__)
    patterns: list[Pattern] = []
    for name in TABLES:
        with open(os.path.join(folder, f"{name}.toml"), encoding="utf-8") as file:
            patterns += read_table(file.read(), f"{name}.toml")
    return tuple(patterns)


def _pattern(row: _Row) -> Pattern:
    id_ = row.text("id")
    row.where = f"{row.where} ({id_})"
    printer, stage, find = row.text("from"), row.stage(), row.texts("find")
    pattern = Pattern(
        id_,
        printer,
        Stage.WARNING if stage is None else stage,
        find,
        row.text("regex") or (re.escape(find[0]) if find else ""),
        row.text("example"),
        row.texts("checks"),
        row.prose("cause"),
        row.prose("remedy"),
        row.prose("apart"),
        row.texts("unless"),
        row.prose("sums"),
        row.text("compute"),
        tuple(_case(case) for case in row.rows("when")),
    )
    row.done()
    if printer not in PRINTERS:
        raise row.wrong(f"from is {printer!r}, not one of {', '.join(PRINTERS)}")
    if not (id_ and find and all(find)):
        raise row.wrong("id and find have to be there")
    if bool(pattern.cause) != (bool(pattern.remedy) and stage is not None):
        raise row.wrong("cause, remedy and stage go together; a mark has none of them")
    return pattern


def _case(row: _Row) -> Case:
    case = Case(
        row.texts("seen"),
        row.texts("unseen"),
        row.words("is"),
        row.words("begins"),
        row.words("has"),
        row.take("above", {}),
        row.prose("decided"),
        row.prose("sums"),
        row.prose("cause"),
        row.prose("remedy"),
        row.texts("checks"),
        row.stage(),
    )
    row.done()
    return case
