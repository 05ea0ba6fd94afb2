"""Mutated launches of every kind: read or refused, in time. What reads starts and writes nothing:
see ``tests/house/test_what_is_touched.py`` and ``test_reader_fuzz.py``."""

from __future__ import annotations

import contextlib
import posixpath
import random
import time

import pytest

from preflight.launches.launch_files import LaunchText, read_kind
from preflight.launches.source import SourceError
from tests.builders.examples import some
from tests.launches import test_python_program
from tests.launches.test_compose_judged import COUNT as PROJECTS
from tests.launches.test_compose_judged import project
from tests.launches.test_systemd_judged import unit
from tests.mutate import mutated, other_launches
from tests.paths import ROOT

pytestmark = pytest.mark.slow

COUNT = 10_000
LONGEST_SECONDS = 20.0  # of processor time, of one launch


def _launch(number: int, seeds: list[tuple[str, str]]) -> LaunchText:
    draw = random.Random(number)
    files: dict[str, str] = {}
    name, text = draw.choice(seeds)
    if draw.random() < 0.2:
        files = dict(project(draw.randrange(PROJECTS)).files)
        files = {name: mutated(t, draw) if draw.random() < 0.4 else t for name, t in files.items()}
        name, text = "compose.yaml", files["compose.yaml"]
    text = mutated(text, draw)
    return LaunchText(
        name, text, False, {"A": "1"}, (), lambda name: files.get(posixpath.normpath(name))
    )


def test_mutated_launches_are_read_or_refused() -> None:
    launches = sorted((ROOT / "tests/data/launches").glob("*.*"))
    seeds = [
        *((path.name, path.read_text()) for path in launches),
        *other_launches(),
        *(("x.service", unit(number)[0]) for number in range(4)),
        ("p.py", test_python_program.PROGRAM),
        ("s.conf", "[program:x]\ncommand=mooncake_master --port 3\n"),
    ]
    for number in some(range(COUNT), 4):
        launch = _launch(number, seeds)
        begun = time.process_time()
        with contextlib.suppress(SourceError):
            read_kind(launch)
        assert time.process_time() - begun < LONGEST_SECONDS, number
