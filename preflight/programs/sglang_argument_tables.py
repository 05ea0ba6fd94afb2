"""Which arguments each release of SGLang has: their flags, types, choices and defaults.

``data/sglang_arguments.json`` holds those of every release from 0.5.2 to 0.5.23, taken from the
parser that each one builds: one row for each argument, and another where a release changed it.
``since`` and ``until`` are places in ``versions``; a flag that is its name with dashes is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from checks.releases.sglang import parse_version
from preflight.base.data_file import data_file


class ArgumentTable(NamedTuple):
    """One release's arguments, in the order of the newest release that has each."""

    version: str
    exact: bool  # whether that is the release asked for
    rows: tuple[Mapping[str, Any], ...]


def argument_table(version: str | None = None) -> ArgumentTable:
    """The arguments of ``version``, or of the newest known release before it.

    None: of the newest known. Raises ValueError as ``parse_version`` does.
    """
    known = _data()["versions"]
    if version is None:
        return _table(len(known) - 1, False)
    asked = parse_version(version)
    index = max((i for i, name in enumerate(known) if parse_version(name) <= asked), default=0)
    # A development build or a candidate of a release is not that release.
    return _table(index, version.strip().removeprefix("v") == known[index])


def known_releases() -> tuple[str, ...]:
    """Every release whose arguments are known, the oldest first."""
    return tuple(_data()["versions"])


def releases_with(flag: str) -> tuple[tuple[str, str], ...]:
    """The first and last release of each span that has exactly ``flag``: () where none does.

    A release before 0.5.2 may have it too, and one after the newest known.
    """
    known = _data()["versions"]
    has = [any(flag in row["flags"] for row in _table(i, True).rows) for i in range(len(known))]
    spans: list[tuple[str, str]] = []
    for i, present in enumerate(has):
        if present and i and has[i - 1]:
            spans[-1] = (spans[-1][0], known[i])
        elif present:
            spans.append((known[i], known[i]))
    return tuple(spans)


@cache
def _data() -> dict[str, Any]:
    path = data_file("sglang_arguments.json")
    with open(path, encoding="utf-8") as file:
        data: dict[str, Any] = json.load(file)
    return data


def _table(index: int, exact: bool) -> ArgumentTable:
    """The rows that hold for the release at ``index``, with what the file leaves out of them."""
    data = _data()
    rows = []
    for row in data["arguments"]:
        if not row["since"] <= index <= row.get("until", index):
            continue
        flags = row.get("flags") or ["--" + row["name"].replace("_", "-")]
        choices = data["choices"][row["choices"]] if "choices" in row else None
        rows.append({**row, "flags": flags, "choices": choices})
    return ArgumentTable(data["versions"][index], exact, tuple(rows))


def argument_names() -> Iterator[str]:
    """The name of every argument that any release has, some more than once."""
    return (row["name"] for row in _data()["arguments"])
