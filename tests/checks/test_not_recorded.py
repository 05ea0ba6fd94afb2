"""A folder or archive of a host's files: what it does not record is unknown, never absent."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from checks.base.recording import RecordingRoot
from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.cli.main import run
from tests.builders.hosts import MIB, Host, HostPool

LAUNCH = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MC_STORE_USE_HUGEPAGE=1 MOONCAKE_PROTOCOL=rdma "
    "MOONCAKE_GLOBAL_SEGMENT_SIZE=67108864 python3 -m sglang.launch_server --model-path /m --tp 2 "
    "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake\n"
)
# What was said of recorded machines that have no such part.
SAID = (
    "gpu.count",
    "gpu.driver",
    "rdma.no-device",
    "hugetlb.after-reboot",
    "hugetlb.cgroup-limit",
    "memlock.inert-capability",
    "memory.cgroup",
    "rdma.cgroup-limit",
    "software.library-missing",
    "storage.files",
)


def _statuses(capsys: pytest.CaptureFixture[str], root: Path, script: Path) -> dict[str, set[str]]:
    run(["check", "--json", "--root", str(root), str(script)])
    found: dict[str, set[str]] = {}
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(finding["check"], set()).add(finding["status"])
    return found


@pytest.mark.parametrize("archive", [False, True])
def test_parts_that_are_not_recorded_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], archive: bool
) -> None:
    root = tmp_path / "host"
    (root / "proc").mkdir(parents=True)
    (root / "sys/devices/system").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 1000 kB\n")
    if archive:
        with tarfile.open(tmp_path / "host.tar", "w") as tar:
            tar.add(root, "host")
        root = tmp_path / "host.tar"
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCH)
    found = _statuses(capsys, root, script)
    assert {check: found[check] for check in SAID} == {check: {"unknown"} for check in SAID}


def test_what_a_recorded_part_lacks_is_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Host({2 * MIB: HostPool(4096)}).write(tmp_path / "host")
    (root / "m").mkdir()
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCH)
    found = _statuses(capsys, root, script)
    assert found["gpu.count"] == found["rdma.no-device"] == found["storage.files"] == {"fail"}
    assert found["gpu.driver"] == {"skip"}
    assert found["hugetlb.cgroup-limit"] == {"pass"}


def test_this_machine_is_never_taken_for_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Root, "locate", lambda self, name: f"/nowhere{name}")
    answer = RecordingRoot(Root("/")).names("/sys/class/infiniband")
    assert isinstance(answer, Unknown)
    assert answer.absent


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_folder_that_is_no_host_is_refused_as_its_archive_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "empty").mkdir()
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        member = tarfile.TarInfo("empty/file")
        tar.addfile(member, io.BytesIO())
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCH)
    for root in ("empty", "empty.tar"):
        assert run([command, "--root", str(tmp_path / root), str(script)]) == 64
        error = " ".join(capsys.readouterr().err.split())
        assert f"{root}: neither a capture, which has capture.json, nor a host's files" in error
