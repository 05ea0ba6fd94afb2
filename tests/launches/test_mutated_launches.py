"""Mutated launches of every kind: read or refused; nothing starts, is written or hangs."""

from __future__ import annotations

import os
import posixpath
import random
import sys
import time
from collections.abc import Iterator
from importlib import import_module

import pytest

from preflight.launches.launch_files import KINDS, LaunchText, read_kind
from preflight.launches.source import SourceError
from tests.builders.examples import some
from tests.launches import test_kubernetes_pods, test_other_kinds, test_python_program
from tests.launches.test_compose_judged import project
from tests.launches.test_systemd_judged import unit
from tests.mutate import mutated
from tests.paths import ROOT

pytestmark = pytest.mark.slow

COUNT = 10_000
PARTS = 2
LONGEST_SECONDS = 20.0  # of processor time, of one launch
_watched: list[str] = []
_watching: list[bool] = []


_STARTS = (
    "subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.system", "socket.connect",
    "socket.bind", "socket.getaddrinfo", "os.mkdir", "os.remove", "os.rename",
)  # fmt: skip


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching:
        return
    flags = arguments[2] if event == "open" and len(arguments) > 2 else 0
    if event in _STARTS or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
        _watched.append(event)


@pytest.fixture(scope="module", autouse=True)
def watched() -> Iterator[None]:
    """What reading opens by itself, such as its modules, is opened before."""
    for name in KINDS:
        import_module(f"preflight.launches.{name}")
    for name in ("ast", "binascii", "csv", "json", "shlex", "urllib.parse", "yaml"):
        import_module(name)
    sys.addaudithook(_look)
    yield
    _watching.clear()


def _seeds() -> list[tuple[str, str]]:
    other, pods = test_other_kinds, test_kubernetes_pods
    return [
        *((p.name, p.read_text()) for p in sorted((ROOT / "tests/data/launches").glob("*.*"))),
        *(("x.service", unit(number)[0]) for number in range(4)),
        *(("x.service", other.UNIT), ("Dockerfile", other.DOCKERFILE)),
        ("job.yaml", other.SRT),
        *(
            ("p.py", test_python_program.PROGRAM),
            ("s.conf", "[program:x]\ncommand=mooncake_master --port 3\n"),
        ),
        ("r.yaml", pods.DYNAMO),
    ]


def _launch(number: int, seeds: list[tuple[str, str]]) -> LaunchText:
    draw = random.Random(number)
    if draw.random() < 0.2:
        files = dict(project(draw.randrange(160)).files)
        files = {name: mutated(t, draw) if draw.random() < 0.4 else t for name, t in files.items()}
        text = mutated(files["compose.yaml"], draw)
        return LaunchText(
            "compose.yaml", text, False, {"A": "1"}, (),
            lambda name: files.get(posixpath.normpath(name)),
        )  # fmt: skip
    name, text = draw.choice(seeds)
    return LaunchText(name, mutated(text, draw), False, {"A": "1"}, (), lambda _: None)


@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_launches_are_read_or_refused(part: int) -> None:
    seeds = _seeds()
    for number in some(range(part, COUNT, PARTS), 4):
        launch = _launch(number, seeds)
        begun = time.process_time()
        _watching[:] = [True]
        try:
            read_kind(launch)
        except SourceError:
            pass
        finally:
            _watching.clear()
        assert _watched == [], number
        assert time.process_time() - begun < LONGEST_SECONDS, number
