"""What is said of the next boot is what then is: machines that restarted (``reboots.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from preflight.cli.main import run
from tests.lab.reboots import BOOTS
from tests.lab.results import capture, recorded
from tests.rows import told

# Some pages: what of the next boot a launch asks for.
LAUNCH = (
    "MC_STORE_USE_HUGEPAGE=1 mooncake_client --protocol=rdma --device_names=rxe0 "
    "--global_segment_size=1GB\n"
)


@pytest.fixture(params=[boot.id for boot in BOOTS if boot.change])
def row(request: pytest.FixtureRequest) -> dict[str, Any]:
    return recorded("reboots")[request.param]


@pytest.fixture
def said(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> dict[str, dict[str, Any]]:
    """What the check says of the capture that was made before the reboot, by id and subject."""
    file, path = tmp_path / "before.tar.gz", tmp_path / "launch.sh"
    file.write_bytes(capture(f"reboots/{row['id']}"))
    path.write_text(LAUNCH)
    only = ("--only", "hugetlb.after-reboot")
    run(["check", "--json", "--root", str(file), "--mooncake-version", "0.3.14", *only, str(path)])
    found = json.loads(capsys.readouterr().out)["findings"]
    return {f"{one['check']} {each['name']}": one for one in found for each in one["subjects"]}


def test_the_huge_pages(row: dict[str, Any], said: dict[str, Any]) -> None:
    found = said["hugetlb.after-reboot 2 MiB pages"]
    assert told(found, "have") == f"{row['then']['pages']} pages at boot"
    assert found["status"] == "warn"  # the launch takes more
