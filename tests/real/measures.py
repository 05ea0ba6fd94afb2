"""Running ``measure`` with a real wheel, and what of it may be left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.real.conftest import Wheel
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/schemas/measure-v1.schema.json").read_text())
PLAIN = Path(__file__).with_name("plain_transfer.py")
Answer = Mapping[str, Any]


def words_of(words: Iterable[str]) -> list[str]:
    return [sys.executable, "-m", "mooncake_preflight", "measure", *words]


def environment_of(wheel: Wheel) -> dict[str, str]:
    """With the wheel on the path: its libraries are found, and so is this program."""
    found = wheel.environment({})
    return {**found, "PYTHONPATH": f"{ROOT}:{found['PYTHONPATH']}"}


def measure(wheel: Wheel, *words: str, inside: Sequence[str] = ()) -> tuple[int, Answer]:
    """The exit code, and the object that was printed. inside: a command around it."""
    done = subprocess.run(
        [*inside, *words_of(("--json", *words))],
        env=environment_of(wheel),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.startswith("{"), done
    answer: Answer = json.loads(done.stdout)
    valid(answer, SCHEMA)
    return done.returncode, answer


def rates_of(answer: Answer, name: str) -> dict[tuple[str, int], float]:
    (part,) = (one for one in answer["answer"]["parts"] if one["part"] == name)
    assert part["outcome"] == "measured", part
    return {(one["op"], one["size_bytes"]): one["bytes_per_second"] for one in part["rates"]}


@contextmanager
def plain_server(wheel: Wheel) -> Iterator[tuple[str, str]]:
    """Where the plain loop's other side listens, and the address of its memory."""
    server = subprocess.Popen(
        [sys.executable, str(PLAIN), "serve"],
        env=wheel.environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        _, port, address = next(one for one in server.stdout if one.startswith("serving")).split()
        yield f"127.0.0.1:{port}", address
    finally:
        server.kill()
        server.communicate()


def plain_rate(wheel: Wheel, where: tuple[str, str], op: str, size: int, seconds: float) -> float:
    """Bytes a second of the plain loop."""
    command = [sys.executable, str(PLAIN), *where, op, str(size), str(seconds)]
    done = subprocess.run(
        command, env=wheel.environment({}), capture_output=True, text=True, timeout=60, check=True
    )
    return float(next(one for one in done.stdout.splitlines() if one.startswith("rate")).split()[1])


def processes_of(mark: str) -> list[int]:
    """Those that have ``mark`` in their environment: what a command started, whoever is alive."""

    def has(pid: str) -> bool:
        try:
            return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and has(pid)]
