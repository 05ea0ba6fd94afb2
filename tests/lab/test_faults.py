"""Break one thing in the guest: the check says just that, and what it prints mends it.

The launch itself, with the real Mooncake over soft-RoCE, starts where the check says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from checks.run_checks.runner import every_check
from preflight.launch_problems.rules.launch_rules import RULES
from preflight.verdict.catalogue import launch_problems
from tests.lab.core import recorded_and_live
from tests.lab.fault_guest import HEALTHY_LAUNCHES, IN_FULL, Seen, healthy_of
from tests.lab.fault_runner import remedy
from tests.lab.faults import FAULTS, Fault
from tests.lab.results import recorded

Results = Mapping[str, Seen]
RECORD = "not as recorded: python -m tests.lab.record faults '{}'"


def statuses_of_healthy(fault: Fault, recorded: Results, now: bool) -> Mapping[str, str]:
    """Return what is said of the recorded guest before anything is broken, now or as it was said
    when it was recorded."""
    healthy = recorded[healthy_of(fault).id]
    return (healthy.broken if now or healthy.then is None else healthy.then).statuses


def of(fault: Fault, seen: Results) -> Seen:
    found = seen[fault.id]
    if found.impossible:
        pytest.skip(f"this guest has nothing to break: {found.impossible}")
    assert not found.defect, found.defect
    return found


@pytest.mark.slow
@recorded_and_live("fault", FAULTS)
def test_the_check_says_just_what_is_broken(
    fault: Fault, seen: Results, recorded_faults: Results
) -> None:
    """What is worse than on the healthy guest is what is expected, and nothing else."""
    found = of(fault, seen)
    assert not found.broken.defect, found.broken.defect
    before = statuses_of_healthy(fault, recorded_faults, now=True)
    now = found.broken.statuses
    worse = {check: status for check, status in now.items() if before.get(check) != status}
    # What a device is judged for is silent where the device is lost.
    assert worse == fault.expect, [row for row in found.broken.rows if row["check"] in worse]
    for check in fault.expect:
        rows = [row for row in found.broken.rows if row["check"] == check]
        assert all(row["text"] for row in rows if row["status"] != "pass"), rows
        assert all(row["advice"] for row in rows if row["status"] in ("fail", "warn")), rows


@pytest.mark.slow
@recorded_and_live("fault", [fault for fault in FAULTS if fault.mends])
def test_the_remedy_mends_it_as_printed(
    fault: Fault, seen: Results, recorded_faults: Results, live: bool
) -> None:
    """Its commands run as they stand where the launch would be started, and then all is healthy."""
    found = of(fault, seen)
    by_hand = bool(fault.by_hand or fault.in_the_shell or fault.refuse)
    assert by_hand or found.done, "no command was printed"
    assert by_hand or all(row["status"] == 0 for row in found.done), found.done
    assert found.mended is not None
    assert not found.mended.defect, found.mended.defect
    before = statuses_of_healthy(fault, recorded_faults, now=live)
    assert found.mended.statuses == before, found.mended.rows


BY_COMMANDS = [fault for fault in FAULTS if fault.mends and not fault.applied]


@pytest.mark.slow
@pytest.mark.parametrize("fault", BY_COMMANDS, ids=lambda fault: fault.id)
def test_the_remedy_that_is_printed_is_the_one_that_mended(
    fault: Fault, recorded_faults: Results
) -> None:
    """Word by word; one that is printed in other words is to be recorded anew."""
    if fault.id not in recorded("faults"):
        pytest.skip(RECORD.format(fault.id))
    found = of(fault, recorded_faults)
    printed = remedy([dict(row) for row in found.broken.rows], fault.expect)
    assert printed == [row["line"] for row in found.done], RECORD.format(fault.id)


@recorded_and_live("fault", [fault for fault in FAULTS if fault.applied])
def test_a_second_apply_changes_nothing(fault: Fault, seen: Results) -> None:
    first, second = of(fault, seen).done
    assert "nr_hugepages" in first["said"]
    assert second["status"] == 0
    assert "nothing to change" in second["said"]


def test_every_expected_check_exists() -> None:
    known = {check.id for check in every_check()}
    known |= {check.id for check in launch_problems()} | set(RULES)
    assert {check for fault in FAULTS for check in fault.expect} <= known


# What is short here only makes Mooncake leave devices out; elsewhere it ends the start.
SEVERAL = {"rdma.cgroup-limit"}
TRIED = (IN_FULL, *(fault for fault in FAULTS if fault.starts))
FAILING = [fault for fault in TRIED if fault.starts == "fails"]
STARTING = [fault for fault in TRIED if fault.starts == "ok"]


@pytest.mark.slow
@recorded_and_live("fault", FAILING)
def test_what_the_check_fails_does_not_start(fault: Fault, seen: Results) -> None:
    """It ends with the error that the check's own text foretells."""
    found = seen[fault.id]
    assert "fail" in fault.expect.values()
    assert found.broken_start["said"] != "ok"
    assert re.search(fault.says, found.broken_start["log"]), found.broken_start["log"][-3000:]


@pytest.mark.slow
@recorded_and_live("fault", STARTING)
def test_what_is_healthy_or_only_degraded_starts(fault: Fault, seen: Results) -> None:
    """A check that fails a launch which starts does so because it starts without RDMA."""
    found = seen[fault.id]
    assert found.broken_start["said"] == "ok", found.broken_start["log"][-3000:]
    assert re.search(fault.says, found.broken_start["log"]), found.broken_start["log"][-3000:]
    failed = [row for row in found.broken.rows if row["status"] == "fail"]
    assert bool(failed) == ("fail" in fault.expect.values())
    harmless = [row["consequence"] == "silently degraded" for row in failed]
    assert all(harmless) or set(fault.expect) <= SEVERAL, failed


@pytest.mark.slow
@recorded_and_live("fault", FAULTS)
def test_what_is_mended_starts(fault: Fault, seen: Results) -> None:
    """The same launch, once the printed remedy was carried out: every fault of the list."""
    found = of(fault, seen)
    assert found.mended_start["said"] == "ok", found.mended_start["log"][-3000:]


@pytest.mark.slow
@recorded_and_live("fault", HEALTHY_LAUNCHES)
def test_what_is_healthy_starts(fault: Fault, seen: Results) -> None:
    """Client, store service and master; and the store of an SGLang server."""
    assert seen[fault.id].broken_start["said"] == "ok", seen[fault.id].broken_start["log"][-3000:]
