"""The curve of one pass, held against caches that are replayed block by block; and blocks on their
way through the tiers: written traces, each move by hand."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from benchmarks.traces import growing
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.traces.curve import Curve, CurveCounter, optimum
from preflight.cache_sizing.traces.describe import profile_trace
from preflight.cache_sizing.traces.formats import Request, chained, open_trace
from preflight.cache_sizing.traces.tiers import (
    Flows,
    Replay,
    Routing,
    Rules,
    StorePool,
    StoreRules,
    TierSizes,
)
from tests.tables import each_row

# Where the published traces lie.
FOLDER = os.environ.get("MOONCAKE_PREFLIGHT_TRACES")
CONVERSATION = Path(FOLDER or "/nonexistent") / "conversation.jsonl.xz"

published = pytest.mark.skipif(
    not CONVERSATION.exists(), reason="MOONCAKE_PREFLIGHT_TRACES names no folder with the trace"
)


def conversation() -> list[Request]:
    return list(open_trace(str(CONVERSATION), 64).requests)


def counted(requests: list[list[int]], most_blocks: int = 1 << 30) -> CurveCounter:
    counter = CurveCounter(most_blocks)
    for blocks in requests:
        counter.take(blocks)
    return counter


def made(seed: int, count: int = 60) -> list[list[int]]:
    """Requests that go on from earlier ones, and branch off from them."""
    rng = random.Random(seed)
    prompts: list[list[int]] = []
    for number in range(count):
        base = rng.choice(prompts) if prompts and rng.random() < 0.8 else []
        kept = base[: rng.randint(0, len(base))]
        prompts.append([*kept, *(number * 100 + at for at in range(rng.randint(1, 6)))])
    return [chained(prompt, "") for prompt in prompts]


def lru_hits(requests: list[list[int]], size: int) -> int:
    """One cache, block by block: the leaf is the least recently used of its prompt."""
    held: list[int] = []
    hits = 0
    for blocks in requests:
        for block in blocks:
            if block not in held:
                break
            hits += 1
        held = [block for block in held if block not in blocks] + blocks[::-1]
        held = held[-size:] if size else []
    return hits


def best_hits(requests: list[list[int]], size: int) -> int:
    """Keeps what is used soonest; of one prompt's blocks the nearest to the root."""
    ahead: dict[int, list[int]] = {}
    for number, blocks in enumerate(requests):
        for block in blocks:
            ahead.setdefault(block, []).append(number)
    depth = {block: at for blocks in requests for at, block in enumerate(blocks)}
    held: set[int] = set()
    hits = 0
    for number, blocks in enumerate(requests):
        hits += len(held & set(blocks))
        held |= set(blocks)
        later = {b: min((n for n in ahead[b] if n > number), default=1 << 30) for b in held}
        soonest = sorted((block for block in held if later[block] < 1 << 30), key=depth.__getitem__)
        held = set(sorted(soonest, key=later.__getitem__)[:size])
    return hits


@pytest.mark.slow
@each_row("seed", range(12))
def test_every_size_is_what_a_cache_of_that_size_answers(seed: int) -> None:
    requests = made(seed)
    curve = counted(requests).curve()
    for size in range(120):
        expected = lru_hits(requests, size) / curve.accesses
        assert curve.rate(size) == pytest.approx(expected), size


@each_row("seed", range(12))
def test_the_optimum_is_what_a_cache_that_knows_the_rest_answers(seed: int) -> None:
    requests = made(seed, 40)
    sizes = list(range(1, 60, 3))
    uses = counted(requests).uses
    assert uses is not None
    assert [optimum(uses, size) for size in sizes] == [best_hits(requests, size) for size in sizes]


