"""L1 and L2 against SGLang's real radix caches, request by request.

What those came to is kept in ``tests/data/radix_hits.json``, as a digest of each run, so the replay
is compared with it everywhere; with MOONCAKE_PREFLIGHT_SGLANG=1 they run again. After a change of
the traffic that is made: ``python -m tests.cache_sizing.traces.test_radix_real``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from checks.releases.sglang import sglang_release
from preflight.cache_sizing.traces.describe import profile_trace
from preflight.cache_sizing.traces.formats import Request
from preflight.cache_sizing.traces.tiers import Replay, Rules, TierSizes
from tests.cache_sizing.traces.real_sglang import answers_of, on_sglang
from tests.cache_sizing.traces.test_curve import CONVERSATION, conversation
from tests.paths import ROOT

RECORD = ROOT / "tests" / "data" / "radix_hits.json"
POLICIES = ("", "write_through", "write_through_selective", "write_back")
# The newest; the last one and an early one with HiRadixCache.
RUNS = [(version, policy) for version in ("0.5.23", "0.5.18", "0.5.10") for policy in POLICIES]
TRACES: dict[str, Callable[[], list[Request]]] = {
    "chat": lambda: list(profile_trace("chat", 64, 5000, 3).requests),
    "agent": lambda: list(profile_trace("agent", 512, 5000, 3).requests),
    "conversation": conversation,
}

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("trace", TRACES)]


@cache
def requests_of(trace: str) -> list[Request]:
    if trace == "conversation" and not CONVERSATION.exists():
        pytest.skip("MOONCAKE_PREFLIGHT_TRACES names no folder with the trace")
    return TRACES[trace]()


def sizes_of(trace: str) -> list[int]:
    """Of L1, in blocks; L2 is twice as large."""
    if trace == "conversation":
        return [1000, 2000, 8000]
    longest = max(len(each.blocks) for each in requests_of(trace))
    return [longest, 3 * longest, 20 * longest]


def real_hits(trace: str, version: str, policy: str) -> list[list[tuple[int, int]]]:
    numbers: dict[int, int] = {}
    rows = [
        [numbers.setdefault(block, len(numbers)) for block in each.blocks]
        for each in requests_of(trace)
    ]
    case: dict[str, Any] = {"policy": policy, "sizes": sizes_of(trace), "requests": rows}
    case["unified"] = sglang_release(version).unified_cache
    found = answers_of("radix_runner", version, case)
    return [[tuple(each) for each in hits] for hits in found]


@cache
def replayed_hits(trace: str, unified: bool, policy: str, size: int) -> list[tuple[int, int]]:
    """What each request finds in L1, and in L2."""
    rules = Rules(policy or "write_through", unified=unified)
    replay = Replay(TierSizes(size, 2 * size if policy else None), rules, 1, 1)
    found = [replay.take(each) for each in requests_of(trace)]
    return [(each.count("L1"), each.count("L2")) for each in found]


def summary(size: int, found: list[tuple[int, int]]) -> dict[str, Any]:
    """So many requests, and what they came to: two runs are the same where the digests are."""
    text = " ".join(f"{l1},{l2}" for l1, l2 in found)
    l1, l2 = (sum(column) for column in zip(*found, strict=True))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"size": size, "requests": len(found), "l1": l1, "l2": l2, "digest": digest}


def recorded(trace: str, version: str, policy: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RECORD.read_text())[f"{trace} {version} {policy}"]
    return found


@pytest.mark.parametrize(("version", "policy"), RUNS)
def test_each_request_finds_what_it_finds_in_sglangs_own(
    trace: str, version: str, policy: str
) -> None:
    """0.5.10 alone ends early, with write_back: by an assertion of its own, which #23537 mended."""
    unified = sglang_release(version).unified_cache
    for kept, size in zip(recorded(trace, version, policy), sizes_of(trace), strict=True):
        ours = replayed_hits(trace, unified, policy, size)
        assert summary(size, ours[: kept["requests"]]) == kept
        assert kept["requests"] == len(ours) or (version, policy) == ("0.5.10", "write_back")


@on_sglang
@pytest.mark.parametrize(("version", "policy"), RUNS)
def test_what_is_recorded_is_what_sglangs_own_come_to(
    trace: str, version: str, policy: str
) -> None:
    """The same again, with the first request that differs."""
    unified = sglang_release(version).unified_cache
    runs = zip(sizes_of(trace), real_hits(trace, version, policy), strict=True)
    for (size, real), kept in zip(runs, recorded(trace, version, policy), strict=True):
        ours = replayed_hits(trace, unified, policy, size)
        both = enumerate(zip(ours, real, strict=False))
        assert next((apart for apart in both if apart[1][0] != apart[1][1]), None) is None, size
        assert summary(size, real) == kept


def record() -> None:
    kept = {
        f"{trace} {version} {policy}": [
            summary(*run)
            for run in zip(sizes_of(trace), real_hits(trace, version, policy), strict=True)
        ]
        for trace in TRACES
        for version, policy in RUNS
    }
    RECORD.write_text(f"{json.dumps(kept, indent=1)}\n")


if __name__ == "__main__":
    record()
