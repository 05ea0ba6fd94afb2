"""The allocator's efficiency in a real store, and when a real master begins to evict."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from checks.base.units import MIB
from preflight.capacity.store_tiers import (
    Eviction,
    PageObjects,
    Segments,
    objects_that_fit,
    pages_held,
)
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
