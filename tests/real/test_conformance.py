"""The model against the real library: the same pages, to the page, and the same failures.

Each case runs in a process of its own, over TCP, on real HugeTLB pages, with a real master.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from checks.framework.pages import Spot
from checks.framework.unknown import require
from checks.releases.mooncake import mooncake_release
from preflight.engines.mooncake.allocations import EndlessPools, StockedPools
from preflight.engines.mooncake.replay import pages_by_spot, replay, replay_endless
from preflight.engines.programs.memory_records import Launch, MappedProcess, Protocol, StoreClient
from preflight.engines.programs.store_environment import byte_size, read_store_settings
from preflight.engines.programs.store_processes import read_mooncake_client
from preflight.launches.source import Origin, Word
from tests.real.cases import GRID, MIB, MORE, ON, RECORDED, RELEASE_CASES, Case
from tests.real.conftest import HugePages, Store, Wheel
from tests.real.prediction import predict

pytestmark = pytest.mark.real
CASES = RECORDED + MORE
# Each of the grid on one of two releases; as a rule a part of them. Each run takes a second.
EVERY_ONE = os.environ.get("MOONCAKE_PREFLIGHT_REAL") == "all"
OLD, NEW = CASES + GRID[:: 2 if EVERY_ONE else 4], CASES + GRID[1::2]
if not EVERY_ONE:
    NEW = CASES[::3] + GRID[1::4]
    OLD = tuple(case for case in OLD if case.pages_2m < 4096)  # the kernel clears 8 GiB for one
# One release of each row of the table in checks.releases.mooncake.
RELEASES = ("0.3.8", "0.3.8.post1", "0.3.10.post2", "0.3.11.post1", "0.3.12.post1")
# What ``tools/add_release.py`` adds: every case, and random launches.
ASKED = tuple(os.environ.get("MOONCAKE_PREFLIGHT_RELEASE", "").split())

Stores = Callable[[Wheel], Store]


def assert_conforms(case: Case, store: Store, huge_pages: HugePages) -> None:
    refused = huge_pages.set(case.pages_2m, case.pages_1g, case.overcommit_2m)
    if refused:
        pytest.skip(refused)
    predicted = predict(case, store.wheel.version)
    answer = store.run(case)
    pages, said = answer["pages"], str(answer["said"])
    assert (pages.get("2048kB", 0), pages.get("1048576kB", 0), said == "ok") == (
        predicted.pages_2m,
        predicted.pages_1g,
        not predicted.error,
    ), said
    # "RuntimeError: ..." and "setup returns -600: ..." both carry what the library itself says.
    if "returns" in predicted.error:
        assert said == predicted.error.split()[2].rstrip(":")
    else:
        assert said.startswith(predicted.error.removeprefix("setup raises ") or "ok")


@pytest.mark.parametrize("case", OLD, ids=lambda case: case.id)
def test_pages_taken_are_pages_predicted(
    case: Case, wheel_0_3_13: Wheel, stores: Stores, huge_pages: HugePages
) -> None:
    assert_conforms(case, stores(wheel_0_3_13), huge_pages)


@pytest.mark.real_newest
@pytest.mark.parametrize("case", NEW, ids=lambda case: case.id)
def test_newest_release(
    case: Case, wheel_0_3_14: Wheel, stores: Stores, huge_pages: HugePages
) -> None:
    assert_conforms(case, stores(wheel_0_3_14), huge_pages)


@pytest.mark.parametrize(
    ("case", "version"),
    [(case, version) for version in RELEASES for case in RELEASE_CASES]
    + [(case, version) for version in ASKED for case in RELEASE_CASES + CASES + GRID],
    ids=lambda part: getattr(part, "id", part),
)
def test_each_row_of_the_release_table(
    version: str,
    case: Case,
    wheel_of: Callable[[str], Wheel],
    stores: Stores,
    huge_pages: HugePages,
) -> None:
    assert_conforms(case, stores(wheel_of(version)), huge_pages)


# Measurements G1, G5 and G6: a mooncake_client that owns the segment, and a rank beside it.
HOT_CACHE = {"MC_STORE_LOCAL_HOT_CACHE_SIZE": "33554432", "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": "1"}


@pytest.mark.parametrize(
    ("segment", "local", "environment", "recorded"),
    [
        ("80MB", "16MB", {**ON, **HOT_CACHE}, 64),
        ("0.08 GB", "0", ON, 41),
        ("1e8", "0", ON, 48),
        ("80MB", "16MB", {**ON, "MC_MMAP_ARENA_POOL_SIZE": "100mb"}, 50),
        ("80MB", "16MB", {}, 0),
    ],
)
def test_a_rank_beside_a_mooncake_client(
    segment: str,
    local: str,
    environment: dict[str, str],
    recorded: int,
    wheel_0_3_13: Wheel,
    stores: Stores,
    huge_pages: HugePages,
) -> None:
    assert huge_pages.set(300, 0, 0) is None
    mooncake = mooncake_release("0.3.13.post1")
    settings, _ = read_store_settings(environment, mooncake)
    owner = StoreClient(byte_size(segment) or 0, byte_size(local) or 0, Protocol.TCP)
    rank = StoreClient(0, 20_000_000, Protocol.TCP, dummy=True)
    launch = Launch(
        (
            MappedProcess("mooncake_client", settings, (), (owner,)),
            MappedProcess("rank 0", settings, (50_000_000, 30_000_000), (rank,)),
        ),
        mooncake,
    )
    spot = Spot(2 * MIB, None)
    owner_pages, rank_pages = (
        pages_by_spot(process.allocations).get(spot, 0)
        for process in replay(launch, EndlessPools())
    )
    assert owner_pages == recorded
    store = stores(wheel_0_3_13)
    try:
        flags = (f"--global_segment_size={segment}", f"--local_buffer_size={local}")
        address = store.start_client(environment, *flags)
        assert huge_pages.settled_use() == owner_pages
        case = Case("rank", environment, (50_000_000, 30_000_000), ())
        dummy = [{"dummy": True, "local_buffer_bytes": rank.local_buffer_bytes}]
        answer = store.run(case, clients=dummy, real_client=address)
        assert (answer["said"], answer["pages"]["2048kB"]) == ("ok", rank_pages)
    finally:
        store.stop_clients()


ARENA = "--mmap_arena_pool_size=34603008"
USED = "--use_mmap_arena_allocator"


@pytest.mark.parametrize(
    ("flags", "variable"),
    [
        ((USED, ARENA), None),
        ((ARENA,), None),
        ((ARENA,), "abc"),
        ((USED, ARENA), "80mb"),
        ((USED, ARENA, "--nouse_mmap_arena_allocator"), None),
        ((USED, "--mmap_arena_pool_size=10"), None),
        ((USED, "--mmap_arena_pool_size=0"), None),
    ],
)
def test_the_arena_that_mooncake_client_is_told_of(
    flags: tuple[str, ...],
    variable: str | None,
    wheel_0_3_13: Wheel,
    stores: Stores,
    huge_pages: HugePages,
) -> None:
    """The pages of each, and with one page less the client ends, as the model says."""
    mooncake = mooncake_release(wheel_0_3_13.version)
    environment = ON if variable is None else {**ON, "MC_MMAP_ARENA_POOL_SIZE": variable}
    sizes = ("--global_segment_size=100MB", "--local_buffer_size=20MB")
    origin = Origin("command line")
    process = read_mooncake_client(tuple(Word(text, origin) for text in (*sizes, *flags)), {})
    client = require(process.client)
    settings, _ = read_store_settings(environment, mooncake, process.arena)
    launch = Launch((MappedProcess("mooncake_client", settings, (), (client,)),), mooncake)
    needed = pages_by_spot(replay_endless(launch)[0].allocations)[Spot(2 * MIB, None)]
    store = stores(wheel_0_3_13)
    assert huge_pages.set(needed + 20, 0, 0) is None
    try:
        store.start_client(environment, *sizes, *flags)
        assert huge_pages.settled_use() == needed
    finally:
        store.stop_clients()
    (short,) = replay(launch, StockedPools({Spot(2 * MIB, None): 59}))
    assert huge_pages.set(59, 0, 0) is None
    started = True
    try:
        store.start_client(environment, *sizes, *flags)
    except RuntimeError:
        started = False
    finally:
        store.stop_clients()
    assert started is (short.failure is None)
