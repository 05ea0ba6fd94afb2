"""Break one thing in the guest: the check says just that, and what it prints mends it."""

from __future__ import annotations

import pytest

from checks.run.judging import every_check
from preflight.check.launch import LAUNCH_CHECKS
from preflight.rules.launch_rules import RULES
from tests.lab.fault_guest import Seen, healthy_of
from tests.lab.faults import FAULTS, Fault

pytestmark = pytest.mark.lab

Results = dict[str, Seen]
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)


def of(fault: Fault, seen: Results) -> Seen:
    found = seen[fault.id]
    if found.impossible:
        pytest.skip(f"this guest has nothing to break: {found.impossible}")
    assert not found.defect, found.defect
    return found


@every_fault
def test_the_check_says_just_what_is_broken(fault: Fault, seen: Results) -> None:
    """What is worse than on the healthy guest is what is expected, and nothing else."""
    found, healthy = of(fault, seen), seen[healthy_of(fault).id]
    assert not found.broken.defect, found.broken.defect
    before, now = healthy.broken.statuses, found.broken.statuses
    worse = {check: status for check, status in now.items() if before.get(check) != status}
    # What a device is judged for is silent where the device is lost.
    assert worse == fault.expect, [row for row in found.broken.rows if row["id"] in worse]
    for check in fault.expect:
        rows = [row for row in found.broken.rows if row["id"] == check]
        assert all(row["text"] for row in rows if row["status"] != "pass"), rows


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.mends], ids=lambda fault: fault.id
)
def test_the_remedy_mends_it_as_printed(fault: Fault, seen: Results) -> None:
    """Its commands run as they stand where the launch would be started, and then all is healthy."""
    found, healthy = of(fault, seen), seen[healthy_of(fault).id]
    by_hand = bool(fault.by_hand or fault.in_the_shell or fault.refuse)
    assert by_hand or found.done, "no command was printed"
    assert by_hand or all(row["status"] == 0 for row in found.done), found.done
    assert found.mended is not None
    assert not found.mended.defect, found.mended.defect
    assert found.mended.statuses == healthy.broken.statuses, found.mended.rows


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.applied], ids=lambda fault: fault.id
)
def test_a_second_apply_changes_nothing(fault: Fault, seen: Results) -> None:
    first, second = of(fault, seen).done
    assert "nr_hugepages" in first["said"]
    assert second["status"] == 0
    assert "nothing to change" in second["said"]


def test_every_expected_check_exists() -> None:
    known = {check.id for check, _ in every_check()}
    known |= {check.id for check in LAUNCH_CHECKS} | set(RULES)
    assert {check for fault in FAULTS for check in fault.expect} <= known
