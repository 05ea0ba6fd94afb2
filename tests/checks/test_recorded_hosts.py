"""Recorded hosts: captures of real machines, the one that ships (demo:h800), folders, archives.

They say here what they said there; what a folder or archive does not record is unknown, never
absent.
"""

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from checks.framework.recording import RecordingRoot
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.host_snapshot.capture import CaptureError, open_root
from checks.run_checks.runner import every_check
from preflight.cli.main import run
from tests import rows
from tests.builders.synthetic import PATIENCE_SECONDS
from tests.paths import ROOT

HOSTS = ROOT / "tests/data" / "hosts"
LAUNCH = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MC_STORE_USE_HUGEPAGE=1 MOONCAKE_PROTOCOL=rdma "
    "MOONCAKE_GLOBAL_SEGMENT_SIZE=67108864 python3 -m sglang.launch_server --model-path /m --tp 2 "
    "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake\n"
)
# What the launch asks nothing of: whatever the host has, nothing of it is judged.
NOT_ASKED = {
    *("gpu.imex", "gpu.peer-memory", "hugetlb.node-shortage", "io-uring.unavailable"),
    *("memlock.io-uring-buffers", "memlock.runtime-limit", "network.advertised-address"),
    *("network.time-wait", "numa.node-memory", "service.address", "software.numactl-missing"),
    *("storage.offload-path", "storage.offload-space", "topology.mooncake-view"),
    "software.not-built-in",
}


def _statuses(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, set[str]]]:
    code = run(["check", "--json", "--timeout", str(PATIENCE_SECONDS), *words])
    return code, rows.statuses(capsys.readouterr().out)


def test_a_small_virtual_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """One node, no GPU, no RDMA, version 1 of cgroups with version 2 beside it: nothing fits. Its
    launch is a server of two ranks with huge pages over RDMA."""
    code, found = _statuses(capsys, "--root", str(HOSTS / "small-vm.tar.gz"))
    assert code == 2
    failing = {check for check, statuses in found.items() if "fail" in statuses}
    assert failing == {
        "hugetlb.shortage",
        "hugetlb.reservation",
        "rdma.no-device",
        "gpu.count",
        "service.reachable",
        "sglang.admission-gate",
    }
    assert found["hugetlb.cgroup-limit"] == {"pass"}
    assert found["memory.cgroup"] == {"pass"}


def test_a_virtual_machine_with_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """NVML and /proc with an H100 of which a running server holds 9.6 GiB."""
    host = str(HOSTS / "h100-vm.tar.gz")
    code, found = _statuses(capsys, "--root", host)
    assert code == 1
    assert {check for check, statuses in found.items() if statuses & {"warn", "fail"}} == {
        "limits.nofile",
        "gpu.memory-busy",
        "software.mooncake-duplicate",  # some of its files were left out there
        "page-size-one",
    }
    for check in ("gpu.count", "gpu.driver", "gpu.mig", "memory.host"):
        assert found[check] == {"pass"}
    assert run(["observe", "--json", "--root", host]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    (memory,) = (one for one in findings if one["check"] == "observe.gpu-memory")
    assert memory["status"] == "pass"  # 0.12 of 79.65 GiB, and CUDA's context


@pytest.mark.parametrize("path", sorted(HOSTS.glob("*.tar.gz")), ids=lambda path: path.name)
def test_a_capture_is_small_and_names_nobody(path: Path) -> None:
    assert path.stat().st_size < 40_000
    with tarfile.open(path) as archive:
        members = [archive.extractfile(member) for member in archive]
        text = b"".join(member.read() for member in members if member).decode(errors="replace")
    assert not re.search(r"(?<!\d)/(home|root|tmp)/\w", text)  # /proc/PID/root names nobody


def test_the_demo_host_has_the_faults_that_the_tour_tells_of_and_nothing_unread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unknown: a check reads what was not recorded; tools/write_demo_host.py records it anew."""
    code, found = _statuses(capsys, "--root", "demo:h800")
    assert code == 2
    failing = {check for check, statuses in found.items() if "fail" in statuses}
    assert failing == {"memlock.limit", "hugetlb.shortage", "hugetlb.node-shortage"}
    assert {check for check, statuses in found.items() if "warn" in statuses} == {
        "hugetlb.after-reboot"
    }
    assert "unknown" not in set().union(*found.values())


def test_another_name_of_a_demo_host_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(CaptureError, match=r"demo:h900: no such recorded host: .* demo:h800"):
        open_root("demo:h900")
    with pytest.raises(CaptureError, match="no such recorded host"):
        open_root("demo:../demo/h800")


def test_the_demo_host_is_small_and_goes_with_the_wheel() -> None:
    path = ROOT / "checks" / "host_snapshot" / "demo" / "h800.tar.gz"
    assert path.stat().st_size < 50_000
    assert "host_snapshot/demo/*.tar.gz" in (ROOT / "pyproject.toml").read_text()


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
    _, found = _statuses(capsys, "--root", str(root), str(script))
    for check in {check.id for check, _ in every_check()}:
        assert found[check] <= ({"pass", "skip"} if check in NOT_ASKED else {"unknown"}), check


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
