"""What a rehearsal foretells of registrations that are refused: the step, the words, the pages."""

from __future__ import annotations

from typing import Any

import pytest

from checks.base.pages import Region, Spot
from checks.hugetlb.fit import Stock
from checks.rdma.fork import Forking, bad_end
from checks.releases.mooncake import mooncake_release
from preflight.mooncake.allocations import EndlessPools, all_regions_of
from preflight.mooncake.replay import replay
from preflight.programs.memory_records import HotCache, Launch, MappedProcess, Protocol, StoreClient
from preflight.programs.memory_records import StoreSettings as Settings
from preflight.rehearsal.plan import plan_members
from preflight.rehearsal.records import (
    Library,
    Member,
    ProcessMemory,
    RehearsalPlan,
    RehearsalRun,
    StepResult,
    Transfer,
)
from preflight.rehearsal.rehearse import judge, predicted_pages
from tests.builders.hosts import GIB, MIB
from tests.tables import each_row

OLD, NEW = "0.3.13.post1", "0.3.14"
HUGE = Settings(True, 2 * MIB)
ANYWHERE = Spot(2 * MIB, None)
# Of a machine with six processors, and a device that takes any length in one registration.
SIX = Forking(6, 1 << 40, mooncake_release("0.3.13.post1"))
SIX_NEW = SIX._replace(release=mooncake_release("0.3.14"))


def planned(
    segment: int = 32 * MIB,
    local: int = 16 * MIB,
    *,
    pools: tuple[int, ...] = (),
    forking: Forking | None = SIX,
    settings: Settings = HUGE,
    nic_nodes: tuple[int, ...] = (),
    halves: bool = False,
    clients: int = 1,
) -> RehearsalPlan:
    client = StoreClient(segment, local, Protocol.RDMA)
    split = (halves,) * len(pools)
    rank = MappedProcess("rank", settings, pools, (client,) * clients, split_pools=split)
    version = NEW if forking is SIX_NEW else OLD
    stock = {spot: Stock(9000, 9000) for spot in (ANYWHERE, Spot(2 * MIB, 0), Spot(2 * MIB, 1))}
    library = Library("python3", "/opt", "mooncake-transfer-engine", version)
    member = Member("rank", "sglang", rank, {}, forking=forking)
    return plan_members(
        (member,), Launch((rank,), mooncake_release(version), nic_nodes), stock, library
    )


def foretold(plan: RehearsalPlan) -> tuple[str, int, str]:
    """Where it is to end, how many pages it has then, and what the call says; "" for nowhere."""
    pages = 0
    for step in plan.steps:
        assert step.taken is not None, "a step after the end"
        pages += predicted_pages(step.taken).get(ANYWHERE, 0)
        if step.failure is not None:
            return step.what, pages, step.failure.error.partition(":")[0]
    return "", pages, ""


REFUSED = "setup returns -600"
CLIENT = "store client (local buffer, global segment)"
NOT_REGISTERED = "register_buffer of 64000000 bytes returns -600"
REGISTERING = "registering L2 host pool"
ARENA = HUGE._replace(arena_bytes=100 * MIB)


@each_row(
    ("given", "expected"),
    [
        # Measured in the lab on soft-RoCE, rdma-core 44: what stays mapped is there until the end.
        ({"segment": 4 * GIB}, (CLIENT, 2056, REFUSED)),
        ({"segment": 4 * GIB, "nic_nodes": (0, 1)}, (CLIENT, 2056, REFUSED)),
        ({"segment": 6 * 704 * MIB}, ("", 2120, "")),
        ({"segment": 4 * GIB, "forking": None}, ("", 2056, "")),
        ({"segment": 4 * GIB, "forking": SIX_NEW}, ("", 2056, "")),
        ({"local": 16777217}, (CLIENT, 9, REFUSED)),
        ({"local": 16777217, "forking": SIX_NEW}, (CLIENT, 9, REFUSED)),
        ({"local": 16777217, "settings": ARENA}, ("", 50, "")),
        ({"pools": (64_000_000,)}, (REGISTERING, 55, NOT_REGISTERED)),
        ({"pools": (62 * MIB,)}, ("", 55, "")),
        ({"pools": (64_000_000,), "forking": None}, ("", 55, "")),
        ({"pools": (64_000_000,), "forking": SIX_NEW}, ("", 55, "")),
        # The newest Mooncake registers all of a pool for K, whatever the protocol.
        ({"pools": (64 * MIB,), "halves": True}, ("", 56, "")),
        (
            {"pools": (64 * MIB,), "halves": True, "forking": SIX_NEW},
            (REGISTERING, 56, "register_buffer of 33554432 bytes returns -600"),
        ),
    ],
)  # fmt: skip
def test_where_it_ends(given: dict[str, Any], expected: tuple[str, int, str]) -> None:
    """The first registration that is refused ends it, with what was mapped until then."""
    plan = planned(**given)
    failing = next((n for n, step in enumerate(plan.steps) if step.failure), None)
    if failing is not None:
        assert all(step.taken is None for step in plan.steps[failing + 1 :])
        plan = plan._replace(steps=plan.steps[: failing + 1])
    assert foretold(plan) == expected
    assert bool(expected[0]) == any(step.refused for step in plan.steps)


