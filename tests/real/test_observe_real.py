"""``observe`` beside real programs on real huge pages: what they hold is what was predicted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT
from tests.real.conftest import HugePages, Store, Wheel, free_port
from tests.valid import valid

pytestmark = pytest.mark.real
SCHEMA = json.loads((ROOT / "preflight/schemas/observe-v1.schema.json").read_text())
ON_PAGES = {"MC_STORE_USE_HUGEPAGE": "1"}
MIB = 1 << 20


def observe(*words: str, code: int, before: tuple[str, ...] = ()) -> Mapping[str, Any]:
    done = subprocess.run(
        [*before, sys.executable, "-m", "preflight", "observe", "--json", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code, done
    answer: Mapping[str, Any] = json.loads(done.stdout)
    valid(answer, SCHEMA)
    return answer


def of(answer: Mapping[str, Any], check: str) -> list[tuple[str, float | None, float | None]]:
    """Status, have and need of each finding of a check."""
    return [
        (one["status"], *(one[side] and one[side]["value"] for side in ("have", "need")))
        for one in answer["findings"]
        if one["check"] == check
    ]


@pytest.fixture
def store(wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path) -> Iterator[Store]:
    if (why := huge_pages.set(300, 0, 0)) is not None:
        pytest.skip(why)
    running = Store(wheel_0_3_13, tmp_path)
    yield running
    running.stop()


def pids(store: Store) -> list[str]:
    return [word for process in store._processes for word in ("--pid", str(process.pid))]


@pytest.mark.parametrize(
    ("environment", "size", "pages"),
    [
        (ON_PAGES, "256MB", 128),
        (ON_PAGES, "77MB", 39),
        ({}, "64MB", None),
        ({**ON_PAGES, "MC_STORE_CLIENT_METRIC": "0"}, "16MB", 8),
    ],
)
def test_a_client_holds_what_was_predicted(
    store: Store, environment: Mapping[str, str], size: str, pages: int | None
) -> None:
    """To the page; without huge pages there is nothing to compare; its segment is in the pool."""
    store.start_client(environment, f"--global_segment_size={size}", "--protocol=tcp")
    answer = observe(*pids(store), code=0)
    assert of(answer, "observe.huge-pages")[-1] == ("pass", pages, pages)
    ((status, have, need),) = of(answer, "observe.store-pool")
    assert (status, have) == ("pass", need)
    programs = {one["program"]: one for one in answer["answer"]["programs"]}
    assert programs["mooncake_client"]["releases"] == [
        {"name": "mooncake-transfer-engine-non-cuda", "version": "0.3.13.post1"}
    ]


def test_two_clients_are_told_apart(store: Store) -> None:
    """Each has its own pages; both segments are the pool."""
    for size in ("64MB", "32MB"):
        store.start_client(ON_PAGES, f"--global_segment_size={size}", "--protocol=tcp")
    answer = observe(*pids(store), code=0)
    assert of(answer, "observe.huge-pages")[1:] == [("pass", 32, 32), ("pass", 16, 16)]
    assert of(answer, "observe.store-pool") == [("pass", 96 * MIB, 96 * MIB)]


def test_a_dead_clients_segment_is_named(store: Store) -> None:
    """Until the master drops it, gets of its keys fail."""
    store.start_client(ON_PAGES, "--global_segment_size=64MB", "--protocol=tcp")
    store.start_client(ON_PAGES, "--global_segment_size=32MB", "--protocol=tcp")
    dead = store._processes.pop()
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    answer = observe(*pids(store), code=1)
    assert of(answer, "observe.store-pool") == [("warn", 96 * MIB, 64 * MIB)]


def test_a_client_that_was_stopped_is_missing_in_the_pool(store: Store) -> None:
    """The master drops a client that pings no more, and its memory with it."""
    store.start_client(ON_PAGES, "--global_segment_size=64MB", "--protocol=tcp")
    client = store._processes[-1]
    client.send_signal(signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        answer = observe(*pids(store), code=0)
        while of(answer, "observe.store-pool")[0][0] == "pass" and time.monotonic() < deadline:
            time.sleep(1)
            done = observe_any(*pids(store))
            answer = done
        assert of(answer, "observe.store-pool") == [("warn", 0, 64 * MIB)]
        assert of(answer, "observe.huge-pages")[1:] == [("pass", 32, 32)]
    finally:
        client.send_signal(signal.SIGCONT)


def observe_any(*words: str) -> Mapping[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "preflight", "observe", "--json", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    answer: Mapping[str, Any] = json.loads(done.stdout)
    return answer


def test_a_wrapper_is_not_a_second_client(store: Store) -> None:
    """What waits in front of a program holds nothing."""
    store.start_client(ON_PAGES, "--global_segment_size=32MB", "--protocol=tcp")
    words = (Path("/proc") / str(store._processes[-1].pid) / "cmdline").read_text().split("\0")
    wrapped = subprocess.Popen(["timeout", "60", *words[:-1]], stderr=subprocess.DEVNULL)
    try:  # its port is taken: it ends by itself, timeout with it
        programs = observe_any()["answer"]["programs"]
        assert [one["program"] for one in programs].count("mooncake_client") <= 2
    finally:
        wrapped.kill()
        wrapped.wait()


def test_files_near_their_limit(store: Store) -> None:
    """The command that raises the limit is printed, and is about that process."""
    store.start_client({}, "--global_segment_size=16MB", "--protocol=tcp")
    pid = store._processes[-1].pid
    used = len(os.listdir(f"/proc/{pid}/fd"))
    subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={used}:"], check=True)
    answer = observe("--pid", str(pid), code=1)
    ((status, _, most),) = of(answer, "observe.open-files")  # it closes and opens some meanwhile
    assert (status, most) == ("warn", used)
    (command,) = next(one for one in answer["findings"] if one["status"] == "warn")["commands"]
    subprocess.run(command, shell=True, check=True)
    observe("--pid", str(pid), code=0)


def test_another_users_process_is_unknown(store: Store) -> None:
    """Without the right to read its mappings nothing passes."""
    store.start_client(ON_PAGES, "--global_segment_size=32MB", "--protocol=tcp")
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    answer = observe("--pid", str(store._processes[-1].pid), code=3, before=nobody)
    assert [status for status, _, _ in of(answer, "observe.huge-pages")] == ["unknown"]


def test_what_runs_is_not_slowed(store: Store) -> None:
    """Nothing of it is stopped: it has as many context switches that it asked for as pings."""
    store.start_client(ON_PAGES, "--global_segment_size=32MB", "--protocol=tcp")
    status = Path(f"/proc/{store._processes[-1].pid}/status")
    observe(*pids(store), code=0)
    assert "\nTracerPid:\t0\n" in status.read_text()


# In place of SGLang, whose server needs a GPU: its command line, and what its ranks allocate.
SERVER = """
import json, multiprocessing.connection, os, sys, time

