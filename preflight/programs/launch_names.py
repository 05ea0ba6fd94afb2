"""What the names on a launch touch: SGLang's arguments, flags of Mooncake's programs, variables.

One table, ``data/launch_names.txt``: of each name whether this project reads it (modelled), has it
in no number (named), or need not (harmless), with where that was read.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from preflight.base.program import data_file


class NameRow(NamedTuple):
    """touches: memory, pinning, devices, .. or nothing. what: a few words; source: where read."""

    name: str
    kind: str
    state: str
    touches: str
    what: str
    source: str


@cache
def name_rows() -> tuple[NameRow, ...]:
    """Return the table, in its order."""
    rows: list[NameRow] = []
    head: tuple[str, ...] = ()
    with open(data_file("launch_names.txt"), encoding="utf-8") as file:
        for line in file:
            if line.startswith(" "):
                rows += (NameRow(name, *head) for name in line.split())
            elif not line.startswith("#"):
                words, _, rest = line.strip().partition(": ")
                what, _, source = rest.removesuffix("]").rpartition(" [")
                head = (*words.split(), what, source)
    return tuple(rows)


@cache
def _whole() -> dict[tuple[str, str], NameRow]:
    return {(row.kind, row.name): row for row in name_rows() if "*" not in row.name}


@cache
def row_of(kind: str, name: str) -> NameRow | None:
    """Return the row of a name of this kind; None for one that is newer than the table."""
    patterns = (row for row in name_rows() if row.kind == kind and "*" in row.name)
    exact_row = _whole().get((kind, name))
    return exact_row or next((row for row in patterns if fnmatchcase(name, row.name)), None)


def without_row(kind: str, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that the table does not have, each once."""
    return sorted({name for name in names if row_of(kind, name) is None})