def test_a_hot_cache_is_done_without() -> None:
    """Its pages go back, setup goes on, and the answer warns."""
    cache = HUGE._replace(hot_cache=HotCache(30_000_000, 3_000_000, True))
    plan = planned(local=0, settings=cache)
    assert foretold(plan) == ("", 16, "")
    answer = judge(plan, ran(plan))
    assert answer.status == "warns"
    assert "hot cache of 30000000 B is no whole number of 2 MiB pages" in answer.reason


def test_each_of_several_clients_maps_its_own() -> None:
    """An arena of 100 MiB serves two of three clients in one process, as was measured."""
    plan = planned(clients=3, forking=None, settings=ARENA)
    assert [predicted_pages(step.taken or ()).get(ANYWHERE, 0) for step in plan.steps] == [
        50,
        0,
        24,
    ]


@pytest.mark.parametrize("nodes", [(), (0, 1)])
def test_a_segment_in_shares_is_registered_once(nodes: tuple[int, ...]) -> None:
    """One region of all of it, which is what decides whether it is touched in blocks."""
    clients = (StoreClient(4 * GIB, 0, Protocol.RDMA),) * 2
    rank = MappedProcess("rank", HUGE, clients=clients)
    (one,) = replay(Launch((rank,), mooncake_release(OLD), nodes), EndlessPools())
    found = list(all_regions_of(one.allocations))
    assert found == [Region("global segment", 4 * GIB, 2 * MIB)] * 2
    assert "6 blocks" in str(bad_end(found[0], SIX))


def ran(plan: RehearsalPlan, error: str = "") -> RehearsalRun:
    """As planned, to the step that is to fail, or that fails with ``error``."""
    done = []
    for step in plan.steps:
        said = step.failure.error.partition(":")[0] if step.failure else error
        done.append(StepResult(step, said, 0.1, predicted_pages(step.taken or ())))
        if said:
            break
    return RehearsalRun(
        tuple(done), (ProcessMemory(plan.members[0], 0, 0, 0),), {}, Transfer("", "", 0), "", {}
    )


def test_what_was_foretold_is_told() -> None:
    """The reason says what ends inside a huge page, and what to set."""
    plan = planned(4 * GIB)
    answer = judge(plan, ran(plan))
    assert (answer.status, answer.as_predicted) == ("fails", True)
    assert "6 blocks of 715827882 B" in answer.reason
    assert "set RDMAV_HUGEPAGES_SAFE=1" in answer.reason


def test_pages_are_compared_where_it_was_to_end() -> None:
    """A refused registration leaves as many as were predicted, to the page."""
    plan = planned(4 * GIB)
    run = ran(plan)
    (done,) = run.done
    fewer = run._replace(done=(done._replace(pages={ANYWHERE: 2055}),))
    assert judge(plan, fewer).differences == (
        "rank, store client (local buffer, global segment): 2055 pages of 2 MiB were taken, 2056 "
        "were predicted",
    )


def test_another_limit_may_come_first() -> None:
    """With a finding of memlock a local buffer may fail before the segment that was to."""
    plan = planned(4 * GIB)
    early = StepResult(plan.steps[0], REFUSED, 0.1, {ANYWHERE: 8})
    run = ran(plan)._replace(done=(early,))
    assert judge(plan, run).status == "differs"
    answer = judge(plan, run, (), ("memlock.limit: have 8 MiB",))
    assert answer.as_predicted is True
    assert "memlock.limit" in answer.reason
