"""Running ``measure`` with a real wheel, and what of it may be left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preflight.rehearsal.records import Library
from tests.paths import ROOT
from tests.real.conftest import Wheel, free_port
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/schemas/measure-v1.schema.json").read_text())
PLAIN = Path(__file__).with_name("plain_store.py")
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


# So often at least and at most are two things measured, one right after the other.
ROUNDS = range(3, 16)
MOST_ROUNDS = 25


def ratio_of_bests(ours: Callable[[], float], theirs: Callable[[], float], share: float) -> float:
    """Measure both in turn until their bests are within ``share``: nobody disturbs those."""
    best = [0.0, 0.0]
    for number in range(MOST_ROUNDS):
        sides = (0, ours), (1, theirs)
        for side, measured in sides if number % 2 else reversed(sides):
            best[side] = max(best[side], measured())
        if number + 1 >= ROUNDS.start and abs(best[0] / best[1] - 1) <= share:
            break
    return best[0] / best[1]


def library_of(wheel: Wheel) -> Library:
    return Library(sys.executable, str(wheel.folder), "mooncake-transfer-engine", wheel.version)


@contextmanager
def bench_target(wheel: Wheel, folder: Path) -> Iterator[str]:
    """Where the wheel's own transfer_engine_bench offers memory, over TCP."""
    with (folder / "target.log").open("w+") as log:
        target = subprocess.Popen(bench_words(wheel, "target"), stdout=log, stderr=log)
        try:
            while not (
                found := re.search(r"listening on (\S+)", (folder / "target.log").read_text())
            ):
                assert target.poll() is None
                time.sleep(0.05)
            yield found[1]
        finally:
            target.kill()
            target.wait()


def bench_words(wheel: Wheel, mode: str, *more: str) -> list[str]:
    where = f"--local_server_name=127.0.0.1:{free_port()}"
    words = ("--metadata_server=P2PHANDSHAKE", "--protocol=tcp", "--buffer_size=335544320", where)
    return [wheel.command("transfer_engine_bench"), f"--mode={mode}", *words, *more]


def bench_rate(wheel: Wheel, where: str, op: str, size: int) -> float:
    """Bytes a second of the wheel's own benchmark, one block at a time."""
    words = (f"--segment_id={where}", f"--operation={op}", f"--block_size={size}", "--threads=1")
    command = bench_words(wheel, "initiator", *words, "--batch_size=1", "--duration=1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"duration (\S+), batch count (\d+)", done.stderr + done.stdout)
    assert found is not None, done
    return int(found[2]) * size / float(found[1])


@contextmanager
def plain_store(wheel: Wheel, master: str, size: int) -> Iterator[Callable[[str, int, int], float]]:
    """Gives what puts or gets objects in a plain loop, and says the bytes a second."""
    words = [sys.executable, str(PLAIN), master, f"127.0.0.1:{free_port()}", str(size)]
    plain = subprocess.Popen(
        words,
        env=wheel.environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def rate(op: str, first: int, count: int) -> float:
        assert plain.stdin is not None
        assert plain.stdout is not None
        plain.stdin.write(f"{op} {first} {count}\n")
        plain.stdin.flush()
        return float(next(one for one in plain.stdout if one.startswith("rate")).split()[1])

    try:
        yield rate
    finally:
        plain.kill()
        plain.communicate()


def processes_of(mark: str) -> list[int]:
    """Those that have ``mark`` in their environment: what a command started, whoever is alive."""

    def has(pid: str) -> bool:
        try:
            return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and has(pid)]
