"""The allocator's efficiency in a real store, and when a real master evicts, and what."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from checks.framework.units import MIB
from preflight.cache_sizing.capacity.tiers import (
    Eviction,
    PageObjects,
    Segments,
    objects_that_fit,
    pages_held,
)
from preflight.cache_sizing.traces.tiers import Flows, StorePool, StoreRules
from tests.real.conftest import Wheel, free_port, install, why_not

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or "the real library is at hand"),
]

SEGMENT_BYTES = 64 * MIB
# Puts objects until one is refused, and says how many were taken.
FILLER = """
import json, sys
from mooncake.store import MooncakeDistributedStore
segment, size, master, most = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 16 << 20, "tcp", "", master) == 0
taken = 0
while taken < most and store.put(f"{size}-{taken}", bytes(size)) == 0:
    taken += 1
print(json.dumps({"taken": taken}), flush=True)
sys.stdin.readline()
store.close()
"""

# Does what it is told, and waits for the master wherever that makes more than the watermark: prints
# when each was done, and which keys each eviction left.
DRIVER = """
import json, os, sys, time, urllib.request
from mooncake.store import MooncakeDistributedStore
told = json.load(sys.stdin)
store, name = MooncakeDistributedStore(), f"127.0.0.1:{told['port']}"
size = told["segment_bytes"]
assert store.setup(name, "P2PHANDSHAKE", size, 16 << 20, "tcp", "", told["master"]) == 0

def keys():
    with urllib.request.urlopen(f"http://{told['metrics']}/get_all_keys") as answer:
        return sorted(answer.read().decode().split())

object_bytes = told["object_bytes"]
most = told["watermark"] * told["segment_bytes"] / object_bytes
held, times, left = set(), [], []
for name, what in told["orders"]:
    if name == "put":
        assert store.put(what, bytes(object_bytes)) == 0
        held.add(what)
    elif name == "read":
        # One by one: of those of one call the master leases those of one shard after the other.
        assert [store.is_exist(key) for key in what] == [1] * len(what)
    else:
        time.sleep(what)
    times.append(time.time())
    if len(held) > most:
        deadline = time.monotonic() + 10
        last, held = held, set(keys())
        while time.monotonic() < deadline and (held != last or len(held) > most):
            time.sleep(0.03)
            last, held = held, set(keys())
        left.append(sorted(held))
