"""The reader of units against systemd itself, over units that are made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from preflight.launches.launch_files import read_source
from tests.launches.systemd_cases import COUNT, JUDGED, PROGRAM, VARIABLES, unit


def difference(number: int, truth: Any, folder: Path) -> str | None:
    """Return what is read otherwise; None where it is not, "-" for what systemd does not start."""
    text, file = unit(number)
    (folder / "own.env").unlink(missing_ok=True)
    if file is not None:
        (folder / "own.env").write_text(file)
    (folder / "u.service").write_text(text)
    reading = read_source(str(folder / "u.service"), {})
    if not truth:
        return "-"
    for command, (words, variables) in zip(reading.commands, truth, strict=True):
        unset = {name for word in command.words for name in word.unresolved}
        held = {n: w.text for n, w in command.environment.items() if n in VARIABLES}
        if held != dict(each.split("=", 1) for each in variables):
            return f"{held}, not {variables}"
        if not unset and [word.text for word in command.words] != [PROGRAM, *words]:
            return f"{[word.text for word in command.words]}, not {words}"
        if unset & held.keys():
            return f"{unset} are set"
    return None


def test_units_start_what_systemd_starts(tmp_path: Path) -> None:
    """Words and environment of each process of 240 units, of systemd 252."""
    truth = json.loads(JUDGED.read_text())
    found = {number: difference(number, truth[str(number)], tmp_path) for number in range(COUNT)}
    assert {n: said for n, said in found.items() if said not in (None, "-")} == {}
    assert sum(said == "-" for said in found.values()) < COUNT // 6