@pytest.mark.parametrize(
    ("prompts", "sizes"),
    [
        pytest.param(["a", "a", "a"], {0: 0, 1: 2}, id="one block again and again"),
        pytest.param(["a", "b", "a"], {1: 0, 2: 1}, id="another one between"),
        pytest.param(["abc", "abc"], {1: 1, 2: 2, 3: 3}, id="the end of a prompt goes first"),
        pytest.param(["abc", "xbc"], {3: 0, 99: 0}, id="behind another prefix it is another block"),
        pytest.param(["abc", "ab", "abc"], {2: 4, 3: 5}, id="what was cut off is older"),
        pytest.param(["", "a", "", "a"], {1: 1}, id="requests without a block"),
    ],
)
def test_written_traces(prompts: list[str], sizes: dict[int, int]) -> None:
    requests = [chained(list(prompt), "") for prompt in prompts]
    curve = counted(requests).curve()
    for size, hits in sizes.items():
        assert curve.rate(size) * curve.accesses == pytest.approx(hits), size
        assert lru_hits(requests, size) == hits


def test_nothing_was_asked() -> None:
    curve = counted([]).curve()
    assert (curve.rate(10), curve.ceiling, curve.knee, curve.size_for(0.5)) == (0, 0, 0, None)


def test_the_ceiling_has_a_size_however_it_is_rounded() -> None:
    """49 x (1 / 49) is less than 1, and with other numbers more."""
    for accesses in range(1, 200):
        for hits in range(1, accesses):
            curve = Curve([0, 7], [0.0, float(hits)], accesses, None)
            assert curve.size_for(curve.ceiling) == 7


@pytest.mark.slow
def test_a_sample_takes_bounded_memory_and_says_its_error() -> None:
    requests = made(1, 6000)
    exact = counted(requests).curve()
    counter = counted(requests, 4000)
    sampled = counter.curve()
    assert sum(len(stack.last) for stack in counter._stacks) <= 4000
    assert (sampled.distinct, counter.uses) == (None, None)
    assert sampled.sampled < 0.5
    apart = max(abs(sampled.rate(at * 100) - exact.rate(at * 100)) for at in range(1, 200))
    assert 0 < apart < 4 * sampled.error < 0.2


@pytest.mark.slow
def test_the_memory_of_a_sample_does_not_grow() -> None:
    """Ten times as many accesses of ten times as many blocks: the counts of distances grow with the
    logarithm alone, and nothing else does."""
    taken = []
    for accesses in (1e6, 1e7):
        counter = CurveCounter(20_000)
        for blocks in growing(accesses):
            counter.take(blocks)
        counter.curve()
        steps = [counter._whole, *counter._counted, *(stack.steps for stack in counter._stacks)]
        stacks = [len(stack.last) + len(stack.tree) for stack in counter._stacks]
        taken.append(sum(stacks) + sum(map(len, steps)))
    assert taken[1] < 2 * taken[0] < 200_000


@published
def test_the_published_trace() -> None:
    requests = conversation()
    counter = counted([request.blocks for request in requests])
    curve = counter.curve()
    assert (len(requests), curve.accesses, curve.distinct) == (12_031, 288_500, 182_790)
    assert sum(request.input_tokens for request in requests) == 144_793_823

    def percent(thousands: int) -> float:
        return round(100 * curve.rate(thousands * 1000), 1)

    # 4.1, 8.2, 16.4 and 32.8 million tokens.
    assert [percent(size) for size in (8, 16, 32, 64)] == [17.8, 26.3, 33.2, 35.9]
    assert [percent(size) for size in (1, 2, 4, 128, 256)] == [4.5, 5.4, 8.7, 36.5, 36.6]
    assert round(100 * curve.ceiling, 1) == 36.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "block", "requests"), [("rag", 64, 5000), ("chat", 64, 10_000), ("agent", 512, 20_000)]
)
def test_a_sample_of_traffic_that_is_made_is_within_a_point(
    kind: str, block: int, requests: int
) -> None:
    """A 125th of the blocks that are followed by default."""
    blocks = [request.blocks for request in profile_trace(kind, block, requests, 3).requests]
    exact, sampled = counted(blocks).curve(), counted(blocks, 32_000).curve()
    assert sampled.sampled < 1
    sizes = range(500, exact.size_for(exact.ceiling) or 0, 500)
    assert max(abs(sampled.rate(size) - exact.rate(size)) for size in sizes) < 0.01


# Tokens of a block here, and of a page.
BLOCK = 64


def sizes(
    l1: int, l2: int | None = None, pool: int | None = None, disk: int | None = None
) -> TierSizes:
    """In blocks."""
    return TierSizes(
        l1 * BLOCK, *(None if each is None else each * BLOCK for each in (l2, pool, disk))
    )


