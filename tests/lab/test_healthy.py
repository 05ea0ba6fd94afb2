"""On a healthy guest nothing fails and nothing is unknown, but for what no guest can have.

Captures of a guest, taken with ``tests.lab.record``, say here what was said there.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.lab.core import recorded_and_live
from tests.lab.fault_guest import HEALTHY_LAUNCHES, IN_FULL, Answer, Seen
from tests.lab.faults import Fault
from tests.lab.record import SHOWN
from tests.lab.recorded import replayed
from tests.lab.results import DATA

pytestmark = pytest.mark.slow

NO_GPU = {"gpu.count": "fail"}
# What is not as it should be in the guest, and why it cannot be otherwise.
ALWAYS = {"numa.unknown-nic-node": "warn"}  # a soft-RoCE device has no device behind it
SMALL_STORE = {"two-transfer-engines": "warn", "l3-repeats-l2": "warn"}
# What SSD offload of this release does on every host.
LOSES = {"ssd-bucket-lost": "warn", "ssd-limit-passed": "warn"}
KNOWN: dict[str, dict[str, str]] = {
    "master": {},  # which uses no device
    # SGLang wants a GPU, and has a transfer engine beside the store's.
    "sglang": {**ALWAYS, **NO_GPU, **SMALL_STORE},
    "sglang-two": {**ALWAYS, **NO_GPU, **SMALL_STORE},
    # A tmpfs takes O_DIRECT from Linux 6.6 on, and the guest's kernel is older.
    "client-uring": {**ALWAYS, **LOSES, "storage.offload-path": "fail"},
    "client-offload": {**ALWAYS, **LOSES},
}


@recorded_and_live("fault", [*HEALTHY_LAUNCHES, IN_FULL])
def test_nothing_else_is_wrong_on_a_healthy_host(fault: Fault, seen: Mapping[str, Seen]) -> None:
    found = seen[fault.id]
    assert not found.defect
    assert not found.broken.defect
    assert found.broken.statuses == KNOWN.get(fault.launch, ALWAYS), found.broken.rows


@pytest.mark.lab
@pytest.mark.parametrize(("fault", "live"), [(IN_FULL, True)], ids=["live"])
def test_a_capture_of_the_guest_says_here_what_was_said_there(
    fault: Fault, seen: Mapping[str, Seen], tmp_path: Path
) -> None:
    """All that was read there is in the file."""
    found = seen[fault.id]
    assert len(found.capture) < 100_000
    file = tmp_path / "capture.tar.gz"
    file.write_bytes(found.capture)
    here = Answer(replayed(file))
    assert here.statuses == found.broken.statuses
    assert judged(here) == judged(found.broken)


def judged(answer: Answer) -> set[tuple[str, str]]:
    return {(row["check"], row["status"]) for row in answer.rows}


def test_a_healthy_guest_passes_anywhere() -> None:
    assert Answer(replayed(DATA / "healthy.tar.gz")).statuses == ALWAYS


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
