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
from preflight.cli.sizing import run as run_sizing
from tests import rows
from tests.builders.hosts import MIB, Host, HostPool
from tests.builders.synthetic import PATIENCE_SECONDS, build_host, gpu_host
from tests.paths import ROOT

HOSTS = ROOT / "tests/data" / "hosts"
CLIENT = "MOONCAKE_MASTER=10.0.0.9:1 mooncake_client --global_segment_size=64MB --protocol=tcp\n"
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


def test_another_launch_on_the_same_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Over TCP and on regular pages nothing of the memory stands in the way."""
    script = tmp_path / "client.sh"
    script.write_text(CLIENT)
    words = ["--root", str(HOSTS / "small-vm.tar.gz"), "--only", "memory.*", "--only", "hugetlb.*"]
    code, found = _statuses(capsys, *words, str(script))
    assert code == 1  # vm.max_map_count is the kernel's default there
    assert found["memory.host"] == {"pass"}
    assert found["hugetlb.shortage"] == {"skip"}


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


def test_sizing_takes_the_demo_host_too(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--tp-size 8 --hicache-size 30gb --global-segment-size 64gb --root demo:h800"
    assert run_sizing(flags.split()) == 2
    assert "2 MiB pages on node 1" in capsys.readouterr().out


def test_another_name_of_a_demo_host_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(CaptureError, match=r"demo:h900: no such made host: .* demo:h800"):
        open_root("demo:h900")
    with pytest.raises(CaptureError, match="no such made host"):
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
    for check in {check.id for check in every_check()}:
        assert found[check] <= ({"pass", "skip"} if check in NOT_ASKED else {"unknown"}), check


def test_what_a_recorded_part_lacks_is_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Host({2 * MIB: HostPool(4096)}).write(tmp_path / "host")
    (root / "m").mkdir()
    script = tmp_path / "launch.sh"
    script.write_text(LAUNCH)
    _, found = _statuses(capsys, "--root", str(root), str(script))
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


@pytest.mark.parametrize(
    ("host", "counts"),
    [
        (["--root", "demo:h800"], False),
        (["--root", "folder"], True),
        (["--memory", "2tb", "--gpus", "8xH800"], True),
    ],
)
def test_variables_of_this_shell_count_unless_the_host_is_a_capture(
    host: list[str],
    counts: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where they do not count, the advice to give one in front says so; an env file always does."""
    script, variables = tmp_path / "launch.sh", tmp_path / "more.env"
    script.write_text("python3 -m sglang.launch_server --model-path $MODEL_PATH --tp 2\n")
    variables.write_text("MODEL_PATH=Qwen/Qwen3-14B\n")
    build_host(tmp_path / "folder", gpu_host())
    words = ["check", *(str(tmp_path / word) if word == "folder" else word for word in host)]
    monkeypatch.setenv("MODEL_PATH", "Qwen/Qwen3-14B")
    run([*words, str(script)])
    said = " ".join(capsys.readouterr().out.split())
    assert ("unless --root is a capture" in said) is not counts
    assert ("(Qwen3-14B" in said) is counts
    run([*words, "--env-file", str(variables), str(script)])
    assert "(Qwen3-14B" in capsys.readouterr().out
