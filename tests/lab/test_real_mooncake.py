"""The launch itself, with the real Mooncake over soft-RoCE: where the check says so it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.lab.core import recorded_and_live
from tests.lab.fault_guest import HEALTHY_LAUNCHES, IN_FULL, Seen
from tests.lab.faults import FAULTS, Fault

pytestmark = pytest.mark.slow

# What is short here only makes Mooncake leave devices out; elsewhere it ends the start.
SEVERAL = {"rdma.cgroup-limit"}
Results = Mapping[str, Seen]
TRIED = (IN_FULL, *(fault for fault in FAULTS if fault.starts))
FAILING = [fault for fault in TRIED if fault.starts == "fails"]
STARTING = [fault for fault in TRIED if fault.starts == "ok"]


@recorded_and_live("fault", FAILING)
def test_what_the_check_fails_does_not_start(fault: Fault, seen: Results) -> None:
    """It ends with the error that the check's own text foretells."""
    found = seen[fault.id]
    assert "fail" in fault.expect.values()
    assert found.broken_start["said"] != "ok"
    assert re.search(fault.says, found.broken_start["log"]), found.broken_start["log"][-3000:]


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


@recorded_and_live("fault", FAULTS)
def test_what_is_mended_starts(fault: Fault, seen: Results) -> None:
    """The same launch, once the printed remedy was carried out: every fault of the list."""
    found = seen[fault.id]
    if found.impossible:
        pytest.skip(f"this guest has nothing to break: {found.impossible}")
    assert found.mended_start["said"] == "ok", found.mended_start["log"][-3000:]


@recorded_and_live("fault", HEALTHY_LAUNCHES)
def test_what_is_healthy_starts(fault: Fault, seen: Results) -> None:
    """Client, store service and master; and the store of an SGLang server."""
    assert seen[fault.id].broken_start["said"] == "ok", seen[fault.id].broken_start["log"][-3000:]