def request(prompt: str, session: int | None = None) -> Request:
    blocks = chained(list(prompt), "")
    return Request(blocks, len(blocks) * BLOCK, 1, None, session)


def replayed(prompts: str, size: TierSizes, rules: Rules) -> tuple[list[str], Flows]:
    """Prompts stand apart by spaces, a letter is a block; the tiers of what each finds."""
    replay = Replay(size, rules, BLOCK, BLOCK)
    served = [replay.take(request(prompt)) for prompt in prompts.split()]
    short = {"L1": "1", "L2": "2", "L3": "3", "SSD": "S"}
    return ["".join(short[tier] for tier in found) for found in served], replay.flows


# No threshold: a block is enough to be fetched. Pools evict one block at a time.
EAGER = Rules(prefetch_threshold=1)


@each_row("policy", ["write_through", "write_through_selective", "write_back"])
@each_row("l2", [3, 6, 9])
def test_a_fetch_that_fills_the_second_tier_ends_there(policy: str, l2: int) -> None:
    """Else a request gives up what it fetched a moment ago: no more is found than there is room."""
    chosen = random.Random(l2)
    prompts = [
        "".join(chosen.choice("ab") for _ in range(chosen.randint(1, 6))) for _ in range(400)
    ]
    size = sizes(6, l2, 200)
    served, _ = replayed(" ".join(prompts), size, EAGER._replace(write_policy=policy))
    assert any("3" in found for found in served)
    assert all(found.count("3") <= l2 for found in served)


BACK = EAGER._replace(write_policy="write_back")
CHOSEN = EAGER._replace(write_policy="write_through_selective")
FAR, BUFFERS = EAGER._replace(prefetch_threshold=3 * BLOCK), EAGER._replace(buffers=True)
TWO = EAGER._replace(caches=2)
AWARE = TWO._replace(routing=Routing("cache-aware"))
LATE = EAGER._replace(store=StoreRules(disk_gets_evicted=True))


@pytest.mark.parametrize(
    ("prompts", "size", "rules", "found"),
    [
        pytest.param("ab ab", sizes(4), EAGER, "- 11", id="L1"),
        pytest.param("ab cd ab", sizes(2, 4), EAGER, "- - 22", id="L2 keeps what L1 evicts"),
        pytest.param("ab cd ab", sizes(2), EAGER, "- - -", id="no L2: lost"),
        pytest.param("ab cd ef ab", sizes(2, 4), EAGER, "- - - -", id="L2 includes L1"),
        pytest.param("ab cd ef ab", sizes(2, 4), BACK, "- - - 22", id="L2 has what L1 has not"),
        pytest.param("ab cd ab", sizes(2, 4), CHOSEN, "- - -", id="once is not enough"),
        pytest.param("ab ab cd ab", sizes(2, 4), CHOSEN, "- 11 - 22", id="selective: twice is"),
        pytest.param("ab cd ef ab", sizes(2, 4, 9), EAGER, "- - - 33", id="L3 has what L2 had"),
        pytest.param("ab cd ef ab", sizes(2, 4, 9), FAR, "- - - -", id="too little to fetch"),
        pytest.param(
            "ab cd ef ab", sizes(2, 4, 5), EAGER, "- - - -", id="the rest needs the oldest"
        ),
        pytest.param("ab cd ef ab", sizes(2, 4, 5, 9), EAGER, "- - - SS", id="the disk has all"),
        pytest.param("ab cd ef ab", sizes(2, 4, 5, 9), LATE, "- - - SS", id="it has the evicted"),
        pytest.param("abc abc", sizes(2, 4), EAGER, "- 11", id="longer than L1"),
        pytest.param("ab cd ef ab", sizes(2, 3, 9), BUFFERS, "- - - 33", id="L2 has nothing"),
        pytest.param("abc def abc", sizes(3, 3, 9), BUFFERS, "- - -", id="more than 0.9 of L2"),
        pytest.param("ab ab ab", sizes(4), TWO, "- - 11", id="round robin"),
        pytest.param("ab ab cd cd ab", sizes(4), AWARE, "- 11 - 11 11", id="cache aware"),
        pytest.param("ab ab", sizes(4, 8, 16), TWO, "- 33", id="side by side, with one store"),
    ],
)
def test_where_each_block_is_found(prompts: str, size: TierSizes, rules: Rules, found: str) -> None:
    assert [each or "-" for each in replayed(prompts, size, rules)[0]] == found.split()


