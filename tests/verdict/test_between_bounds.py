"""A launch whose L2 is known only between two bounds: what fails at one of them alone is unknown.

The GPUs tell the size of L1 within bounds, and --hicache-ratio makes L2 of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Finding, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.unknown import Unknown
from checks.memory.judge import regular_bytes
from checks.run_checks.runner import every_check
from preflight.command_inputs.host_source import Sized
from preflight.command_inputs.launch_words import LaunchWords
from preflight.verdict.judge_host import JudgedHost, judge_host, merge_bounds
from tests.builders.synthetic import GIB, MIB, PATIENCE_SECONDS, SyntheticHost, build_host, gpu_host
from tests.checks.test_synthetic import FLAGS, NICS, fitted, script
from tests.tables import each_row

SIZE = next(words for words in FLAGS.split(" --") if words.startswith("hicache-size"))
HUGE = script("Qwen/Qwen3-8B", 8, NICS, "16gb").replace(SIZE, "hicache-ratio 2")
REGULAR = HUGE.replace("export MC_STORE_USE_HUGEPAGE=1\n", "")


def seen(folder: Path, host: SyntheticHost, text: str) -> JudgedHost:
    root, launch = folder / "host", folder / "launch.sh"
    build_host(root, host)
    launch.write_text(text)
    words = LaunchWords((str(launch),), mooncake_version="0.3.13.post1", sglang_version="0.5.23")
    return judge_host(words, str(root), PATIENCE_SECONDS, list(every_check()))


def sized(found: JudgedHost) -> Sized:
    assert isinstance(found.launch, Sized)
    return found.launch


def statuses(found: JudgedHost, check: str) -> set[Status]:
    return {finding.status for finding in found.findings if finding.check == check}


class Bounds(NamedTuple):
    least: int
    most: int


def bounds(needs: Iterable[LaunchNeeds | None], check: str) -> Bounds:
    """Pages on the fuller node, or regular bytes in all, at the lower and at the upper bound."""
    taken = []
    for one in needs:
        assert one is not None
        total = regular_bytes(one) if check == "memory.host" else pages(one)
        assert isinstance(total, int)
        taken.append(total)
    return Bounds(min(taken), max(taken))


def pages(needs: LaunchNeeds) -> int:
    """On the node that takes more."""
    by_node: dict[int | None, int] = {}
    for process in needs.processes:
        assert not isinstance(process.hugetlb_bytes, Unknown)
        by_node[process.node] = by_node.get(process.node, 0) + process.hugetlb_bytes // (2 * MIB)
    return max(by_node.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "text"), [("hugetlb.node-shortage", HUGE), ("memory.host", REGULAR)]
)
@pytest.mark.parametrize(
    ("at", "expected"),
    [("below", Status.FAIL), ("between", Status.UNKNOWN), ("above", Status.PASS)],
)
def test_only_what_fails_at_both_bounds_is_a_failure(
    check: str, text: str, at: str, expected: Status, tmp_path: Path
) -> None:
    roomy = replace(fitted(gpu_host(), 400000), node_bytes=4096 * GIB)
    (tmp_path / "roomy").mkdir()
    first = sized(seen(tmp_path / "roomy", roomy, text))
    low, high = bounds((first.needs, first.least_needs), check)
    assert low < high
    have = {"below": low // 2, "between": (low + high) // 2, "above": 2 * high}[at]
    if check == "memory.host":
        free = have // roomy.nodes - roomy.node_bytes // 40  # beside page cache
        host = replace(roomy, pools={2 * MIB: 0, GIB: 0}, node_free_bytes=free)
    else:
        host = replace(roomy, pools={2 * MIB: have, GIB: 0})
    found = seen(tmp_path, host, text)
    assert expected in statuses(found, check)
    assert (Status.FAIL in statuses(found, check)) is (expected is Status.FAIL)
    if check.startswith("hugetlb"):  # the sizing knows the same bounds
        answers = {"below": "fails", "between": "unknown", "above": "fits"}
        assert sized(found).sizing.status == answers[at]


def one_finding(check: str, subject: str) -> st.SearchStrategy[list[Finding]]:
    need = st.sampled_from(["", "1 page", "2 pages"])
    found = st.builds(Finding, st.just(check), st.sampled_from(Status), st.just(subject), need=need)
    return st.just([]) | found.map(lambda finding: [finding])


@each_row(
    ("upper", "lower", "told"),
    [
        (Status.FAIL, Status.FAIL, Status.FAIL),
        (Status.FAIL, Status.UNKNOWN, Status.FAIL),
        (Status.FAIL, Status.WARN, Status.UNKNOWN),
        (Status.FAIL, Status.PASS, Status.UNKNOWN),
        (Status.FAIL, Status.SKIP, Status.UNKNOWN),
        (Status.UNKNOWN, Status.FAIL, Status.FAIL),
        (Status.UNKNOWN, Status.PASS, Status.UNKNOWN),
        (Status.PASS, Status.FAIL, Status.UNKNOWN),
        (Status.WARN, Status.PASS, Status.WARN),
    ],
)
def test_a_failure_is_one_that_no_bound_denies(upper: Status, lower: Status, told: Status) -> None:
    """A lower bound that is not known denies nothing: what fails at the upper one still fails."""
    both = ([Finding("a.check", status, "rank 0")] for status in (upper, lower))
    assert [finding.status for finding in merge_bounds(*both)] == [told]


FINDINGS = st.tuples(
    *(one_finding(check, f"rank {rank}") for check in ("a.check", "b.check") for rank in (0, 1))
).map(lambda each: [finding for some in each for finding in some])


def worst(findings: list[Finding], check: str) -> Status | None:
    found = [finding.status for finding in findings if finding.check == check]
    return min(found, key=list(Status).index) if found else None


@given(FINDINGS, FINDINGS)
def test_nothing_passes_that_a_bound_refuses(upper: list[Finding], lower: list[Finding]) -> None:
    """Of each check: good only where both are, and a failure only where one is certain of it."""
    found = merge_bounds(upper, lower)
    for check in {finding.check for finding in upper}:
        at_most, at_least, told = (worst(each, check) for each in (upper, lower, found))
        if at_most is Status.FAIL or (at_least is Status.FAIL and at_most is Status.UNKNOWN):
            assert told in (Status.FAIL, Status.UNKNOWN)
        if told is Status.FAIL and at_least is not None:
            assert Status.FAIL in (at_most, at_least)
            assert at_least in (Status.FAIL, Status.UNKNOWN)
        if told in (Status.PASS, Status.SKIP):
            assert at_most is told


@given(FINDINGS)
def test_a_launch_that_is_known_is_judged_as_ever(findings: list[Finding]) -> None:
    assert merge_bounds(findings, findings) == findings
