"""Find where two answers differ, and fold the differences of many pairs into rows."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# What differs between any two versions or runs, by its place in the answer.
NOT_COMPARED = ("version", "schema")
# Fields that explain an answer; ids, statuses, subjects, numbers, settings and commands are the
# answer itself.
WORDING = frozenset(
    "text advice consequence formula reason evidence notes conclusions origin stderr".split()
)
# By what objects of a list are told apart, the first of these that all of them have.
IDENTITIES = (
    ("check", "subjects"),
    ("id",),
    ("check",),
    ("kind", "name"),
    ("kind", "host", "port"),
    ("what", "port"),
    ("name",),
    ("subjects",),
    ("source",),
    ("kind",),
)
ABSENT = "(absent)"
LONGEST = 400


class Difference(NamedTuple):
    """path: where in the answer, as ``findings[memlock.limit].have``."""

    path: str
    old: str
    new: str

    @property
    def is_wording(self) -> bool:
        """Return whether it is about the words beside an answer."""
        return bool(WORDING & set(re.findall(r"\w+", re.sub(r"\[.*?\]", "", self.path))))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield where two outcomes of one request differ: exit code, standard output and error."""
    if old["exit"] != new["exit"]:
        yield Difference("exit code", str(old["exit"]), str(new["exit"]))
    before, after = _parsed(old["out"]), _parsed(new["out"])
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_values("", before, after)
    else:
        yield from _of_lines("stdout", old["out"], new["out"])
    yield from _of_lines("stderr", old["err"], new["err"])


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _of_lines(path: str, old: str, new: str) -> Iterator[Difference]:
    before, after = old.splitlines(), new.splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for change, first, last, other_first, other_last in matcher.get_opcodes():
        if change != "equal":
            removed, added = before[first:last], after[other_first:other_last]
            yield Difference(path, "\n".join(removed) or ABSENT, "\n".join(added) or ABSENT)


def _of_values(path: str, old: Any, new: Any) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            inner = f"{path}.{key}" if path else key
            if inner in NOT_COMPARED:
                continue
            yield from _of_values(inner, old.get(key, _NOTHING), new.get(key, _NOTHING))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _of_lists(path, old, new)
    # In JSON, 1, 1.0 and true are three answers.
    elif type(old) is not type(new) or old != new:
        yield Difference(path, _written(old), _written(new))


class _Nothing:
    pass


_NOTHING = _Nothing()


def _written(value: Any) -> str:
    if isinstance(value, _Nothing):
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value)


def _of_lists(path: str, old: list[Any], new: list[Any]) -> Iterator[Difference]:
    keys = _identity([*old, *new])
    if keys is None:
        for change, first, last, other_first, other_last in _opcodes(old, new):
            if change == "replace" and last - first == other_last - other_first:
                for one, other in zip(old[first:last], new[other_first:other_last], strict=True):
                    yield from _of_values(f"{path}[]", one, other)
                continue
            for one in old[first:last]:
                yield Difference(f"{path}[]", _written(one), ABSENT)
            for other in new[other_first:other_last]:
                yield Difference(f"{path}[]", ABSENT, _written(other))
        return
    before, after = _by_identity(old, keys), _by_identity(new, keys)
    both = [key for key in before if key in after]
    if both != [key for key in after if key in before]:
        orders = [
            [" ".join(map(str, key)) for key in keys_]
            for keys_ in (both, [key for key in after if key in before])
        ]
        yield Difference(f"{path} (order)", *("; ".join(order) for order in orders))
    for key in both:
        yield from _of_values(f"{path}[{key[0]}]", before[key], after[key])
    # What is left and has the same first key was renamed in the others.
    gone = [key for key in before if key not in after]
    come = [key for key in after if key not in before]
    for key in gone:
        other = next((one for one in come if one[0] == key[0]), None)
        if other is not None:
            come.remove(other)
            yield from _of_values(f"{path}[{key[0]}]", before[key], after[other])
        else:
            yield Difference(f"{path}[{key[0]}]", _written(before[key]), ABSENT)
    for key in come:
        yield Difference(f"{path}[{key[0]}]", ABSENT, _written(after[key]))


