"""The known lines of logs: records, and the reader of the tables in this folder that hold them.

A table is TOML: rows of ``[[line]]``, each with ``[[line.when]]`` for what other words of the same
log decide. ``<<word>>`` stands for an entry of its ``[shared]``. What each key means stands at the
fields of ``Pattern`` and ``Case``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from preflight.advisories.records import Advisory, advisories, program_of, range_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Where several patterns look for the same words, the first that matches a line has it.
TABLES = "kernel memory registration rdma services store sglang system".split()
# Who prints a line.
PRINTERS = ("SGLang", "Mooncake", "kernel", "CUDA", "system library", "container or shell")
# Of a record of a known problem, by the product that it affects; SGLang prints the others.
_PRINTER_OF = {"mooncake": "Mooncake", "vllm": "vLLM", "lmcache": "LMCache", "nixl": "NIXL"}
_SHARED = re.compile(r"<<([\w-]+)>>")


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


class PatternHit(NamedTuple):
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
Hits = Mapping[str, PatternHit]


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


@lru_cache(maxsize=1)
def read_patterns() -> tuple[Pattern, ...]:
    """Return every pattern of every table, in the order in which a line is held against them."""
    folder = os.path.dirname(__file__)
    patterns: list[Pattern] = []
    for name in TABLES:
        with open(os.path.join(folder, f"{name}.toml"), encoding="utf-8") as file:
            patterns += read_table(file.read(), f"{name}.toml")
    return (*patterns, *map(_of_record, (one for one in advisories() if one.lines)))


def _of_record(one: Advisory) -> Pattern:
    """Return a pattern for the lines that a record of a known problem brings itself."""
    found = "|".join(map(re.escape, one.lines))
    ids = (one.check, *one.covered_by)
    ranges = "; ".join(map(range_text, one.affected))
    cause = f"{one.summary} ({ranges})"
    product = one.affected[0].product
    printer = _PRINTER_OF.get(program_of(product), "SGLang")
    return Pattern(
        one.check, printer, Stage.SYMPTOM, one.lines, found, one.lines[0], ids, cause, one.remedy
    )


def read_table(text: str, name: str) -> list[Pattern]:
    """Return the patterns of a table. Raises TableError with the row and key that are wrong."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TableError(f"{name}: {error}") from None
    shared = table.pop("shared", {})
    rows = table.pop("line", [])
    if table:
        raise TableError(f"{name}: no such key: {', '.join(table)}")
    return [_pattern(row, shared, f"{name}, line {n}") for n, row in enumerate(rows, 1)]


def _pattern(row: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> Pattern:
    where = f"{where} ({row.get('id')})"
    cases = enumerate(row.get("when", []), 1)
    given = _checked({k: v for k, v in row.items() if k != "when"}, _OF_PATTERN, shared, where)
    if not {"id", "printer", "find"} <= {key for key, value in given.items() if value}:
        raise TableError(f"{where}: id, from and find have to be there")
    explains = {"cause", "remedy", "stage"} & set(given)
    if explains and len(explains) < 3:
        raise TableError(f"{where}: cause, remedy and stage go together; a mark has none of them")
    defaults = {"stage": Stage.WARNING, "regex": re.escape(given["find"][0])}
    return Pattern(
        **{**defaults, **given},
        cases=tuple(
            Case(**_checked(case, _OF_CASE, shared, f"{where}, when {n}")) for n, case in cases
        ),
    )


def _checked(
    row: Mapping[str, Any], keys: Mapping[str, _Reader], shared: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return the fields of one row. keys: what reads each."""
    fields: dict[str, Any] = {}
    for key, value in row.items():
        if key not in keys:
            raise TableError(f"{where}: no such key: {key}")
        try:
            fields[_FIELD_OF.get(key, key)] = keys[key](value, shared)
        except (TypeError, KeyError) as error:
            raise TableError(f"{where}: {key} is {value!r}: {error.args[0]}") from None
    return fields


def _kind(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"not a {name}")
    return value


def _text(value: Any, shared: Mapping[str, Any]) -> str:
    """Return a text, or parts of one that are joined."""
    parts = value if isinstance(value, list) else [value]
    joined = "".join(_kind(part, str, "text") for part in parts)
    return _SHARED.sub(lambda found: str(_kind(shared[found[1]], str, "text")), joined)


def _prose(value: Any, shared: Mapping[str, Any]) -> str:
    """Return a text with its lines joined to one."""
    return " ".join(_text(value, shared).split())


def _texts(value: Any, shared: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a list of texts, in which an entry of [shared] may stand for several."""
    every: list[str] = []
    for each in _kind(value, list, "list"):
        found = _SHARED.fullmatch(_kind(each, str, "text"))
        every += _kind(shared[found[1]], list, "list") if found else [each]
    return tuple(every)


def _words(value: Any, shared: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return one text or several, by group."""
    table = _kind(value, dict, "table").items()
    return {name: _texts(v if isinstance(v, list) else [v], shared) for name, v in table}


def _numbers(value: Any, shared: Mapping[str, Any]) -> dict[str, int]:
    table = _kind(value, dict, "table").items()
    return {name: _kind(each, int, "number") for name, each in table}


def _stage(value: Any, shared: Mapping[str, Any]) -> Stage:
    return Stage[_kind(value, str, "text").upper()]


def _printer(value: Any, shared: Mapping[str, Any]) -> str:
    if value not in PRINTERS:
        raise TypeError(f"not one of {', '.join(PRINTERS)}")
    return str(value)


_Reader = Callable[[Any, Mapping[str, Any]], Any]
# Keys that are called otherwise in Python.
_FIELD_OF = {"from": "printer", "is": "is_"}
_OF_BOTH: dict[str, _Reader] = {
    **dict.fromkeys(("cause", "remedy", "sums"), _prose),
    "checks": _texts,
    "stage": _stage,
}
_OF_PATTERN: dict[str, _Reader] = {
    **_OF_BOTH,
    **dict.fromkeys(("id", "regex", "example", "compute"), _text),
    "from": _printer,
    "apart": _prose,
    **dict.fromkeys(("find", "unless"), _texts),
}
_OF_CASE: dict[str, _Reader] = {
    **_OF_BOTH,
    "decided": _prose,
    **dict.fromkeys(("seen", "unseen"), _texts),
    **dict.fromkeys(("is", "begins", "has"), _words),
    "above": _numbers,
}
