"""The model of rounds: its laws, and a cache that is really played through beside its bounds."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.unknown import Unknown
from preflight.capacity.deployment import Bounds, Round
from preflight.capacity.rounds import TierModel, cached_tokens, rounds
from preflight.capacity.workload import MultiTurnWorkload
from preflight.traces.formats import Request
from preflight.traces.tiers import Replay, Rules, TierSizes


def workload(
    clients: int, rounds_: int, first: int, following: int | None = None, output: int = 1
) -> MultiTurnWorkload:
    return MultiTurnWorkload(
        clients, rounds_, first, first if following is None else following, output, "test"
    )


def exact(name: str, tokens: int) -> TierModel:
    return TierModel(name, Bounds(tokens, tokens), Bounds(tokens, tokens))


workloads = st.builds(
    workload,
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(1, 300),
    st.none() | st.integers(0, 300),
    st.integers(1, 40),
)
pages = st.sampled_from([1, 4, 16, 64])


@given(workloads, pages, st.integers(0, 30_000))
def test_a_tier_evicts_exactly_where_the_contexts_no_longer_fit(
    work: MultiTurnWorkload, page: int, tokens: int
) -> None:
    for each in rounds(work, page, [exact("L2", tokens)]):
        assert (each.held_tokens > tokens) == ("L2" in each.evicting) == ("L2" in each.may_evict)
        if each.held_tokens <= tokens:
            assert each.hits == (("L2", 1.0, 1.0),)


@st.composite
def tiers(draw: st.DrawFn) -> list[TierModel]:
    """Tiers as deployments have them: a farther one holds what nearer ones do, and more."""
    found: list[TierModel] = []
    least = most = 0
    for name in ("L1", "L2", "L3"):
        if draw(st.integers(0, 4)) == 0:
            unknown = Unknown("not given")
            found.append(TierModel(name, unknown, unknown, ordered=name != "L3"))
            continue
        least = least + draw(st.integers(0, 8_000))
        most = max(most, least) + draw(st.integers(0, 8_000))
        sticky = draw(st.booleans()) or name == "L3"
        late = draw(st.booleans()) and name != "L1"
        bounds = Bounds(least, most)
        found.append(TierModel(name, bounds, bounds, sticky, name != "L3", late))
    return found


@given(workloads, pages, tiers())
def test_shares_are_parts_and_grow_from_tier_to_tier(
    work: MultiTurnWorkload, page: int, below: list[TierModel]
) -> None:
    for each in rounds(work, page, below):
        likely = dict(each.likely)
        for name, least, most in each.hits:
            assert 0 <= least <= most <= 1
            assert least <= likely.get(name, least) <= most
        for nearer, farther in pairwise(each.hits):
            assert nearer[1] <= farther[1]
            assert nearer[2] <= farther[2]
        assert set(each.evicting) <= set(each.may_evict)


def played(work: MultiTurnWorkload, capacity: int, orders: list[list[int]]) -> list[float]:
    """Of each round, the tokens that SGLang's tree of that size still has (preflight.traces)."""
    replay, served = Replay(TierSizes(capacity), Rules(), 1, 1), []
    for number, order in enumerate(orders, start=1):
        length = cached_tokens(work, number, 1)
        prompts = [[client << 32 | at for at in range(length)] for client in order]
        found = (len(replay.take(Request(each, length, 1, None))) for each in prompts)
        served.append(float(sum(found)))
    return served


@given(st.integers(2, 7), st.integers(1, 7), st.integers(1, 90), st.integers(0, 4_000), st.data())
def test_what_is_played_lies_between_the_bounds(
    clients: int, rounds_: int, length: int, spare: int, data: st.DataObject
) -> None:
    """Any order of the clients, anew in each round; one conversation fits at least."""
    work = workload(clients, rounds_, length)
    capacity = cached_tokens(work, rounds_, 1) + spare
    orders = [data.draw(st.permutations(range(clients))) for _ in range(rounds_)]
    found = rounds(work, 1, [exact("L2", capacity)])
    for each, served in zip(found, played(work, capacity, orders), strict=True):
        _, least, most = each.hits[0]
        assert served <= most * each.reusable_tokens + 1e-6
        if each.reusable_tokens:
            assert served >= least * each.reusable_tokens - 1e-6


@pytest.mark.slow
def test_the_same_order_and_its_reverse_reach_the_bounds() -> None:
    """Nearly: a leaf goes as a whole, which the lower bound has room for."""
    work = workload(20, 8, 100)
    capacity = 9_000
    step = 101
    found = rounds(work, 1, [exact("L2", capacity)])
    forwards = list(range(20))
    same = played(work, capacity, [forwards] * 8)
    turned = played(work, capacity, [forwards[:: (-1) ** number] for number in range(8)])
    for each, low, high in zip(found[5:], same[5:], turned[5:], strict=True):
        _, least, most = each.hits[0]
        assert 0 <= low - least * each.reusable_tokens <= 20 * step
        assert 0 <= most * each.reusable_tokens - high <= 20 * step


@pytest.mark.slow
def test_the_likely_part_is_the_mean_of_random_orders() -> None:
    """Two hundred plays of a workload that overflows; the drawn orders are always the same."""
    work = workload(12, 6, 64)
    capacity = 3_000
    draw = random.Random(7)
    sums = [0.0] * 6
    plays = 200
    for _ in range(plays):
        orders = [draw.sample(range(12), 12) for _ in range(6)]
        for index, served in enumerate(played(work, capacity, orders)):
            sums[index] += served / plays
    for each, mean in zip(rounds(work, 1, [exact("L2", capacity)]), sums, strict=True):
        if each.evicting:
            likely = dict(each.likely)["L2"]
            assert mean / each.reusable_tokens == pytest.approx(likely, abs=0.04)


@pytest.mark.parametrize(
    ("rounds_", "page", "tokens"),
    [
        # Two questions of 10 and answers of 3: 26 tokens, the last of which is not computed.
        (2, 1, 25),
        (2, 8, 24),
        (2, 32, 0),
        (0, 1, 0),
        # The first question alone is longer.
        (1, 1, 12),
    ],
)
def test_what_a_client_leaves(rounds_: int, page: int, tokens: int) -> None:
    assert cached_tokens(workload(1, 5, 10, 10, 3), rounds_, page) == tokens


def test_no_conversation_is_certain_where_requests_go_anywhere() -> None:
    """Several caches side by side: the next request may come to another."""
    spread = TierModel("L2", Bounds(10**6, 10**7), Bounds(10**6, 10**7), sticky=False)
    found: Round = rounds(workload(4, 3, 64), 1, [spread])[2]
    assert found.hits == (("L2", 0.0, 1.0),)
    assert found.likely == ()
