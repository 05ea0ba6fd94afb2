"""What preflight/launch_problems/rules/tier_use.md says of Mooncake's tiers, measured on the real
library over TCP.

Heartbeats are a second here and buckets small, so that each measurement ends within 25 seconds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

import pytest

from preflight.launch_problems.rules.tier_use import part_that_reaches_ssd
from tests.launch_problems.rules.test_rules_tier_use import written_of
from tests.real.conftest import Store, free_port, install_release

pytestmark = pytest.mark.real
# Each takes 10 to 30 s of waiting for heartbeats: CI runs one of a kind.
EVERY_ONE = os.environ.get("MOONCAKE_PREFLIGHT_REAL") == "all"
at_length = pytest.mark.skipif(not EVERY_ONE, reason="needs MOONCAKE_PREFLIGHT_REAL=all")
MIB = 1 << 20
BUCKET = 20  # objects
KEYS, SECONDS = (
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT",
    "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS",
)
LIMIT = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"
# A list of a verb and its numbers for each step of tier_worker.py.
Steps = Sequence[Sequence[Any]]
QUICK = {SECONDS: "1", KEYS: "10"}


@contextmanager
def master(release: str, *flags: str) -> Iterator[Store]:
    with TemporaryDirectory() as folder:
        store = Store(install_release(release), Path(folder), *flags)
        try:
            yield store
        finally:
            store.stop()


def answer(started: subprocess.Popen[str]) -> Any:
    assert started.stdout is not None
    line = next(line for line in started.stdout if line.startswith("said "))
    return json.loads(line.removeprefix("said "))


def client(store: Store, steps: Steps, **more: Any) -> list[Any]:
    """What a client saw, step by step."""
    with started_client(store, steps, **more) as started:
        return list(answer(started))


@contextmanager
def started_client(
    store: Store,
    steps: Steps = (),
    *,
    ssd: bool = True,
    segment: int = 64 * MIB,
    environment: Mapping[str, str] = QUICK,
    standalone: str = "",
    log: IO[str] | int = subprocess.DEVNULL,
    shared: str = "",
) -> Iterator[subprocess.Popen[str]]:
    """A client that gives its segment until the end of the block. standalone: the mooncake_client
    that it asks instead, as SGLang's setup_dummy. shared: its folder; "" for one of its own."""
    with TemporaryDirectory() as own:
        started = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("tier_worker.py"))],
            env=store.wheel.environment(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        order = {
            "master": store.address,
            "port": free_port(),
            "folder": shared or own,
            "ssd": ssd,
            "segment": segment,
            "steps": steps,
            "standalone": standalone,
        }
        try:
            assert started.stdin is not None
            started.stdin.write(json.dumps(order) + "\n")
            started.stdin.flush()
            yield started
        finally:
            started.kill()
            started.communicate()


RATES = (7, 17, 23, 47)


def on_ssd(release: str, rate: int, keys: int) -> tuple[int, list[int]]:
    """Of 16 seconds of small objects: how many lie on SSD in the end, and what each heartbeat had.

    The library's own words: how long it takes between two of them, and when the first is, varies.
    """
    size, count = 32 << 10, 16 * rate
    steps: Steps = [["put", 0, count, size, rate], ["wait", 3], ["disk"]]
    quick = {SECONDS: "1", KEYS: str(keys), "GLOG_v": "1", "GLOG_logtostderr": "1"}
    with master(release) as store, TemporaryFile("w+") as log:
        put, disk = client(store, steps, environment=quick, log=log)
        assert put["taken"] == count
        log.seek(0)
        counts = re.findall(r"Completed heartbeat with offloaded objects count: (\d+)", log.read())
        return disk // size, [int(each) for each in counts]


def all_on_ssd(asked: Sequence[tuple[str, int, int]]) -> list[tuple[int, list[int]]]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda one: on_ssd(*one), asked))


@pytest.mark.parametrize("release", [pytest.param("0.3.12", marks=at_length), "0.3.13.post1"])
def test_what_fills_no_bucket_is_lost(release: str) -> None:
    """To the object, of what each heartbeat had; tests/launch_problems/rules averages that over all
    phases."""
    install_release(release)
    seen = all_on_ssd([(release, rate, BUCKET) for rate in RATES])
    for rate, (written, counts) in zip(RATES, seen, strict=True):
        assert sum(counts) == 16 * rate
        assert written == pytest.approx(written_of(counts, BUCKET), abs=1), counts
    assert [written / sum(counts) < 0.5 for written, counts in seen] == [True, True, False, False]