def rank(number, order):
    from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

    allocator, store = MooncakeHostMemAllocator(), MooncakeDistributedStore()
    kept = [allocator, store, allocator.alloc(order["pool_bytes"])]
    code = store.setup(
        f"127.0.0.1:{order['port'] + number}", "P2PHANDSHAKE", order["segment_bytes"],
        16 << 20, "tcp", "", order["master"],
    )
    print("ready", code, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    order = json.loads(os.environ["ORDER"])
    start = multiprocessing.get_context("spawn").Process
    ranks = [start(target=rank, args=(number, order)) for number in range(2)]
    for each in ranks:
        each.start()
    multiprocessing.connection.wait([sys.stdin, *(each.sentinel for each in ranks)])
    for each in ranks:
        each.kill()
    os._exit(1)
"""
LAUNCH = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 --hicache-size 1 "
    "--page-size 64 --hicache-mem-layout page_first --enable-hierarchical-cache "
    "--hicache-storage-backend mooncake"
)


@pytest.mark.parametrize(
    ("free_pages", "segment_bytes", "code", "pages"),
    [
        # Two ranks, each with L2 (477 pages), a local buffer (8) and half of the segment (16).
        (1040, 32 * MIB, 0, ("pass", 1002, 1002)),
        # Each sets up twice the segment that the variable says for a rank.
        (1100, 64 * MIB, 1, ("warn", 1034, 1002)),
    ],
)
def test_a_server_of_two_ranks_holds_what_was_predicted(
    store: Store,
    huge_pages: HugePages,
    tmp_path: Path,
    free_pages: int,
    segment_bytes: int,
    code: int,
    pages: tuple[str, int, int],
) -> None:
    """Its ranks are processes of their own that have another command line."""
    if (why := huge_pages.set(free_pages, 0, 0)) is not None:
        pytest.skip(why)
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").touch()
    (tmp_path / "sglang/launch_server.py").write_text(SERVER)
    order = {"pool_bytes": 1000341504, "segment_bytes": segment_bytes, "port": free_port()}
    environment = store.wheel.environment(
        {
            **ON_PAGES,
            "MOONCAKE_MASTER": store.address,
            "MOONCAKE_PROTOCOL": "tcp",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(64 * MIB),
            "ORDER": json.dumps({**order, "master": store.address}),
        }
    )
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    server = subprocess.Popen(
        [sys.executable, *LAUNCH.split()[1:]],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        lines = (line for line in server.stdout if line.startswith("ready"))
        assert [next(lines), next(lines)] == ["ready 0\n", "ready 0\n"]
        answer = observe("--pid", str(server.pid), code=code)
        assert of(answer, "observe.huge-pages") == [pages]
    finally:
        server.communicate()
