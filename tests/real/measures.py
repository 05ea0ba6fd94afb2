"""Running ``measure`` with a real wheel, and what of it may be left behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from checks.framework.unknown import Unknown
from preflight.benchmark.measuring import run as run_module
from preflight.benchmark.measuring.findings import ready_seconds
from preflight.benchmark.measuring.records import LaunchWish, launch_wish
from preflight.benchmark.rehearsal.programs import Running
from preflight.benchmark.rehearsal.records import Library
from preflight.command_inputs.host_source import open_host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from tests.paths import ROOT
from tests.real.conftest import Wheel, free_port
from tests.real.rehearse_launches import store
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/measure-v1.schema.json").read_text())
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


# Two functions that return bytes a second: of measure, and of who does the same without it.
Pair = tuple[Callable[[], float], Callable[[], float]]
SETUP = {"metadata": "P2PHANDSHAKE", "more": {}, "local_buffer_bytes": 16 << 20}
SETUP |= {"protocol": "tcp", "devices": ""}


def loaded_child(wheel: Wheel, stack: ExitStack, folder: Path, **environment: str) -> Running:
    """Start a process that has loaded the library, and ends with the stack."""
    variables, orders = wheel.environment(environment), run_module._ORDERS
    child = Running(sys.executable, variables, folder / "log", None, (), orders)
    stack.callback(child.end)
    assert child.ask({"do": "load", "folder": str(wheel.folder)}, 60).error == ""
    return child


def same_unit(pair: Pair) -> bool:
    """A wrong unit is a factor of 8 or more (bits for bytes), and what else the machine does is
    less. How close they come is a measurement: benchmarks/measure.py."""
    both = [(pair[0](), pair[1]()) for _ in range(3)]
    return 1 / 6 < max(ours for ours, _ in both) / max(theirs for _, theirs in both) < 6


@contextmanager
def transfer_pair(wheel: Wheel, op: str, size: int, folder: Path) -> Iterator[Pair]:
    """Transfers of one block at a time, and those of ``transfer_engine_bench``.

    The benchmark takes one block again and again, and never writes to the memory that it sends, so
    that the kernel has one page of zeros for all of it. The same is done here: two blocks, in
    memory that is not populated."""
    orders = folder / "orders.py"
    no_populate = "\n_populate = lambda address, size: None\n"
    orders.write_text(Path(run_module._ORDERS).read_text() + no_populate)
    measuring = run_module.Measuring(library_of(wheel), LaunchWish(protocol="tcp"), 600.0, 5 * size)
    with (
        patch.object(run_module, "_ORDERS", str(orders)),
        ExitStack() as measuring._stack,
        bench_target(wheel, folder) as target,
    ):
        here, _, where = measuring._connect("127.0.0.1", None)
        measuring._ask(here, "hello", peer=where)

        def ours() -> float:
            return measuring._measure_transfer(here, op, size, 1.0, 60.0).bytes_per_second

        yield ours, partial(bench_rate, wheel, target, op, size)


@contextmanager
def store_pairs(
    wheel: Wheel, master: str, size: int, calls: int, folder: Path
) -> Iterator[Mapping[str, Pair]]:
    """Puts and gets of one object at a time, and those of a plain loop on the same segment."""
    with ExitStack() as stack:
        giving, client = (loaded_child(wheel, stack, folder) for _ in range(2))
        for child, segment in ((giving, 2 << 30), (client, 0)):
            order = {"do": "setup", "host": f"127.0.0.1:{free_port()}", "segment_bytes": segment}
            assert child.ask(order | SETUP | {"master": master}, 60).error == ""
        assert client.ask({"do": "store_buffer", "bytes": size}, 60).error == ""
        plain = stack.enter_context(plain_store(wheel, master, size))
        stored, numbers = 0, count(0, calls)

        def ours(op: str) -> float:
            nonlocal stored
            order = {"op": op, "size": size, "together": 1, "stored": stored, "most": calls}
            reply = client.ask({"do": "objects", **order, "seconds": 60.0}, 60)
            assert reply.error == ""
            stored += calls if op == "put" else 0
            return float(reply.measured["bytes"] / reply.measured["seconds"])

        def theirs(op: str) -> float:
            return plain(op, next(numbers) if op == "put" else 0, calls)

        yield {op: (partial(ours, op), partial(theirs, op)) for op in ("put", "get")}


def storage_pair(op: str, folder: Path) -> Pair:
    """Files of 1 MiB, written with fdatasync or read with O_DIRECT, and those of ``fio``."""
    wish = LaunchWish(folder=str(folder))

    def ours() -> float:
        measuring = run_module.Measuring(Unknown("not asked"), wish, 1.0, 128 << 20)
        (part,) = measuring.run(("storage",), "127.0.0.1", None, lambda _: None).parts
        rate = part.best(op)
        assert rate is not None
        return rate.bytes_per_second

    def theirs() -> float:
        words = f"--name=f --rw={op} --bs=1m --filesize=1m --nrfiles=128 --direct=1 --runtime=1"
        # Each file is a new one, as Mooncake's are, without space set aside for it.
        new = "--fdatasync=1 --create_on_open=1 --fallocate=none --unlink=1"
        words += f" --output-format=json {new if op == 'write' else '--loops=20'}"
        command = ["fio", f"--directory={folder}", *words.split()]
        done = subprocess.run(command, capture_output=True, check=True)
        return float(json.loads(done.stdout)["jobs"][0][op]["bw_bytes"])

    return ours, theirs


def ready_pair(wheel: Wheel, master: str, size: int, folder: Path) -> Pair:
    """Seconds until a client has a segment of ``size`` on huge pages: as predicted from a tenth,
    and as its setup takes them."""
    launch = folder / "launch.sh"
    launch.write_text(store(str(size), "16mb", "tcp"))
    sized = size_and_needs(LaunchWords((str(launch),)), open_host("/"))
    assert sized is not None
    wish = launch_wish(sized, open_host("/"))
    assert not isinstance(wish.starts, Unknown)
    (process,) = wish.starts

    def predicted() -> float:
        measuring = run_module.Measuring(library_of(wheel), wish, 1.0, size // 10)
        measured = measuring.run(("memory", "store"), "127.0.0.1", None, lambda _: None)
        seconds, missing = ready_seconds(process, measured, wish)
        assert missing == ""
        return seconds

    def started() -> float:
        with ExitStack() as stack:
            child = loaded_child(wheel, stack, folder, MC_STORE_USE_HUGEPAGE="1")
            order = {"do": "setup", "host": f"127.0.0.1:{free_port()}", "segment_bytes": size}
            reply = child.ask(order | SETUP | {"master": master}, 60)
            assert reply.error == ""
            return reply.seconds

    return predicted, started


def processes_of(mark: str) -> list[int]:
    """Those that have ``mark`` in their environment: what a command started, whoever is alive."""

    def has(pid: str) -> bool:
        try:
            return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and has(pid)]
