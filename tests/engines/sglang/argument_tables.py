"""What SGLang's real parsers make of lines, and what this project does.

    PYTHONPATH=tools python -m tests.engines.sglang.argument_tables

holds this project's parser against each release's own on several lines for every argument, and
records what the real ones make of the lines in ``RECORDED``. The table itself is
``tools/write_sglang_arguments.py``'s.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from write_sglang_arguments import real

from preflight.engines.programs.sglang_argument_tables import argument_table, known_releases
from preflight.engines.programs.sglang_arguments import parse_sglang_arguments
from preflight.launches.source import Origin, Word

RECORDED = Path(__file__).parent / "recorded_arguments.json"

# Every published release since the first whose sizing is known.
VERSIONS = list(known_releases())

# Lines whose reading by the real parsers is recorded: what a launch of HiCache and Mooncake says,
# and every way in which a line goes wrong. A new one is added to the file with no answers, [].
LINES: list[list[str]] = [line for line, _ in json.loads(RECORDED.read_text())]


def read(version: str, line: Sequence[str]) -> dict[str, Any]:
    """What this project makes of ``line``, as the runner tells it of the real parser."""
    parsed = parse_sglang_arguments([Word(word, Origin("line")) for word in line], version)
    if parsed.error is not None:
        return {"error": parsed.error}
    given = {name: parsed.value(name) for name in parsed.settings if parsed.given(name)}
    return {"given": given, "left": [word.text for word in parsed.unrecognized]}


def several_lines(version: str) -> list[list[str]]:
    """For every argument: its flags, a value of each kind, and its name cut short."""
    lines = []
    for row in argument_table(version).rows:
        values = ["7", "0.5", "x", "1.5Ki", "2M", '["a"]', '{"decode": {}}', "None", "", "-3"]
        values += [str(choice) for choice in (row["choices"] or ())][:3]
        for flag in row["flags"]:
            lines += [[flag], [f"{flag}=7"], [f"{flag}="], [flag, "7", "8"], [flag[:-1], "7"]]
            lines += [[flag, value] for value in values]
            lines += [[flag[: len(flag) // 2], "7"], [f"{flag}-x", "7"], [f"{flag[:-2]}=7"]]
    return [["--model-path", "m", *line] for line in lines]


def differences(version: str) -> list[str]:
    """Where this project reads a line otherwise than the release's own parser."""
    lines = several_lines(version)
    results = real(version, lines)["results"]
    return [
        f"{version}: {line}: {comparable(own)}, really {comparable(result)}"
        for line, result in zip(lines, results, strict=True)
        if comparable(own := read(version, line)) != comparable(result)
    ]


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Without the order in which an ambiguous option's candidates are named."""
    before, found, names = result.get("error", "").partition(" could match ")
    return {"error": before, "names": sorted(names.split(", "))} if found else result


def recorded(results: dict[str, list[dict[str, Any]]]) -> str:
    """For each of LINES, the releases by what they make of it."""
    lines = []
    for number, line in enumerate(LINES):
        groups: dict[str, list[str]] = {}
        for version in VERSIONS:
            groups.setdefault(json.dumps(results[version][number]), []).append(version)
        rows = [f"  [{json.dumps(' '.join(v))}, {k}]" for k, v in groups.items()]
        lines.append(f" [{json.dumps(line)}, [\n" + ",\n".join(rows) + "\n ]]")
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    answers = {version: real(version, LINES)["results"] for version in VERSIONS}
    RECORDED.write_text(recorded(answers))
    wrong = [difference for version in VERSIONS for difference in differences(version)]
    print(*wrong, f"{len(wrong)} differences", sep="\n")


if __name__ == "__main__":
    main()
