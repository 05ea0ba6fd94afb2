"""L1 and L2 against SGLang's real radix caches, request by request."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sglang_wheels import environment, unpacked

from preflight.traces.formats import Request
from preflight.traces.generate import profile_trace
from preflight.traces.tiers import Replay, Rules, TierSizes
from tests.paths import ROOT
from tests.traces.test_curve import conversation, published

RUNNER = Path(__file__).with_name("radix_runner.py")


def real_hits(version: str, requests: list[Request], sizes: list[int], *policy: str) -> Any:
    numbers: dict[int, int] = {}
    rows = [[numbers.setdefault(b, len(numbers)) for b in each.blocks] for each in requests]
    finished = subprocess.run(
        [str(environment()), "-m", "tests.traces.radix_runner", str(unpacked(version)), *policy],
        input=json.dumps({"sizes": sizes, "requests": rows}),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout)


def same(version: str, requests: list[Request], sizes: list[int]) -> None:
    for size, expected in zip(sizes, real_hits(version, requests, sizes), strict=True):
        replay = Replay(TierSizes(size), Rules(), 1, 1)
        assert [len(replay.take(each)) for each in requests] == expected, size


@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.23", "0.5.10"])
def test_traffic_that_is_made(version: str) -> None:
    for kind, block in (("chat", 64), ("agent", 512), ("rag", 64)):
        requests = list(profile_trace(kind, block, 2000, 3).requests)
        longest = max(len(each.blocks) for each in requests)
        same(version, requests, [longest, 3 * longest, 20 * longest])


@published
@pytest.mark.sglang
@pytest.mark.parametrize("version", ["0.5.23", "0.5.10"])
def test_the_published_trace(version: str) -> None:
    same(version, conversation(), [2000, 8000, 32_000])


@published
@pytest.mark.sglang
@pytest.mark.parametrize(
    ("policy", "differing"), [("write_through", 20), ("write_through_selective", 0)]
)
def test_two_tiers_on_the_published_trace(policy: str, differing: int) -> None:
    """HiRadixCache of 0.5.10. L1 is the same for each of 12,031 requests; with write_through L2 is,
    but for a few: that release makes more room in L2 than a copy needs."""
    requests = conversation()
    for size, real in zip(
        [2000, 8000], real_hits("0.5.10", requests, [2000, 8000], policy), strict=True
    ):
        replay = Replay(TierSizes(size, 2 * size), Rules(policy), 1, 1)
        ours = [replay.take(each) for each in requests]
        expected = [(each.count("L1"), each.count("L2")) for each in ours]
        assert [l1 for l1, _ in expected] == [l1 for l1, _ in real]
        assert sum(tuple(a) != b for a, b in zip(real, expected, strict=True)) <= differing
        l2 = sum(each[1] for each in real) / replay.flows.accesses
        assert replay.flows.rate("L2") == pytest.approx(l2, abs=0.002)
