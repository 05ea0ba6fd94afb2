"""L1 and L2 against SGLang's real radix caches, request by request."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from sglang_wheels import environment, unpacked

from preflight.traces.formats import Request
from preflight.traces.generate import profile_trace
from preflight.traces.tiers import Replay, Rules, TierSizes
from tests.paths import ROOT
from tests.traces.test_curve import conversation, published

pytestmark = [
    pytest.mark.slow,
    pytest.mark.sglang,
    pytest.mark.skipif(
        not os.environ.get("MOONCAKE_PREFLIGHT_SGLANG"),
        reason="installs torch and SGLang's wheels: set MOONCAKE_PREFLIGHT_SGLANG=1",
    ),
]


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


@pytest.mark.parametrize("version", ["0.5.23", "0.5.10"])
def test_traffic_that_is_made(version: str) -> None:
    for kind, block in (("chat", 64), ("agent", 512), ("rag", 64)):
        requests = list(profile_trace(kind, block, 2000, 3).requests)
        longest = max(len(each.blocks) for each in requests)
        same(version, requests, [longest, 3 * longest, 20 * longest])


@published
@pytest.mark.parametrize("version", ["0.5.23", "0.5.10"])
def test_the_published_trace(version: str) -> None:
    same(version, conversation(), [2000, 8000, 32_000])


@published
@pytest.mark.parametrize(
    ("version", "policy", "differing"),
    [
        ("0.5.23", "write_through", 0),
        ("0.5.23", "write_through_selective", 0),
        ("0.5.23", "write_back", 2),
        ("0.5.10", "write_through", 20),
        ("0.5.10", "write_through_selective", 0),
    ],
)
def test_two_tiers_on_the_published_trace(version: str, policy: str, differing: int) -> None:
    """L1 is the same for each of 12,031 requests, and L2 but for a few at each size: 0.5.10 makes
    more room in L2 than a copy needs; write_back gives up copies of leaves of L1 last."""
    requests, sizes = conversation(), [1000, 2000, 8000]
    for size, real in zip(sizes, real_hits(version, requests, sizes, policy), strict=True):
        replay = Replay(TierSizes(size, 2 * size), Rules(policy), 1, 1)
        ours = [replay.take(each) for each in requests]
        expected = [(each.count("L1"), each.count("L2")) for each in ours]
        assert [l1 for l1, _ in expected] == [l1 for l1, _ in real]
        apart = sum(tuple(a) != b for a, b in zip(real, expected, strict=True))
        assert apart <= differing, size
        l2 = sum(each[1] for each in real) / replay.flows.accesses
        assert replay.flows.rate("L2") == pytest.approx(l2, abs=0.002)
