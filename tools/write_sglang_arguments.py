#!/usr/bin/env python3
"""Write the table of SGLang's arguments, from the parser that each release builds.

    tools/write_sglang_arguments.py 0.5.24    adds a release
    tools/write_sglang_arguments.py --all     makes the table anew, of its releases

The table is preflight/engines/tables/sglang_arguments.json.

The wheels and a Python with CPU torch, which their parsers need, are fetched once and kept below
.cache/sglang. Afterwards MOONCAKE_PREFLIGHT_SGLANG=1 pytest
tests/engines/sglang/test_conformance.py holds this project's reading of several lines for every
argument against each release's own parser. What else a release changed is a row of
checks/releases/sglang.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_wheels import environment, unpacked

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "preflight" / "engines" / "tables" / "sglang_arguments.json"
Rows = list[dict[str, Any]]


def real(version: str, lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the rows that the release declares, and what its parser makes of ``lines``."""
    tools = Path(__file__).parent
    finished = subprocess.run(
        [str(environment()), str(tools / "sglang_argument_runner.py"), str(unpacked(version))],
        input=json.dumps(lines),
        env={**os.environ, "PYTHONPATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(f"{version}: {finished.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


def declared(table: Mapping[str, Any]) -> dict[str, Rows]:
    """Return the rows of each release that a written table has: what ``compact`` made it of."""
    found: dict[str, Rows] = {version: [] for version in table["versions"]}
    for row in table["arguments"]:
        whole = {"flags": ["--" + row["name"].replace("_", "-")], **row}
        if "choices" in row:
            whole["choices"] = table["choices"][row["choices"]]
        since, until = whole.pop("since"), whole.pop("until", len(found) - 1)
        for version in table["versions"][since : until + 1]:
            found[version].append(whole)
    return found


def compact(declared: Mapping[str, Rows]) -> str:
    """Return the file: each distinct row once, with the span of releases that have it."""
    versions = sorted(declared, key=numbers)
    order: list[str] = []
    holders: dict[str, list[int]] = {}
    for index in reversed(range(len(versions))):
        after = -1
        for row in declared[versions[index]]:
            key = json.dumps(row)
            if key not in holders:
                holders[key] = []
                order.insert(after + 1, key)
            after = order.index(key)
            holders[key].insert(0, index)
    choices: list[str] = []
    lines = []
    for key in order:
        row = json.loads(key)
        if row["flags"] == ["--" + row["name"].replace("_", "-")]:
            del row["flags"]
        if "choices" in row:
            text = json.dumps(row["choices"])
            if text not in choices:
                choices.append(text)
            row["choices"] = choices.index(text)
        for since, until in _spans(holders[key]):
            span = {"since": since}
            if until < len(versions) - 1:
                span["until"] = until
            lines.append(json.dumps(row | span))
    return (
        '{"source": "the parsers that the sglang wheels build: tools/write_sglang_arguments.py",\n'
        f'"versions": {json.dumps(versions)},\n'
        '"choices": [\n' + ",\n".join(choices) + '\n],\n"arguments": [\n'
        + ",\n".join(lines)
        + "\n]}\n"
    )  # fmt: skip


def _spans(indexes: Sequence[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for index in indexes:
        if spans and spans[-1][1] == index - 1:
            spans[-1] = (spans[-1][0], index)
        else:
            spans.append((index, index))
    return spans


def numbers(version: str) -> tuple[int, ...]:
    """Return ``0.5.5.post3`` as ``(0, 5, 5, 3)``."""
    return tuple(int(part.removeprefix("post")) for part in version.split("."))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="*", help="to add, or to read anew")
    parser.add_argument("--all", action="store_true", help="read every release of the table anew")
    asked = parser.parse_args()
    table = json.loads(TABLE.read_text())
    found = declared(table)
    wanted = [*found, *asked.release] if asked.all else asked.release
    if not wanted:
        parser.error("name a release, such as 0.5.24, or --all")
    for version in wanted:
        print(version, file=sys.stderr)
        found[version] = real(version, [])["rows"]
    TABLE.write_text(compact(found))


if __name__ == "__main__":
    main()
