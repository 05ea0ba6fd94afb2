"""What upstream has open that would change an answer: a row each, which no release carries yet.

No answer counts on one. A release that is newer than the tables may have it, and is told so;
``tools/add_release.py`` looks for each in the new wheel. What a release has carried becomes a fact
of its row, with the code that reads it, and leaves this table.
"""

from collections.abc import Iterator
from typing import NamedTuple

from checks.releases.changes import read_changes


class OpenChange(NamedTuple):
    """One change of ``program``, and where it was read: pull requests, of which one may be merged.

    fact: what a release's row will have for it, a field that there is or one to add. marks: files
    of the wheel and a text that is in them from then on, whatever its case; () where nobody has
    said which names it brings. first: the release that carries it, "" while that is not known.
    """

    program: str
    changes: str
    pulls: tuple[str, ...]
    fact: str
    marks: tuple[tuple[str, str], ...] = ()
    first: str = ""


def _rows() -> Iterator[OpenChange]:
    """Yield the rows of ``changes.toml``, pairs and lists as tuples."""
    for row in read_changes()["open"]:
        marks = tuple((file, text) for file, text in row.get("marks", ()))
        yield OpenChange(**{**row, "pulls": tuple(row["pulls"]), "marks": marks})


OPEN_CHANGES = tuple(_rows())


def open_changes(program: str) -> Iterator[OpenChange]:
    """Yield the changes that no known release of a program carries."""
    return (change for change in OPEN_CHANGES if change.program == program and not change.first)
