"""Captures of the guest, taken with ``tests.lab.record``: they say here what was said there."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from tests.lab.fault_guest import Answer
from tests.lab.faults import FAULTS
from tests.lab.record import SHOWN
from tests.lab.replayed import replayed
from tests.lab.results import DATA
from tests.lab.test_healthy import ALWAYS

pytestmark = pytest.mark.slow

FAULT = {fault.id: fault for fault in FAULTS}


def test_a_healthy_guest_passes_anywhere() -> None:
    assert Answer(replayed(DATA / "healthy.tar.gz")).statuses == ALWAYS


@pytest.mark.parametrize("name", SHOWN)
def test_a_fault_is_seen_in_its_capture(name: str) -> None:
    """The findings of the fault's table, and the remedy for the host where it was taken."""
    fault = FAULT[SHOWN[name]]
    answer = Answer(replayed(DATA / f"{name}.tar.gz", *fault.arguments))
    found = {check: status for check, status in answer.statuses.items() if check not in ALWAYS}
    assert found == fault.expect
    for row in answer.rows:
        assert row["check"] not in fault.expect or row["status"] == "pass" or row["commands"]


def test_another_launch_is_held_against_the_same_guest(tmp_path: Path) -> None:
    """Twelve hundred pages are enough for the launch that was captured, not for 8 GiB."""
    launch = "MC_STORE_USE_HUGEPAGE=1 exec mooncake_client --protocol=rdma --host=10.0.0.1"
    script = tmp_path / "larger.sh"
    script.write_text(f"{launch} --global_segment_size=8GB --metadata_server=P2PHANDSHAKE\n")
    statuses = Answer(replayed(DATA / "healthy.tar.gz", str(script))).statuses
    assert statuses["hugetlb.shortage"] == "fail"
    assert "rdma.no-device" not in statuses


@pytest.mark.parametrize("name", ["healthy", *SHOWN])
def test_a_capture_is_small_and_names_nobody(name: str) -> None:
    file = DATA / f"{name}.tar.gz"
    assert file.stat().st_size < 40_000
    with tarfile.open(file) as archive:
        members = [archive.extractfile(member) for member in archive]
        text = b"".join(member.read() for member in members if member).decode()
    assert not re.search(r"/(home|root|tmp)/\w", text)
