"""The curve of one pass, held against caches that are replayed block by block."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from benchmarks.traces import growing
from preflight.traces.curve import Curve, CurveCounter, optimum
from preflight.traces.describe import profile_trace
from preflight.traces.formats import Request, chained, open_trace
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
    assert optimum(uses, sizes) == [best_hits(requests, size) for size in sizes]


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


def test_the_size_for_a_rate_is_the_least_that_gives_it() -> None:
    requests = made(3)
    curve = counted(requests).curve()
    for percent in range(1, 100):
        size = curve.size_for(percent / 100)
        if size is None:
            assert percent / 100 > curve.ceiling
        else:
            assert curve.rate(size) >= percent / 100 - 1e-12
            assert size == 0 or curve.rate(size - 1) < percent / 100


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
