"""ulimit -v, -d and -f: a launch whose memory is refused, or whose process is killed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checks.base.finding import Kind, Status
from checks.base.needs import ContainerLimits
from checks.base.root import Root
from checks.base.units import GIB
from checks.base.unknown import Unknown
from checks.limits import judge
from checks.limits.facts import ADDRESS_SPACE, DATA_SIZE, FILE_SIZE, SIZE_ROWS, read_limits
from checks.limits.runtimes import Limit
from tests.builders.synthetic_system import limits_file
from tests.checks.launches import declared_outcomes_hold, findings
from tests.checks.limit_hosts import facts, launch, limits, rank, system, tree
from tests.tables import each_row


def _judged(row: str, size: int | None, **other: Any) -> Status:
    sizes = {name: Limit(size if name == row else None, None) for name in SIZE_ROWS}
    needs = launch(rank(regular_bytes=10 * GIB, hugetlb_bytes=10 * GIB, **other))
    found = findings(judge.CHECKS, facts(limits(sizes=sizes)), needs, "limits.memory")
    declared_outcomes_hold(judge.CHECKS, found)
    (finding,) = found
    if finding.status is not Status.PASS:
        assert row in finding.have
        (setting,) = finding.settings
        assert (setting.kind, setting.name, setting.wanted) == (
            Kind.ULIMIT,
            SIZE_ROWS[row],
            "unlimited",
        )
    return finding.status


PASS, WARN, FAIL = Status.PASS, Status.WARN, Status.FAIL
SHARED = {"memfd_bytes": (6 * GIB, 4 * GIB)}  # all that is on huge pages


@each_row(
    ("row", "gib", "other", "expected"),
    [
        # Everything that is mapped counts, and the program besides.
        (ADDRESS_SPACE, None, {}, PASS),
        (ADDRESS_SPACE, 20, {}, FAIL),
        (ADDRESS_SPACE, 20, SHARED, FAIL),
        (ADDRESS_SPACE, 21, {}, FAIL),  # the program itself: 1.9 GiB at the least, as tried
        (ADDRESS_SPACE, 22, {}, WARN),
        (ADDRESS_SPACE, 36, {}, PASS),
        (ADDRESS_SPACE, 900, {"gpu": 0}, WARN),
        # Private mappings alone: on huge pages, too, but no memfd.
        (DATA_SIZE, None, {}, PASS),
        (DATA_SIZE, 20, {}, FAIL),
        (DATA_SIZE, 20, SHARED, WARN),
        (DATA_SIZE, 10, SHARED, FAIL),
        (DATA_SIZE, 900, {"gpu": 0}, PASS),
        # The largest memfd alone, for certain; on regular pages nobody here tells what is one.
        (FILE_SIZE, None, SHARED, PASS),
        (FILE_SIZE, 5, SHARED, FAIL),
        (FILE_SIZE, 7, SHARED, WARN),
        (FILE_SIZE, 7, {}, WARN),
        (FILE_SIZE, 20, SHARED, PASS),
    ],
)
def test_a_limit_is_held_against_what_counts_to_it(
    row: str, gib: int | None, other: dict[str, object], expected: Status
) -> None:
    assert _judged(row, gib and gib * GIB, **other) is expected


def test_the_worst_of_several_is_said() -> None:
    low = limits(sizes={ADDRESS_SPACE: Limit(20 * GIB, None), DATA_SIZE: Limit(GIB, None)})
    needs = launch(rank(regular_bytes=10 * GIB))
    (found,) = findings(judge.CHECKS, facts(low), needs, "limits.memory")
    assert found.status is FAIL
    assert found.have == "1.00 GiB (Max data size)"
    assert [setting.name for setting in found.settings] == ["as", "data"]


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
    needs = launch(rank(regular_bytes=GIB, container=ContainerLimits("run.sh:1", "docker")))
    low = limits(sizes={"Max data size": Limit(1, 1)})
    (found,) = findings(judge.CHECKS, facts(low), needs, "limits.memory")
    assert found.status is Status.SKIP
    inside = facts(low, system_facts=system("docker"))
    (found,) = findings(judge.CHECKS, inside, needs, "limits.memory")
    assert found.status is FAIL


def test_they_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    text = limits_file(("1", "1"), ("1", "1")).replace(
        f"{'Max data size':<25} {'unlimited':<20}", f"{'Max data size':<25} {'4096':<20}"
    )
    found = read_limits(Root(str(tree(tmp_path, {"/proc/self/limits": text}))), None).sizes
    assert found["Max data size"] == Limit(4096, None)
    assert found["Max address space"] == Limit(None, None)
