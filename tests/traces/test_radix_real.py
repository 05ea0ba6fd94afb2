"""L1 against SGLang's real radix cache, request by request."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from sglang_wheels import environment, unpacked

from preflight.traces.formats import Request
from preflight.traces.generate import profile_trace
from preflight.traces.tiers import Replay, Rules, TierSizes
from tests.paths import ROOT
from tests.traces.test_curve import conversation, published

RUNNER = Path(__file__).with_name("radix_runner.py")


def real_hits(version: str, requests: list[Request], sizes: list[int]) -> list[list[int]]:
    numbers: dict[int, int] = {}
    rows = [[numbers.setdefault(b, len(numbers)) for b in each.blocks] for each in requests]
    finished = subprocess.run(
        [str(environment()), "-m", "tests.traces.radix_runner", str(unpacked(version))],
        input=json.dumps({"sizes": sizes, "requests": rows}),
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    found: list[list[int]] = json.loads(finished.stdout)
    return found


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
