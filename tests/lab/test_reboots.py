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

# Some pages, and a NIC: what of the next boot a launch asks for.
LAUNCH = (
    "MC_STORE_USE_HUGEPAGE=1 mooncake_client --protocol=rdma --device_names=rxe0 "
    "--global_segment_size=1GB\n"
)
CHECKS = ("boot.*", "hugetlb.after-reboot")


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
    only = [word for check in CHECKS for word in ("--only", check)]
    run(["check", "--json", "--root", str(file), "--mooncake-version", "0.3.14", *only, str(path)])
    found = json.loads(capsys.readouterr().out)["findings"]
    return {f"{one['check']} {each['name']}": one for one in found for each in one["subjects"]}


def test_the_kernel(row: dict[str, Any], said: dict[str, Any]) -> None:
    found = said["boot.kernel kernel"]
    assert row["then"]["kernel"] != row["before"]["kernel"]
    assert (found["status"], told(found, "have")) == (
        "warn",
        f"{row['then']['kernel']} starts next",
    )


def test_the_modules(row: dict[str, Any], said: dict[str, Any]) -> None:
    """modules-load.d names all of them: what is missing then was said to be."""
    found = {key.split()[1]: one["status"] for key, one in said.items() if "boot.modules" in key}
    there = {name for name, status in found.items() if status == "pass"}
    assert set(found.values()) <= {"pass", "warn"}
    assert there == set(found) & set(row["then"]["modules"])
    assert len(there) >= 2


def test_the_command_line(row: dict[str, Any], said: dict[str, Any]) -> None:
    before, then = (
        {word for word in row[key]["words"] if not word.startswith(("BOOT_IMAGE", "hugepages"))}
        for key in ("before", "then")
    )
    found = said["boot.command-line kernel command line"]
    parts = [f"{' '.join(sorted(before - then))} is gone"] if before - then else []
    parts += [f"{' '.join(sorted(then - before))} is new"] if then - before else []
    assert found["status"] == "warn"
    assert found["text"] == f"after the next boot {', and '.join(parts)}"


def test_the_huge_pages(row: dict[str, Any], said: dict[str, Any]) -> None:
    found = said["hugetlb.after-reboot 2 MiB pages"]
    assert told(found, "have") == f"{row['then']['pages']} pages at boot"
    assert found["status"] == "warn"  # the launch takes more


def test_memlock(row: dict[str, Any], said: dict[str, Any]) -> None:
    found = said["boot.memlock logins"]
    then = row["then"]["memlock"]
    have = "unlimited" if then == "unlimited" else f"{int(then) / 1024:.2f} MiB"
    assert told(found, "have") == f"{have} after the next boot"
    assert found["status"] == ("pass" if then == "unlimited" else "warn")
