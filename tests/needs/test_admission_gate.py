"""SGLang's check of host memory: its words, and the huge page counts that it lets pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.releases.sglang import RELEASES, SglangRelease, sglang_release
from preflight.engines.sglang.admission_gate import (
    RESERVE_BYTES,
    FeasiblePages,
    FreeMemory,
    GateAnswer,
    feasible_hugepages,
    free_bytes,
    gate,
    in_container,
)
from preflight.engines.sglang.host_pool_records import HostPool, PoolKind

NEWEST = sglang_release("0.5.23")
UNSHARED = sglang_release("0.5.18")
POOL_BYTES = 30_005_002_240  # Qwen3-14B, tp 2, --hicache-size 30


def pool(size: int, kind: PoolKind = PoolKind.KV, requested: int | None = None) -> HostPool:
    return HostPool(kind, 64, 1, size, (size,), size if requested is None else requested)


def only(answers: tuple[GateAnswer, ...]) -> GateAnswer:
    (answer,) = answers
    return answer


def test_the_worked_budget() -> None:
    enough = 2 * POOL_BYTES + RESERVE_BYTES
    assert only(gate([pool(POOL_BYTES)], FreeMemory(enough), 2, NEWEST)).message is None
    answer = only(gate([pool(POOL_BYTES)], FreeMemory(enough - 1), 2, NEWEST))
    assert answer.free_bytes == POOL_BYTES - 1
    assert answer.message == (
        "Not enough host memory available. Requesting 30.01 GB but only have 30.01 GB free. "
        "Please reduce the size of the hierarchical cache."
    )


def test_before_0_5_19_every_rank_sees_all_of_it() -> None:
    memory = FreeMemory(POOL_BYTES + RESERVE_BYTES)
    assert only(gate([pool(POOL_BYTES)], memory, 8, UNSHARED)).message is None
    assert only(gate([pool(POOL_BYTES)], memory, 8, NEWEST)).message


@pytest.mark.parametrize(("version", "name"), [("0.5.23", "DSA"), ("0.5.12", "NSA")])
def test_the_indexer_has_words_of_its_own(version: str, name: str) -> None:
    answer = only(
        gate([pool(12 * 10**9, PoolKind.INDEXER)], FreeMemory(15 * GIB), 1, sglang_release(version))
    )
    assert answer.message == (
        f"Not enough host memory for {name} indexer hierarchical cache. Requesting 12.00 GB but "
        "only have 5.37 GB free."
    )


def test_the_cgroup_counts_since_0_5_21() -> None:
    memory = FreeMemory(100 * GIB, 20 * GIB)
    assert free_bytes(memory, 2, NEWEST) == 5 * GIB
    assert free_bytes(memory, 2, sglang_release("0.5.20")) == 45 * GIB
    # What SGLang cannot read either, it leaves out with a warning.
    assert free_bytes(FreeMemory(100 * GIB, Unknown("no")), 2, NEWEST) == 45 * GIB
    assert free_bytes(FreeMemory(100 * GIB, None), 2, NEWEST) == 45 * GIB


def test_less_than_the_reserve() -> None:
    answer = only(gate([pool(1)], FreeMemory(9 * GIB), 1, NEWEST))
    assert answer.message is not None
    assert "only have -1.07 GB free" in answer.message


def test_earlier_pools_are_in_place_already() -> None:
    pools = [pool(6 * GIB), pool(6 * GIB, PoolKind.INDEXER), pool(1, PoolKind.DRAFT)]
    answers = gate(pools, FreeMemory(20 * GIB), 1, NEWEST)
    assert [answer.message is None for answer in answers] == [
        True,
        False,
    ]  # and the server has stopped
    assert answers[1].free_bytes == 4 * GIB
    on_hugepages = gate(pools, FreeMemory(20 * GIB), 1, NEWEST, on_hugepages=True)
    assert [answer.message is None for answer in on_hugepages] == [True, True, True]


def test_a_pool_that_no_gate_looks_at() -> None:
    inside = HostPool(PoolKind.INDEXER, 64, 1, GIB, (GIB,), None)
    assert gate([inside], FreeMemory(0), 1, NEWEST) == ()


def feasible(
    available: int,
    least: int,
    *,
    ranks: int = 2,
    current: int = 0,
    headroom: int | None = None,
    release: SglangRelease = NEWEST,
) -> FeasiblePages:
    return feasible_hugepages(
        [[pool(POOL_BYTES)]] * ranks,
        FreeMemory(available, headroom),
        ranks,
        release,
        page_size_bytes=2 * MIB,
        current_pages=current,
        least_pages=least,
    )


def test_no_count_is_feasible() -> None:
    # The pools fit the host, but not twice: once reserved, once more to please the gate.
    found = feasible(100 * 10**9, 28_616)
    assert found.empty
    assert "28616 are needed" in found.reason


def test_a_tight_cgroup_admits_no_count() -> None:
    found = feasible(10**12, 1, headroom=30 * GIB)
    assert found.empty
    assert "memory cgroup leaves 30.00 GiB" in found.reason
    assert not feasible(10**12, 1, headroom=30 * GIB, release=sglang_release("0.5.20")).empty


def test_nothing_to_check() -> None:
    found = feasible_hugepages(
        [], FreeMemory(0), 1, NEWEST, page_size_bytes=2 * MIB, current_pages=0, least_pages=7
    )
    assert (found.least, found.most, found.empty) == (7, None, False)


@given(
    st.lists(st.integers(1, 400 * GIB), min_size=1, max_size=3),
    st.integers(0, 2000 * GIB),
    st.none() | st.integers(0, 2000 * GIB),
    st.integers(1, 16),
    st.sampled_from(RELEASES),
    st.integers(0, 5000),
    st.sampled_from([2 * MIB, GIB]),
)
def test_the_interval_is_just_what_the_gate_admits(
    sizes: list[int],
    available: int,
    headroom: int | None,
    ranks: int,
    release: SglangRelease,
    current: int,
    page: int,
) -> None:
    pools = [pool(size) for size in sizes]
    found = feasible_hugepages(
        [pools],
        FreeMemory(available, headroom),
        ranks,
        release,
        page_size_bytes=page,
        current_pages=current,
        least_pages=0,
    )

    def admitted(pages: int) -> bool:
        memory = FreeMemory(available - (pages - current) * page, headroom)
        answers = gate(pools, memory, ranks, release, on_hugepages=True)
        return all(answer.message is None for answer in answers)

    assert found.most is not None
    assert not admitted(max(found.most, -1) + 1)
    if not found.empty:
        assert admitted(found.most)


def test_a_limit_of_the_launch_is_headroom() -> None:
    assert in_container(FreeMemory(100 * GIB), 64 * GIB).headroom_bytes == 64 * GIB
    assert in_container(FreeMemory(100 * GIB, 20 * GIB), 64 * GIB).headroom_bytes == 20 * GIB
    assert in_container(FreeMemory(100 * GIB), None).headroom_bytes is None