print("ANSWER" + json.dumps([times, left]), flush=True)
os._exit(0)
"""
Orders = list[tuple[str, Any]]


class Master(NamedTuple):
    wheel: Wheel
    address: str
    metrics: str

    def fill(self, object_bytes: int, most: int = 10**6) -> tuple[int, int]:
        """The objects that were taken, and those that are left when all is quiet."""
        words = [str(SEGMENT_BYTES), str(object_bytes), self.address, str(most)]
        with subprocess.Popen(
            [sys.executable, "-c", FILLER, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.wheel.environment({}),
            text=True,
        ) as filler:
            assert filler.stdin is not None
            assert filler.stdout is not None
            line = next(line for line in filler.stdout if line.startswith('{"taken"'))
            left = self._settled_keys()
            filler.stdin.write("\n")
            filler.stdin.close()
        return int(json.loads(line)["taken"]), left

    def drive(self, orders: Orders) -> tuple[list[float], list[list[str]]]:
        """When each order was done, and which keys each eviction left."""
        done = subprocess.run(
            [sys.executable, "-c", DRIVER],
            input=json.dumps(
                {
                    **vars(OBJECTS),
                    "master": self.address,
                    "metrics": self.metrics,
                    "port": free_port(),
                    "orders": orders,
                }
            ),
            env=self.wheel.environment({}),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
        assert lines, done.stderr[-2000:]
        times, left = json.loads(lines[0].removeprefix("ANSWER"))
        return times, left

    def _settled_keys(self) -> int:
        """Once two looks in a row agree."""
        last = -1
        while True:
            with urllib.request.urlopen(f"http://{self.metrics}/metrics") as answer:
                found = re.search(r"^master_key_count \s*(\d+)", answer.read().decode(), re.M)
            assert found is not None
            if int(found.group(1)) == last:
                return last
            last = int(found.group(1))
            time.sleep(1)


def _master(folder: Path, *flags: str) -> Iterator[Master]:
    wheel = Wheel("0.3.13.post1", install("mooncake-transfer-engine-non-cuda", "0.3.13.post1"))
    rpc, metrics = free_port(), free_port()
    with (folder / "master.log").open("wb") as log:
        process = subprocess.Popen(
            [
                wheel.command("mooncake_master"),
                f"--rpc_port={rpc}",
                f"--metrics_port={metrics}",
                *flags,
            ],
            stdout=log,
            stderr=log,
            env=wheel.environment({}),
        )
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{metrics}/health").close()
                break
            except OSError:
                time.sleep(0.1)
        yield Master(wheel, f"127.0.0.1:{rpc}", f"127.0.0.1:{metrics}")
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    """A master that evicts nothing, not even for an object that finds no place."""
    flags = ("--eviction_high_watermark_ratio=1.0", "--eviction_ratio=0")
    yield from _master(tmp_path_factory.mktemp("full"), *flags)


@pytest.fixture(scope="module")
def evicting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    flags = ("--eviction_high_watermark_ratio=0.5", "--default_kv_lease_ttl=1")
    yield from _master(tmp_path_factory.mktemp("evicting"), *flags)


@pytest.mark.parametrize("object_bytes", [1_572_864, 1_540_096, 1_048_577, 300_001])
def test_a_segment_takes_as_many_objects_as_are_predicted(full: Master, object_bytes: int) -> None:
    taken, left = full.fill(object_bytes)
    assert taken == left == objects_that_fit(object_bytes, SEGMENT_BYTES)


def test_objects_count_against_the_watermark_with_their_own_size(evicting: Master) -> None:
    """Just above a bin, so that with their bins they would have passed it at 56 objects."""
    objects = PageObjects(1, (524_289,))
    pool = (Segments("test", SEGMENT_BYTES, 1),)
    held = pages_held(objects, pool, Eviction(0.5, "test"))
    assert held == 63
    assert evicting.fill(524_289, held) == (held, held)
    taken, left = evicting.fill(524_289, held + 1)
    assert taken == held + 1
    assert left < held


OBJECTS = SimpleNamespace(segment_bytes=16 * MIB, object_bytes=64 * 1024, watermark=0.5)
# 256 objects fill the segment, and above 128 of them the master evicts.
HELD = 128


def replayed(orders: Orders, times: list[float], lease_seconds: float) -> list[list[str]]:
    """Which keys each eviction leaves by the model, with the times that the real one had."""
    rules = StoreRules(OBJECTS.watermark, 0.05, lease_seconds)
    store, names, left = StorePool(HELD, None, rules, Flows()), list[str](), []
    for (name, what), now in zip(orders, times, strict=True):
        if name == "put":
            names.append(what)
            before = len(store)
            store.put([len(names) - 1], now)
            if len(store) <= before:
                left.append(sorted(key for at, key in enumerate(names) if at in store))
        elif name == "read":
            store.find([names.index(key) for key in what], now)
    return left


def puts(first: int, last: int) -> Orders:
    return [("put", f"{number:04}") for number in range(first, last)]


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[..., Master]]:
    """A master with these flags beside the watermark; its store is empty."""
    running = []

    def started(*flags: str) -> Master:
        running.append(_master(tmp_path, "--eviction_high_watermark_ratio=0.5", *flags))
        return next(running[-1])

    yield started
    for each in running:
        next(each, None)


def test_the_same_objects_are_evicted_round_by_round(fresh: Callable[..., Master]) -> None:
    orders = puts(0, 330)
    times, left = fresh().drive(orders)
    assert left == replayed(orders, times, 10.0)
    assert len(left) > 25
    assert {len(each) for each in left} == {122}


def test_leases_decide_what_is_evicted(fresh: Callable[..., Master]) -> None:
    """What was read stays while others come, for six seconds; then it is as old as what was written
    when its lease ended, and not as when it was read."""
    read = [f"{number:04}" for number in range(0, 80, 2)]
    orders = [*puts(0, 120), ("sleep", 0.3), ("read", read), ("sleep", 0.3), *puts(120, 190)]
    orders += [("sleep", 6.5), *puts(190, 330)]
    times, left = fresh("--default_kv_lease_ttl=6s").drive(orders)
    # Nothing here is decided by moments: a machine that is too slow for that proves nothing.
    if times[192] - times[121] > 5.5:
        pytest.skip("this machine took longer than the leases")
    assert left == replayed(orders, times, 6.0)
    assert set(read) <= set(left[8])
    assert not set(read) & set(left[-1])
    assert left != replayed(orders, times, 0.0)


def test_what_comes_to_a_full_store_of_leased_objects_goes(fresh: Callable[..., Master]) -> None:
    orders = [*puts(0, HELD), ("read", [key for _, key in puts(0, HELD)]), *puts(200, 203)]
    times, left = fresh("--default_kv_lease_ttl=1m").drive(orders)
    assert left == replayed(orders, times, 60.0) == [[key for _, key in puts(0, HELD)]] * 3
