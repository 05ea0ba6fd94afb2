"""ulimit -v, -d and -f: a launch whose memory is refused, or whose process is killed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.finding import Status
from checks.base.needs import ContainerLimits
from checks.base.root import Root
from checks.base.units import GIB
from checks.base.unknown import Unknown
from checks.limits import judge
from checks.limits.facts import SIZE_ROWS, read_limits
from checks.limits.runtimes import Limit
from tests.builders.synthetic_system import limits_file
from tests.checks.launches import declared_outcomes_hold, findings
from tests.checks.limit_hosts import facts, launch, limits, rank, system, tree


def _judged(row: str, size: int | None, **other: object) -> Status:
    sizes = {name: Limit(size if name == row else None, None) for name in SIZE_ROWS}
    needs = launch(rank(regular_bytes=10 * GIB, hugetlb_bytes=10 * GIB, **other))
    found = findings(judge.CHECKS, facts(limits(sizes=sizes)), needs, "limits.memory")
    declared_outcomes_hold(judge.CHECKS, found)
    (finding,) = found
    if finding.status is Status.FAIL:
        assert row in finding.have
        assert SIZE_ROWS[row] in finding.advice
    return finding.status


@pytest.mark.parametrize("row", SIZE_ROWS)
def test_a_limit_below_what_is_mapped_fails(row: str) -> None:
    assert _judged(row, None) is Status.PASS
    assert _judged(row, 20 * GIB) is Status.FAIL
    assert _judged(row, 50 * GIB) is Status.PASS


@pytest.mark.parametrize("row", ["Max address space", "Max data size"])
def test_a_limit_that_a_program_reaches_is_a_warning(row: str) -> None:
    assert _judged(row, 21 * GIB) is Status.WARN
    assert _judged(row, 900 * GIB, gpu=0) is Status.WARN  # CUDA maps more than there is


def test_limits_and_sizes_that_are_not_known_are_unknown() -> None:
    unread = limits(sizes={"Max data size": Unknown("not read")})
    for limit_facts, needs in (
        (unread, launch(rank())),
        (
            limits(sizes={"Max data size": Limit(GIB, None)}),
            launch(rank(regular_bytes=Unknown("?"))),
        ),
    ):
        (found,) = findings(judge.CHECKS, facts(limit_facts), needs, "limits.memory")
        assert found.status is Status.UNKNOWN


def test_a_container_of_the_launch_brings_its_own() -> None:
    needs = launch(rank(container=ContainerLimits("run.sh:1", "docker")))
    low = limits(sizes={"Max data size": Limit(1, 1)})
    (found,) = findings(judge.CHECKS, facts(low), needs, "limits.memory")
    assert found.status is Status.SKIP
    inside = facts(low, system_facts=system("docker"))
    (found,) = findings(judge.CHECKS, inside, needs, "limits.memory")
    assert found.status is Status.PASS


def test_they_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    text = limits_file(("1", "1"), ("1", "1")).replace(
        f"{'Max data size':<25} {'unlimited':<20}", f"{'Max data size':<25} {'4096':<20}"
    )
    found = read_limits(Root(str(tree(tmp_path, {"/proc/self/limits": text}))), None).sizes
    assert found["Max data size"] == Limit(4096, None)
    assert found["Max address space"] == Limit(None, None)