@at_length
def test_small_buckets_keep_nearly_all_at_each_rate_and_0_3_11_too() -> None:
    """0.3.11 keeps what is left over for the next bucket, and only the last one is not full."""
    for release in ("0.3.11.post1", "0.3.13.post1"):
        install_release(release)
    small = [("0.3.13.post1", rate, 1) for rate in RATES]
    *seen, (old, _) = all_on_ssd([*small, ("0.3.11.post1", 7, BUCKET)])
    assert [written for written, _ in seen] == [sum(counts) for _, counts in seen]
    assert old > 0.8 * 16 * 7


@pytest.mark.parametrize(
    ("more", "slow", "quick"),
    [({}, 0, 500), ({"MOONCAKE_OFFLOAD_FLUSH_PARTIAL_BUCKETS": "1"}, 30, 600)],
)
def test_0_3_14_writes_the_last_bucket_if_it_is_asked_to(
    more: dict[str, str], slow: int, quick: int
) -> None:
    """Of 30 objects that fill no bucket, and of 600, of which 100 fill no second one."""
    for count, least in ((30, slow), (600, quick)):
        with master("0.3.14") as store:
            steps: Steps = [["put", 0, count, 32 << 10, 60], ["wait", 4], ["disk"]]
            put, disk = client(store, steps, environment={SECONDS: "1", **more})
        assert (put["taken"], disk // (32 << 10)) == (count, least)


@pytest.mark.parametrize("own", [False, True])
def test_clients_of_one_folder_read_each_others_data(own: bool) -> None:
    """So do SGLang's replicas, whose folders have one name; the remedy is a folder for each.

    Where buckets lie there already both go on with the next number. Else a number begins with the
    time: two that start a second apart did not meet."""
    with master("0.3.13.post1", "--default_kv_lease_ttl=100") as store, TemporaryDirectory() as one:
        client(store, [["put", 1000, 20, 256 << 10, 50], ["wait", 3]], shared=one)

        def wrong(first: int) -> int:
            # Both are there before either puts, and until both have read.
            put, read = ["put", first, 400, 256 << 10, 100], ["wrong", 0, 800]
            steps: Steps = [["wait", 3], put, ["wait", 4], read, ["wait", 3]]
            return int(client(store, steps, shared="" if own else one)[-1])

        with ThreadPoolExecutor(2) as pool:
            found = sum(pool.map(wrong, (0, 400)))
    assert (found == 0) == own


def test_0_3_14_refuses_the_second_client_of_a_folder() -> None:
    with (
        master("0.3.14") as store,
        TemporaryDirectory() as one,
        TemporaryFile("w+") as log,
        started_client(store, shared=one) as first,
    ):
        assert answer(first) == []
        with started_client(store, shared=one, log=log) as second:
            assert second.wait(30) != 0
        log.seek(0)
        assert "AssertionError: -1101" in log.read()


@pytest.mark.parametrize("bucket", [pytest.param(1, marks=at_length), BUCKET])
def test_what_is_lost_is_gone_once_memory_evicts(bucket: int) -> None:
    """Old objects are driven out of 64 MiB; those that are left are on SSD alone."""
    rate, old = 7, (0, 112)
    steps: Steps = [
        ["put", *old, 256 << 10, rate],
        ["wait", 3],
        ["disk"],
        ["put", 1000, 90, MIB, 60],
        ["wait", 2],
        ["where", *old],
        ["present", *old],
    ]
    with master("0.3.13.post1", "--default_kv_lease_ttl=100") as store:
        said = client(store, steps, environment={SECONDS: "1", KEYS: str(bucket)})
    (in_memory, on_ssd), left = said[-2:]
    assert (in_memory, len(on_ssd)) == ([], left)
    assert left == said[1] // (256 << 10)
    assert left / old[1] == pytest.approx(part_that_reaches_ssd(bucket, rate), abs=0.1)


def test_standalone_storage_has_what_mooncake_client_has() -> None:
    """Of SGLang's own variables none counts: the segment's 64 MiB, no SSD, one tenant for both."""
    steps: Steps = [["put", 0, 160, MIB, 50], ["wait", 1], ["disk"], ["present", 0, 160]]
    with master("0.3.13.post1") as store, TemporaryDirectory() as folder:
        owner = store.start_client({}, "--global_segment_size=64MB", "--protocol=tcp")
        of_sglang = {
            **QUICK,
            "MOONCAKE_TENANT_ID": "blue",
            "MOONCAKE_GLOBAL_SEGMENT_SIZE": "1gb",
            "MOONCAKE_ENABLE_SSD_OFFLOAD": "1",
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": folder,
            "MOONCAKE_DEVICE": "none0",
            "MOONCAKE_PROTOCOL": "rdma",
        }
        put, disk, left = client(store, steps, standalone=owner, environment=of_sglang)
        (of_another,) = client(store, [["present", 0, 160]], standalone=owner, environment={})
        assert (put["taken"], disk, os.listdir(folder)) == (160, 0, [])
    assert left == of_another == pytest.approx(0.9 * 64, rel=0.15)  # up to the watermark


@pytest.mark.parametrize("release", [pytest.param("0.3.12", marks=at_length), "0.3.13.post1"])
def test_an_owner_without_offload_is_never_evicted(release: str) -> None:
    steps: Steps = [["put", 0, 160, MIB, 40]]
    with master(release, "--offload_on_evict=true") as store:
        (put,) = client(store, steps, ssd=False)
        assert (put["taken"], put["refusal"]) == (64, -200)
    with master(release, "--offload_on_evict=true", "--offload_force_evict=true") as store:
        (put,) = client(store, steps, ssd=False)
        assert put["taken"] > 100


@pytest.mark.parametrize("owner", [False, True])
def test_the_owner_of_the_segment_offloads(owner: bool) -> None:
    """The rank without a segment puts, and its SSD stays empty, whoever else offloads."""
    with master("0.3.13.post1") as store, started_client(store, [], ssd=owner) as giving:
        assert answer(giving) == []  # from now on it gives its segment
        steps: Steps = [["put", 0, 40, MIB, 20], ["wait", 4], ["disk"]]
        put, disk = client(store, steps, segment=0)
        assert (put["taken"], disk) == (40, 0)
        assert giving.stdin is not None
        giving.stdin.write("\n")
        giving.stdin.flush()
        assert (answer(giving) > 20 * MIB) == owner


def promoted(*flags: str) -> int:
    """Objects that came back to memory in about 5 heartbeats in which each was asked for thrice."""
    old, new = (0, 200), (1000, 40)
    steps: Steps = [
        ["put", *old, 256 << 10, 100],
        ["wait", 3],
        ["put", *new, MIB, 40],  # which drives the old ones out
        ["wait", 1],
        ["where", *old],
        *[["read", *old]] * 3,
        ["wait", 3],
        ["where", *old],
    ]
    every = ("--promotion_on_hit=true", "--default_kv_lease_ttl=100", *flags)
    with master("0.3.13.post1", *every) as store:
        said = client(store, steps)
    (before, _), (after, _) = said[2], said[-1]
    return len(set(after) - set(before))


def test_one_object_a_heartbeat_is_promoted() -> None:
    assert 1 <= promoted() <= 12


@at_length
def test_more_are_promoted_where_that_is_asked_for() -> None:
    assert promoted("--promotion_max_per_heartbeat=100") > 30


@pytest.mark.parametrize(("milliseconds", "left"), [("120", 0), ("10000", 40)])
def test_a_lease_is_in_milliseconds(milliseconds: str, left: int) -> None:
    """A second after they were read, 60 more objects come into a segment of 64."""
    steps: Steps = [
        ["put", 0, 40, MIB, 0],
        ["read", 0, 40],
        ["wait", 1],
        ["put", 40, 60, MIB, 20],
        ["present", 0, 40],
    ]
    lease = f"--default_kv_lease_ttl={milliseconds}"
    with master("0.3.13.post1", lease) as store:
        said = client(store, steps, ssd=False)
    assert said[1] == 40
    assert said[-1] == pytest.approx(left, abs=10)


LIMITS = [
    ("0.3.11.post1", LIMIT, True),
    ("0.3.13.post1", LIMIT, False),
    ("0.3.13.post1", "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", True),
]


@at_length
@pytest.mark.parametrize(("release", "name", "binds"), LIMITS)
def test_a_limit_of_ssd_binds_up_to_0_3_11_and_a_quota_later(
    release: str, name: str, binds: bool
) -> None:
    steps: Steps = [["put", 0, 700, MIB, 70], ["wait", 3], ["disk"]]
    limited = {**QUICK, name: str(300 * MIB)}
    with master(release, "--default_kv_lease_ttl=100") as store:
        _, disk = client(store, steps, segment=256 * MIB, environment=limited)
    assert (disk < 301 * MIB) == binds
