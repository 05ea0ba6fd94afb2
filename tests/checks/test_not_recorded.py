"""What files of a host do not record, or /proc hides, is unknown, never absent."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.base.recording import RecordingRoot
from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.cli.main import run
from preflight.inputs.launch_words import LaunchWords
from preflight.inputs.recorded_launch import recorded_launch
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


def _by_check(answer: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in json.loads(answer)["findings"]:
        found.setdefault(finding["check"], set()).add(finding["status"])
    return found


def _statuses(capsys: pytest.CaptureFixture[str], root: Path) -> dict[str, set[str]]:
    script = root.parent / "launch.sh"
    script.write_text(LAUNCH)
    run(["check", "--json", "--root", str(root), str(script)])
    return _by_check(capsys.readouterr().out)


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
    found = _statuses(capsys, root)
    assert {check: found[check] for check in SAID} == {check: {"unknown"} for check in SAID}


def test_what_a_recorded_part_lacks_is_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Host({2 * MIB: HostPool(4096)}).write(tmp_path / "host")
    (root / "m").mkdir()
    found = _statuses(capsys, root)
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


NOBODY = "65534"
CHECK = """\
mount -t proc -o {options} proc /proc || exit 99
cd / && exec setpriv --reuid={user} --regid={user} --clear-groups env -i PATH=/usr/bin:/bin \\
  /usr/bin/python3 {folder}/preflight check --json {folder}/launch.json
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The one file and a launch, where anybody may read them."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        place = Path(name)
        (place / "launch.sh").write_text(LAUNCH)
        record = recorded_launch(LaunchWords((str(place / "launch.sh"),)))
        (place / "launch.json").write_bytes(record or b"")
        assert run(["bundle", str(place / "preflight")]) == 0
        yield place


def statuses(folder: Path, options: str) -> dict[str, set[str]]:
    if os.geteuid() or shutil.which("setpriv") is None or not os.path.exists("/usr/bin/python3"):
        pytest.skip("not root, or no setpriv or /usr/bin/python3")
    script = CHECK.format(options=options, user=NOBODY, folder=folder)
    command = ["unshare", "--mount", "--pid", "--fork", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    if not done.stdout:
        pytest.skip(f"no /proc of its own, or a Python that is too old: {done.stderr}")
    return _by_check(done.stdout)


@pytest.mark.slow
def test_who_hides_processes_changes_no_verdict(folder: Path) -> None:
    """This user's own threads are counted, and what nobody shows is not taken for absent."""
    hidden, open_ = statuses(folder, "hidepid=2"), statuses(folder, "hidepid=0")
    # Which are of processes; others follow from what else runs meanwhile.
    limits = {check for check in open_ if check.startswith(("limits.", "memlock."))}
    assert len(limits) > 6
    assert {check: hidden[check] for check in limits} == {check: open_[check] for check in limits}


@pytest.mark.slow
def test_a_proc_without_the_kernels_files_leaves_them_unknown(folder: Path) -> None:
    reduced = statuses(folder, "subset=pid")
    for check in ("memory.host", "memory.max-map-count", "memory.overcommit", "system.kernel-old"):
        assert reduced[check] == {"unknown"}, check