def pool(memory: int, lease_seconds: float = 0.0) -> StorePool:
    return StorePool(memory, None, StoreRules(0.5, 0.1, lease_seconds), Flows())


def test_the_store_evicts_a_part_and_what_is_above_the_watermark() -> None:
    """Of 100 blocks of memory, half: the 51st evicts 51 x (0.51 - 0.5 + 0.1) of them, rounded up:
    6. Equal to Mooncake's own, see tests/cache_sizing/capacity/test_capacity_real.py."""
    store = pool(50)
    for block in range(51):
        store.put([block], float(block))
    assert [block for block in range(51) if block in store] == list(range(6, 51))


def test_what_was_asked_for_is_leased() -> None:
    """It stays, whatever came later; and goes by when its lease ended, not by when it was asked."""
    store = pool(50, lease_seconds=100.0)
    for block in range(50):
        store.put([block], float(block))
    assert store.find([0, 1, 2], 60.0) == ["L3"] * 3
    store.put([50], 61.0)
    assert [block for block in range(51) if block not in store] == list(range(3, 9))
    # At 160 their leases end: written at 155 stands before them, at 165 behind.
    for number, now in ((51, 155.0), (52, 165.0)):
        store.put([number], now)
    for number in range(53, 60):
        store.put([number], 170.0)
    gone = [block for block in range(53) if block not in store]
    assert gone == list(range(3, 15))


def test_what_comes_to_a_store_whose_memory_is_leased_goes_at_once() -> None:
    store = pool(5, lease_seconds=10.0)
    for block in range(5):
        store.put([block], 0.0)
    store.find(range(5), 0.0)
    store.put([5], 9.0)
    assert [block for block in range(6) if block in store] == list(range(5))
    # Their leases end: 6 x (0.6 - 0.5 + 0.1), rounded up.
    store.put([6], 10.0)
    assert [block for block in range(7) if block in store] == [2, 3, 4, 6]


def test_a_sticky_conversation_stays() -> None:
    replay = Replay(sizes(4), Rules(caches=3, routing=Routing("sticky")), BLOCK, BLOCK)
    replay.take(request("ab", 5))
    replay.take(request("cd", 4))
    assert replay.take(request("ab", 5)) == ["L1", "L1"]
    with pytest.raises(UsageError, match="does not say which conversation"):
        replay.take(request("ab"))


@each_row("seed", range(6))
@each_row("policy", ["write_through", "write_through_selective", "write_back"])
def test_l1_and_l2_answer_what_the_curve_says(seed: int, policy: str) -> None:
    """L1 is one cache. L2 with write_through holds the same and more, so both are one of its size.

    With write_back they hold no more than both sizes; selective leaves out what is not used again,
    and may do better, but not than the best of both sizes."""
    requests = made(seed, 400)
    curve = counted(requests).curve()
    rng = random.Random(seed)
    l1 = max(map(len, requests)) + rng.randint(0, 30)
    l2 = 2 * l1
    rules = EAGER._replace(write_policy=policy, whole_nodes=False)
    replay = Replay(sizes(l1, l2), rules, BLOCK, BLOCK)
    for blocks in requests:
        replay.take(Request(blocks, len(blocks) * BLOCK, 1, None))
    both = replay.flows.rate("L1") + replay.flows.rate("L2")
    assert replay.flows.rate("L1") == pytest.approx(curve.rate(l1))
    if policy == "write_through":
        assert both == pytest.approx(curve.rate(l2))
    counter = counted(requests)
    assert counter.uses is not None
    best = optimum(counter.uses, l1 + l2)
    selective = policy == "write_through_selective"
    most = best / curve.accesses if selective else curve.rate(l1 + l2)
    assert curve.rate(l1) <= both <= most + 1e-9
