"""What programs hold of GPUs, and what goes through the ports that they use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from checks.base.finding import Finding, Status
from checks.base.root import Root
from checks.gpu import calls
from preflight.observing.comparison import GPUS, gpu_findings, traffic_findings
from preflight.observing.running_launch import running_servers
from preflight.observing.running_record import record_running
from tests.observing.test_observing import client, process

GIB = 1 << 30
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.5"


def gpu(**held: int) -> dict[str, object]:
    return {"total_bytes": 80 * GIB, "processes": {pid[1:]: n * GIB for pid, n in held.items()}}


@pytest.mark.parametrize(
    ("gpus", "statuses"),
    [
        ([gpu(p100=42), gpu(p7=10)], [Status.PASS]),
        ([gpu(p100=20, p101=22)], [Status.PASS]),
        ([gpu(p100=30, p7=20)], [Status.WARN]),
        ([gpu(p100=30)], [Status.SKIP]),
        ([gpu(p7=30)], []),
        ([{"total_bytes": GIB, "processes": {"100": 5, "7": None}}], [Status.UNKNOWN]),
        ({"unknown": "NVML: Driver Not Loaded"}, [Status.UNKNOWN]),
    ],
)
def test_gpu_memory_beside_its_static_share(
    tmp_path: Path, gpus: object, statuses: list[Status]
) -> None:
    process(tmp_path, 100, SERVER)
    process(tmp_path, 101, "sglang::scheduler", parent=100)
    process(tmp_path, 102, client())  # which uses none
    assert list(gpu_findings(running_servers(Root(str(tmp_path))), Root(str(tmp_path)))) == []
    (tmp_path / "proc/driver/nvidia/gpus").mkdir(parents=True)
    (tmp_path / "calls.json").write_text(json.dumps({"gpus.held": gpus}))
    root = Root(str(tmp_path))
    found = list(gpu_findings(running_servers(root), root))
    assert [one.status for _, one in found] == statuses
    assert {one.check for _, one in found} <= {"observe.gpu-memory"}
    assert {server.pid for server, _ in found} <= {100}
    recorded = record_running(root).answers
    assert "gpus.held" in recorded.calls
    assert GPUS in recorded.folders


class NVMLError(Exception):
    """NVML's own."""


def test_nvml_is_asked_for_the_processes_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = ((100, 5), (7, None))
    processes = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in pairs]
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: processes,
    )
    monkeypatch.setattr(calls, "_library", lambda: library)
    assert calls.held() == [{"total_bytes": 80, "processes": {"100": 5, "7": None}}]

    def fails() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(library, "nvmlInit", fails)
    with pytest.raises(OSError, match="Driver Not Loaded"):
        calls.held()


DEVICE = "/sys/class/infiniband/mlx5_0/ports/1/counters"


def traffic(root: Path, before: Mapping[str, str], after: Mapping[str, str]) -> list[Finding]:
    def write(texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def wait(seconds: float) -> None:
        assert seconds == 2
        write(after)

    write(before)
    tree = Root(str(root))
    servers = running_servers(tree)
    found = [one for _, one in traffic_findings(servers, tree, 2, wait)]
    assert {one.check for one in found} <= {"observe.traffic"}
    return found


def net(received: int, sent: int) -> str:
    return (
        "Inter-|   Receive\n face |bytes packets\n"
        f"  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n    lo: 5 1 0 0 0 0 0 0 5 1 0\n"
    )


def test_bytes_a_second_of_each_port(tmp_path: Path) -> None:
    """A port of an RDMA device counts words of four bytes; an idle interface is left out."""
    process(tmp_path, 100, client(protocol="rdma"), files=("/dev/infiniband/uverbs0",))
    before = {
        "/sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0\n",
        f"{DEVICE}/port_rcv_data": "100",
        f"{DEVICE}/port_xmit_data": "0",
        "/proc/100/net/dev": net(1000, 10),
    }
    after = {f"{DEVICE}/port_rcv_data": "600", "/proc/100/net/dev": net(3000, 10)}
    found = traffic(tmp_path, before, after)
    assert {one.check for one in found} == {"observe.traffic"}
    assert [(one.status, getattr(one.have, "value", None)) for one in found] == [
        (Status.PASS, 1000),
        (Status.PASS, 1000),
    ]


@pytest.mark.parametrize(
    ("ibdev", "counter", "status"),
    [("mlx5_0", "N/A (no PMA)", Status.SKIP), ("gone", "1", Status.UNKNOWN)],
)
def test_counters_that_are_none(tmp_path: Path, ibdev: str, counter: str, status: Status) -> None:
    process(tmp_path, 100, client(protocol="rdma"), files=("/dev/infiniband/uverbs0",))
    before = {
        "/sys/class/infiniband_verbs/uverbs0/ibdev": ibdev,
        f"{DEVICE}/port_rcv_data": counter,
        f"{DEVICE}/port_xmit_data": counter,
        "/proc/100/net/dev": net(1, 1),
    }
    assert [one.status for one in traffic(tmp_path, before, {})] == [status]
