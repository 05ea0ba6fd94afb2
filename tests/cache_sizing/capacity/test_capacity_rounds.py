"""Workloads as users write them, and the model of rounds: its laws, and a cache that is played."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.deployment import Bounds, Round
from preflight.cache_sizing.capacity.rounds import TierModel, cached_tokens, rounds
from preflight.cache_sizing.capacity.workload import (
    MultiTurnWorkload,
    WorkloadOptions,
    read_command,
    workload_of,
)
from preflight.cache_sizing.traces.formats import Request
from preflight.cache_sizing.traces.tiers import Replay, Rules, TierSizes
from tests.builders.launch_text import understood
from tests.tables import each_row


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
    """Of each round, the tokens that SGLang's tree of that size still has
    (preflight.cache_sizing.traces)."""
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


@each_row(
    ("text", "expected"),
    [
        # The benchmark's own defaults.
        ("python3 bench_multiturn.py", (256, 5, 512, 512, 64)),
        ("--num-clients 80", (80, 5, 512, 512, 64)),
        (
            "python3 benchmark/hicache/bench_multiturn.py --num-clients 80 --max-parallel 4 "
            "--request-length 2048 --output-length 1 --num-rounds 10",
            (80, 10, 2048, 2048, 1),
        ),
        ("--request-length=4096 --sub-question-input-length=512", (256, 5, 4096, 512, 64)),
        # The last of two counts.
        ("--num-clients 3 --num-clients=4 --num-rounds 2", (4, 2, 512, 512, 64)),
        # What decides nothing is left out.
        ("--num-clients 3 --unheard-of 9", (3, 5, 512, 512, 64)),
        ("--min-rounds 2 --max-rounds 7", (256, 7, 512, 512, 64)),
        ("--max-rounds 7 --num-rounds 9", (256, 7, 512, 512, 64)),
        ("bench_multiturn.py --model-path '/a b' --num-clients 2 # ten", (2, 5, 512, 512, 64)),
    ],
)
def test_a_command_line_is_read_as_the_benchmark_reads_it(
    text: str, expected: tuple[int, ...]
) -> None:
    assert read_command(text)[:5] == expected


def test_switches_and_orders_are_told_apart() -> None:
    plain = read_command("--num-clients 2")
    assert (plain.random_order, plain.barrier, plain.shorter) == (True, False, False)
    said = read_command("--ready-queue-policy fifo --enable-round-barrier --range-ratio 0.5")
    assert (said.random_order, said.barrier, said.shorter) == (False, True, True)
    assert read_command("--min-rounds 2 --max-rounds 7").shorter
    assert not read_command("--max-rounds 7").shorter


@each_row(
    ("text", "message"),
    [
        ("", "not the command line of bench_multiturn.py"),
        ("bench_serving.py --num-clients 3", "not the command line of bench_multiturn.py"),
        ("bench_multiturn.py --num-clients 'x", "not a command line"),
        ("--num-clients many", "--num-clients 'many': not a whole number"),
        ("--num-clients", "--num-clients has no value"),
        ("--num-clients 0", "clients 0: must be 1 to 1,000,000"),
        ("--num-clients -3", "clients -3: must be 1 to 1,000,000"),
        ("--num-rounds 0", "rounds 0: must be 1 to 1,000"),
        ("--output-length 0", "output length 0: must be 1"),
        ("--num-clients 1000000 --request-length 100000000 --num-rounds 1000", "tokens in all"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_right_spelling(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_command(text)


@pytest.mark.slow
@given(st.text(max_size=60) | st.text("-=abcdenumrlitsoh 0123456789'\\", max_size=60))
def test_no_text_is_more_than_a_usage_error(text: str) -> None:
    try:
        found = read_command(text)
    except UsageError:
        return
    assert found.clients >= 1


def test_numbers_alone_are_a_workload_and_a_part_of_them_is_none() -> None:
    found = workload_of(WorkloadOptions(80, 10, 2048), ())
    assert isinstance(found, MultiTurnWorkload)
    assert found[:5] == (80, 10, 2048, 2048, 1)
    # A length alone counts conversations.
    assert workload_of(WorkloadOptions(request_length=2048), ()) is None
    assert workload_of(WorkloadOptions(), ()) is None
    with pytest.raises(UsageError, match="one of the three is missing"):
        workload_of(WorkloadOptions(clients=80, rounds=10), ())


BENCH = "python3 benchmark/hicache/bench_multiturn.py --num-clients 20 --request-length 4096"


def test_the_launch_may_start_the_benchmark_itself() -> None:
    found = workload_of(WorkloadOptions(), understood(BENCH))
    assert isinstance(found, MultiTurnWorkload)
    assert found[:6] == (20, 5, 4096, 4096, 64, "launch.sh:1")


def test_numbers_go_over_a_command_and_that_over_the_launch() -> None:
    found = workload_of(WorkloadOptions(rounds=7, command="--num-clients 3"), understood(BENCH))
    assert isinstance(found, MultiTurnWorkload)
    assert found[:5] == (3, 7, 512, 512, 64)
    found = workload_of(WorkloadOptions(request_length=100, output_length=2), understood(BENCH))
    assert isinstance(found, MultiTurnWorkload)
    assert found[:5] == (20, 5, 100, 100, 2)


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("--model-path $MODEL --dataset-path=$DATA", True),
        ("--num-rounds $ROUNDS", False),
        ("--num-rounds=$ROUNDS", False),
    ],
)
def test_a_variable_matters_where_it_decides(words: str, known: bool) -> None:
    found = workload_of(WorkloadOptions(), understood(f"{BENCH} {words}"))
    assert isinstance(found, MultiTurnWorkload if known else Unknown)
    if isinstance(found, Unknown):
        assert "ROUNDS" in found.reason
