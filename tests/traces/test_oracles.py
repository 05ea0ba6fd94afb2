"""The curve and the optimum against two other simulators, where they are installed."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from preflight.traces.curve import optimum
from tests.traces.test_curve import conversation, counted, made, published

SIZES = [500, 1000, 2000, 4000, 8000, 12_000, 16_000, 32_000, 64_000, 128_000]


def simulated(requests: list[list[int]], size: int, best: bool) -> float | None:
    """What kvcache-simulator says of the second half; None where the cache was not full by then."""
    why = "pip install kvcache-simulator==0.1.3 for this comparison"
    policies: Any = pytest.importorskip("kvcache_sim.policies", reason=why)
    plan: Any = pytest.importorskip("kvcache_sim.plan", reason=why)
    trace: Any = pytest.importorskip("kvcache_sim.trace", reason=why)
    numbers: dict[int, int] = {}
    lines = [
        json.dumps(
            {
                "block_size": 1,
                "hash_ids": [numbers.setdefault(block, len(numbers)) for block in blocks],
                "input_length": len(blocks),
            }
        )
        for blocks in requests
    ]
    plan = plan.build_execution_plan(trace.parse_trace_lines(lines), 0.5)
    found = policies.simulate_trie_policy(plan, size, optimal=best)
    return found.hitRate if found.totalTokens else None


def second_half(requests: list[list[int]], size: int) -> tuple[float, float]:
    """The same by the curve, and by the optimum."""
    half = len(requests) // 2
    whole, first = counted(requests), counted(requests[:half])
    accesses = whole.accesses - first.accesses
    hits = whole.curve().rate(size) * whole.accesses - first.curve().rate(size) * first.accesses
    assert whole.uses is not None
    return hits / accesses, optimum(whole.uses, [size], half)[0] / accesses


@pytest.mark.parametrize("seed", range(4))
def test_written_traces_come_to_what_kvcache_simulator_says(seed: int) -> None:
    requests = made(seed, 400)
    for size in random.Random(seed).sample(range(5, 400), 8):
        expected = simulated(requests, size, False), simulated(requests, size, True)
        if None not in expected:
            assert second_half(requests, size) == pytest.approx(expected)


@published
@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES[:8])
def test_the_published_trace_comes_to_what_kvcache_simulator_says(size: int) -> None:
    requests = [request.blocks for request in conversation()]
    expected = simulated(requests, size, False), simulated(requests, size, True)
    assert second_half(requests, size) == pytest.approx(expected)


@published
@pytest.mark.slow
def test_the_published_trace_comes_to_what_libcachesim_says(tmp_path: Path) -> None:
    """Its LRU evicts the beginning of a prompt before its end, and so answers a hair less."""
    lcs: Any = pytest.importorskip("libcachesim", reason="pip install libcachesim")
    requests = [request.blocks for request in conversation()]
    numbers: dict[int, int] = {}
    accesses = [numbers.setdefault(block, len(numbers) + 1) for each in requests for block in each]
    later: dict[int, int] = {}
    following = []
    for at in range(len(accesses) - 1, -1, -1):
        following.append(later.get(accesses[at], -1))
        later[accesses[at]] = at
    rows = zip(accesses, reversed(following), strict=True)
    file = tmp_path / "trace.bin"
    file.write_bytes(b"".join(struct.pack("<IQIq", at, o, 1, n) for at, (o, n) in enumerate(rows)))
    counter = counted(requests)
    curve = counter.curve()
    assert counter.uses is not None
    best = optimum(counter.uses, SIZES)
    for size, hits in zip(SIZES, best, strict=True):
        found = []
        for cache in (lcs.LRU, lcs.Belady):
            reader = lcs.TraceReader(str(file), lcs.TraceType.ORACLE_GENERAL_TRACE)
            found.append(1 - cache(cache_size=size).process_trace(reader)[0])
        ours = curve.rate(size), hits / curve.accesses
        assert -1e-9 < ours[0] - found[0] < 0.001
        assert -1e-9 < ours[1] - found[1] < 0.001