def _opcodes(old: list[Any], new: list[Any]) -> list[Any]:
    before, after = ([json.dumps(value) for value in side] for side in (old, new))
    found = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [code for code in found if code[0] != "equal"]


def _identity(items: Sequence[Any]) -> tuple[str, ...] | None:
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    for keys in IDENTITIES:
        if all(_told_by(item.get(key)) is not None for item in items for key in keys):
            return keys
    return None


def _told_by(value: Any) -> str | int | None:
    """Return what tells an object apart: a word, or the names of its subjects; None for neither."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return ", ".join(str(one.get("name")) for one in value)
    return value if isinstance(value, str | int) else None


def _by_identity(items: Sequence[Any], keys: tuple[str, ...]) -> dict[tuple[Any, ...], Any]:
    found: dict[tuple[Any, ...], Any] = {}
    for item in items:
        identity = tuple(_told_by(item[key]) for key in keys)
        number = 1
        while (numbered := (*identity, number)) in found:
            number += 1
        found[numbered] = item
    return found


@dataclass
class Allowed:
    """A difference that is intended; patterns are searched for, and one that is absent is met."""

    reason: str
    patterns: Mapping[str, re.Pattern[str]]
    count: int = 0

    def allows(self, command: str, found: Difference) -> bool:
        """Return whether this is about ``found``."""
        values = {"command": command, **found._asdict()}
        return all(pattern.search(values[name]) for name, pattern in self.patterns.items())


class AllowedError(Exception):
    """A list of allowed differences that cannot be read; the message says why."""


def read_allowed(text: str) -> list[Allowed]:
    """Return the ``[[difference]]`` tables of a TOML text: command, path, old, new, reason."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        tables = tomllib.loads(text).get("difference", [])
        found = []
        for table in tables:
            reason = table.pop("reason", "")
            if not reason or not table or not table.keys() <= {"command", "path", "old", "new"}:
                raise AllowedError(
                    "each [[difference]] has a reason, and some of command, path, old and new"
                )
            patterns = {name: re.compile(pattern) for name, pattern in table.items()}
            found.append(Allowed(reason, patterns))
    except (tomllib.TOMLDecodeError, re.error, AttributeError, TypeError) as error:
        raise AllowedError(str(error)) from None
    return found


@dataclass
class Row:
    """One difference of many requests, by number: the first of them is the example."""

    command: str
    difference: Difference
    example: str
    requests: set[int] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """Return the row for ``--json``."""
        return {
            "command": self.command,
            "wording": self.difference.is_wording,
            "count": len(self.requests),
            "example": self.example,
            **self.difference._asdict(),
        }


_NAMES = re.compile(r"\blaunches/[^\s:'\",;)]+")
_HOSTS = re.compile(r"\bhosts/[^\s:'\",;)]+")
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*(?: ?[KMGT]i?B)?")


def shape(text: str) -> str:
    """Return ``text`` without what differs from pair to pair: names of files, and numbers."""
    text = _HOSTS.sub("HOST", _NAMES.sub("LAUNCH", text))
    return _NUMBERS.sub("#", text)[:LONGEST]


class Table:
    """Rows by command, path, and the shape of both values."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], Row] = {}

    def add(self, command: str, found: Difference, request: int, example: str) -> None:
        """Count one difference of one request."""
        key = (command, *(shape(part) for part in found))
        row = self._rows.setdefault(key, Row(command, found, example))
        if row.requests and request < min(row.requests):
            row.difference, row.example = found, example
        row.requests.add(request)

    def rows(self) -> list[Row]:
        """Return the rows, answers before wording, the most frequent first."""
        return sorted(
            self._rows.values(),
            key=lambda row: (row.difference.is_wording, -len(row.requests), row.command),
        )
