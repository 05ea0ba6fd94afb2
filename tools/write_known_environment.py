#!/usr/bin/env python3
"""Add to the names of environment variables that Mooncake and SGLang read.

    tools/write_known_environment.py --sglang 0.5.24 --mooncake 0.3.15

Names are taken from the wheels: of SGLang's Python sources those that stand as a text or that its
class of settings declares, of Mooncake's programs and libraries those that stand as a string of
their own. What preflight/engines/tables/known_environment.txt has stays, for older releases read
it: a name that the newest SGLang no longer reads has the last release behind it that does. The
wheels are fetched once and kept below .cache.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import write_mooncake_flags
from sglang_wheels import unpacked

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from checks.releases.sglang import parse_version  # noqa: E402
from preflight.engines.programs.sglang_argument_tables import known_releases  # noqa: E402

TABLE = ROOT / "preflight" / "engines" / "tables" / "known_environment.txt"
_NAME = r"(?:MC|MOONCAKE|SGLANG)_[A-Z0-9_]*[A-Z0-9]"
_IN_PYTHON = re.compile(rf"""["'](?P<text>{_NAME})["']|^\s+(?P<setting>{_NAME}) = Env""", re.M)
_IN_BINARY = re.compile(rf"\0({_NAME})(?=\0)".encode())


def names_of_sglang(release: str) -> Iterator[str]:
    """Yield the names in the sources of one release of SGLang, those of its other servers too."""
    for path in (unpacked(release) / "sglang").rglob("*.py"):
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


def add(found: set[str], last: str = "", gone: Collection[str] = ()) -> list[str]:
    """Add names to the table; return those that it did not have.

    Args:
        last: The last release of SGLang that reads them; "" where its newest does, or Mooncake.
        gone: Names that were the newest's and are no longer: ``last`` is the last of these too.
    """
    head, *lines = TABLE.read_text().splitlines()
    known = dict(line.partition(" ")[::2] for line in lines)
    added = sorted(found - known.keys())
    for name in found:
        known[name] = _later(known.get(name, last), last)
    for name in gone:
        if name.startswith("SGLANG_"):  # the others Mooncake may still read
            known[name] = last
    table = (f"{name} {known[name]}".rstrip() for name in sorted(known))
    TABLE.write_text("\n".join([head, *table]) + "\n")
    return added


def _later(one: str, other: str) -> str:
    """Return the later of two last releases; "" is the newest of all."""
    return max(one, other, key=parse_version) if one and other else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sglang", metavar="RELEASE", help="whose names are added")
    parser.add_argument("--mooncake", metavar="RELEASE", help="whose names are added")
    asked = parser.parse_args()
    if not asked.sglang and not asked.mooncake:
        parser.error("name a release of SGLang, of Mooncake, or both")
    added = []
    if asked.sglang:
        last = "" if asked.sglang == known_releases()[-1] else asked.sglang
        added += add({*names_of_sglang(asked.sglang)}, last)
    if asked.mooncake:
        added += add({*names_of_mooncake(asked.mooncake)})
    print("\n".join(added))


if __name__ == "__main__":
    main()
