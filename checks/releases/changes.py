"""What each release changed, as rows of ``changes.toml``: read once, put onto the row before."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@cache
def read_changes() -> dict[str, Any]:
    """Read the table: by product the releases with their facts; ``open``: what none has yet."""
    with open(os.path.join(os.path.dirname(__file__), "changes.toml"), "rb") as file:
        return tomllib.load(file)


def changed(row: Any, facts: Mapping[str, Any]) -> Any:
    """Return a row with the facts of one release. Raises AttributeError for an unknown name."""
    return row._replace(**{name: _typed(getattr(row, name), fact) for name, fact in facts.items()})


def _typed(before: Any, fact: Any) -> Any:
    """Return a fact as its field has it: a member of an Enum, a tuple, a set, or as it is."""
    if isinstance(before, Enum):
        return type(before)[fact]
    return type(before)(fact) if isinstance(fact, list) else fact


def releases(product: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the versions that changed facts, the oldest first, each with these facts."""
    yield from read_changes()[product].items()
