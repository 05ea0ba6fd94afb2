#!/usr/bin/env python3
"""Add to the names of environment variables that Mooncake and SGLang read.

    tools/write_known_environment.py --sglang 0.5.24 --mooncake 0.3.15

Names are taken from the wheels: of SGLang's Python sources those that stand as a text or that its
class of settings declares, of Mooncake's programs and libraries those that stand as a string of
their own. What preflight/data/known_environment.txt has stays: an older release may read it. The
wheels are fetched once and kept below .cache.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import write_mooncake_flags
from sglang_wheels import unpacked

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "preflight" / "data" / "known_environment.txt"
_NAME = r"(?:MC|MOONCAKE|SGLANG)_[A-Z0-9_]*[A-Z0-9]"
_IN_PYTHON = re.compile(rf"""["'](?P<text>{_NAME})["']|^\s+(?P<setting>{_NAME}) = Env""", re.M)
_IN_BINARY = re.compile(rf"\0({_NAME})(?=\0)".encode())


def names_of_sglang(release: str) -> Iterator[str]:
    """Yield the names in the sources of one release of SGLang's server."""
    for path in (unpacked(release) / "sglang" / "srt").rglob("*.py"):
        for match in _IN_PYTHON.finditer(path.read_text(errors="replace")):
            yield match["text"] or match["setting"]


def names_of_mooncake(release: str) -> Iterator[str]:
    """Yield the names in the programs, libraries and sources of one release of Mooncake."""
    for path in (write_mooncake_flags.installed(release) / "mooncake").rglob("*"):
        if path.suffix == ".py":
            for match in _IN_PYTHON.finditer(path.read_text(errors="replace")):
                yield match["text"] or match["setting"]
        elif path.is_file():
            yield from (name.decode() for name in _IN_BINARY.findall(path.read_bytes()))


def add(found: set[str]) -> list[str]:
    """Add names to the table; return those that it did not have."""
    head, *known = TABLE.read_text().splitlines()
    TABLE.write_text("\n".join([head, *sorted({*known, *found})]) + "\n")
    return sorted(found - {*known})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sglang", metavar="RELEASE", help="whose names are added")
    parser.add_argument("--mooncake", metavar="RELEASE", help="whose names are added")
    asked = parser.parse_args()
    if not asked.sglang and not asked.mooncake:
        parser.error("name a release of SGLang, of Mooncake, or both")
    found = {*(names_of_sglang(asked.sglang) if asked.sglang else ())}
    found |= {*(names_of_mooncake(asked.mooncake) if asked.mooncake else ())}
    print("\n".join(add(found)))


if __name__ == "__main__":
    main()
