"""Captures of real machines, with why each is there: they say here what they said there."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.builders.synthetic import PATIENCE_SECONDS
from tests.paths import ROOT

HOSTS = ROOT / "tests/data" / "hosts"
LAUNCH = "MOONCAKE_MASTER=10.0.0.9:1 mooncake_client --global_segment_size=64MB --protocol=tcp\n"


def _statuses(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, set[str]]]:
    code = run(["check", "--json", "--timeout", str(PATIENCE_SECONDS), *words])
    found: dict[str, set[str]] = {}
    for finding in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(finding["check"], set()).add(finding["status"])
    return code, found


def test_a_small_virtual_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """One node, no GPU, no RDMA, version 1 of cgroups with version 2 beside it: nothing fits.

    Its launch is a server of two ranks with huge pages over RDMA.
    """
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
    script.write_text(LAUNCH)
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
