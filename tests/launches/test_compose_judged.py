"""The reader of Compose files against Docker Compose's own, over projects that are made here."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from preflight.launches.launch_files import read_source
from preflight.launches.source import Command
from tests.launches.compose_cases import COUNT, FOLDER, JUDGED, project, written_to

PARTS = 4


@cache
def answers() -> dict[str, Any]:
    return json.loads(JUDGED.read_text())  # type: ignore[no-any-return]


def ours(command: Command, folder: str) -> dict[str, Any]:
    held = command.container
    assert held is not None

    def shown(text: str) -> str:
        return text.replace(folder, FOLDER).replace(folder.rpartition("/")[0], "")

    return {
        "words": [shown(word.text) for word in command.words],
        "environment": {name: shown(word.text) for name, word in command.environment.items()},
        "ulimits": {name: list(pair) for name, pair in held.ulimits.items()},
        "mounts": sorted(
            [m.target, m.kind, shown(m.source), m.read_only] for m in held.mounts
        ),
        "shm": held.shm_size_bytes,
        "memory": held.memory_bytes,
        "ipc": held.ipc,
        "network": held.network,
        "privileged": held.privileged,
        "cap_add": list(held.cap_add),
        "devices": list(held.devices),
        "user": held.user,
        "image": held.image,
        "copies": command.copies,
    }  # fmt: skip


def differences(number: int, folder: Path) -> tuple[int, list[str]]:
    """Return how many services were compared, and what of them differs.

    A variable that nothing sets is "" to Compose and not known to the reader, which names it.
    """
    made = project(number)
    truth = answers()[str(number)]
    reading = read_source(str(written_to(folder, made)), made.environment)
    if isinstance(truth, str):
        return 0, []
    told: list[str] = []
    compared = 0
    ids = {note.id for note in reading.notes}
    found = {command.place.name[0]: command for command in reading.commands if command.place}
    for name, want in truth.items():
        command = found.pop(name, None)
        if command is None:
            if want["words"] or "image-command" not in ids:
                told.append(f"{name} is not read: {want['words']}")
            continue
        compared += 1
        own = ours(command, str(folder))
        words = [*command.words, *command.environment.values()]
        unset = {each for word in words for each in word.unresolved}
        if unset & made.environment.keys():
            told.append(f"{name}: {unset} are set")
        for key in want if not unset else want.keys() - {"words", "environment"}:
            if own[key] != want[key]:
                told.append(f"{name}.{key}: {own[key]!r}, not {want[key]!r}")
    if found:
        told.append(f"{sorted(found)} are not started")
    return compared, told


@pytest.mark.parametrize("part", range(PARTS))
def test_services_are_what_compose_makes_of_them(part: int, tmp_path: Path) -> None:
    """Words, environment, mounts, limits and the rest, of Docker Compose 2.40.3."""
    compared = 0
    for number in range(part, COUNT, PARTS):
        (tmp_path / str(number)).mkdir()
        services, told = differences(number, tmp_path / str(number))
        compared += services
        assert told == [], number
    assert compared > 40


def test_most_projects_are_none_that_compose_refuses() -> None:
    assert sum(isinstance(answer, str) for answer in answers().values()) < COUNT // 8
