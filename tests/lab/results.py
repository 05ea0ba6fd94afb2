"""What the guests measured, as ``tests/lab/record.py`` recorded it: rows by kind and id, captures.

A row is one line of JSON. Captures have most of their files in common, so each content is kept
once.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from checks.framework.archive import archive_bytes

DATA = Path(__file__).parents[1] / "data" / "lab"
CAPTURES = DATA / "captures.json.xz"
Row = dict[str, Any]


@cache
def recorded(kind: str) -> Mapping[str, Row]:
    """Return the rows of one kind (one file of ``data/lab``), by id."""
    file = DATA / f"{kind}.json"
    rows = json.loads(file.read_text()) if file.exists() else ()
    return {row["id"]: row for row in rows}


def plain(order: Any) -> Row:
    """Return an experiment as it would be read from its record."""
    tell: Any = asdict if is_dataclass(order) else type(order)._asdict
    found: Row = json.loads(json.dumps(tell(order)))
    return found


def record(kind: str, rows: Iterable[Row], ids: Iterable[str]) -> None:
    """Write rows of one kind in the place of those that were recorded; ids: all that there are."""
    every = dict(recorded(kind))
    every.update({row["id"]: row for row in rows})
    lines = ",\n".join(json.dumps(every[name], sort_keys=True) for name in ids if name in every)
    (DATA / f"{kind}.json").write_text(f"[\n{lines}\n]\n")
    recorded.cache_clear()


@cache
def _captures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress(CAPTURES.read_bytes()))
    return found


def capture(name: str) -> bytes:
    """Return the recorded capture of that name, as ``mooncake-preflight capture`` writes it."""
    every = _captures()
    numbers = every["captures"][name]
    return archive_bytes(
        {path: every["contents"][number].encode() for path, number in numbers.items()}
    )


def record_captures(captures: Mapping[str, bytes]) -> None:
    """Write captures, named ``kind/id``, in the place of those that were recorded."""
    files: dict[str, dict[str, str]] = {}
    if CAPTURES.exists():
        every = _captures()
        for name, numbers in every["captures"].items():
            files[name] = {path: every["contents"][number] for path, number in numbers.items()}
    for name, content in captures.items():
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            found = {member.name: archive.extractfile(member) for member in archive}
            files[name] = {path: file.read().decode() for path, file in found.items() if file}
    numbers_of = {text: number for number, text in enumerate(_contents(files.values()))}
    every = {
        "contents": list(numbers_of),
        "captures": {
            name: {path: numbers_of[text] for path, text in sorted(texts.items())}
            for name, texts in sorted(files.items())
        },
    }
    CAPTURES.write_bytes(lzma.compress(json.dumps(every).encode(), preset=9))
    _captures.cache_clear()


def _contents(files: Iterable[Mapping[str, str]]) -> list[str]:
    """Each content once, those of one path beside each other: they compress well."""
    pairs = {(path, text) for texts in files for path, text in texts.items()}
    return list(dict.fromkeys(text for _, text in sorted(pairs)))
