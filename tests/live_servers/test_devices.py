"""What programs hold of GPUs and RDMA devices, and what goes through the ports that they use.

What is registered is the own list of the kernel, held against the launch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from checks.framework.finding import Finding, Status
from checks.framework.root import Root
from checks.gpu import calls as gpu_calls
from checks.rdma import calls
from preflight.live_servers.comparison import GPUS, findings, gpu_findings, traffic_findings
from preflight.live_servers.running_launch import running_servers
from preflight.live_servers.running_record import record_running
from tests.live_servers.test_observing import client, huge, process

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
    monkeypatch.setattr(gpu_calls, "_library", lambda: library)
    assert gpu_calls.held() == [{"total_bytes": 80, "processes": {"100": 5, "7": None}}]

    def fails() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(library, "nvmlInit", fails)
    with pytest.raises(OSError, match="Driver Not Loaded"):
        gpu_calls.held()


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


MIB = 1 << 20
ASKED = 64 * MIB  # its segment; a client has no buffer of its own unless it is told


def attribute(number: int, value: bytes) -> bytes:
    return calls._attribute(number, value)


def u32(number: int, value: int) -> bytes:
    return attribute(number, struct.pack("<I", value))


# One device, as drivers/infiniband/core/nldev.c writes it (res_get_common_dumpit).
HANDLE = u32(calls.DEV_INDEX, 0) + attribute(calls.DEV_NAME, b"mlx5_0\0")


def region(pid: int, size: int) -> bytes:
    """fill_res_mr_entry, without CAP_NET_ADMIN: no keys."""
    length = attribute(calls.RES_MR_BYTES, struct.pack("<Q", size))
    return attribute(41, length + u32(87, 5) + u32(84, 3) + u32(calls.RES_PID, pid))


ANSWERS = {
    calls.CMD_RES_GET: [HANDLE],
    10: [HANDLE + attribute(19, attribute(20, u32(21, 17) + u32(calls.RES_PID, 100)) * 3)],
    12: [HANDLE + attribute(35, b"")],
    # In two messages; and a region of the kernel itself, which has a name in place of a pid.
    13: [
        HANDLE + attribute(40, region(100, 48 * MIB) + region(7, 4096)),
        HANDLE + attribute(40, region(100, 16 * MIB) + attribute(41, attribute(29, b"mlx5_ib\0"))),
    ],
    14: [HANDLE + attribute(46, attribute(47, u32(calls.RES_PID, 100)))],
}


@pytest.mark.parametrize("length", [None, *range(0, 60, 7)])
def test_the_kernels_list_is_summed_by_device_and_process(
    monkeypatch: pytest.MonkeyPatch, length: int | None
) -> None:
    """Also one that breaks off is no crash."""

    def dump(
        _protocol: int, message_type: int, _body: bytes, flags: int
    ) -> Iterator[tuple[int, bytes]]:
        assert flags == calls.NLM_F_DUMP
        command = message_type - calls.NLDEV
        for body in ANSWERS[command]:
            yield 0, body if command == calls.CMD_RES_GET else body[:length]

    monkeypatch.setattr(calls, "netlink_dump", dump)
    held = calls.held()
    if length is None:
        assert held == {
            "mlx5_0": {
                "100": {"qp": 3, "mr": 2, "mr_bytes": ASKED, "pd": 1},
                "7": {"mr": 1, "mr_bytes": 4096},
            }
        }


@pytest.mark.parametrize(
    ("held", "pinned_kb", "nested", "rows"),
    [
        ({"mlx5_0": {"100": {"mr": 2, "mr_bytes": ASKED}}}, 0, "", [(Status.PASS, ASKED, ASKED)]),
        ({"mlx5_0": {"100": {"mr": 2, "mr_bytes": ASKED}},
          "mlx5_1": {"100": {"mr": 1, "mr_bytes": 16 * MIB}, "7": {"mr": 1, "mr_bytes": ASKED}}},
         0, "", [(Status.PASS, ASKED, ASKED), (Status.WARN, 16 * MIB, ASKED)]),
        ({"mlx5_0": {"100": {"mr": 3, "mr_bytes": ASKED + 1}}}, 0, "",
         [(Status.WARN, ASKED + 1, ASKED)]),
        ({}, 0, "", [(Status.UNKNOWN, None, None)]),
        # In a container: what is pinned, on its one open device.
        ({}, ASKED >> 10, "\t1", [(Status.PASS, ASKED, ASKED)]),
        ({}, (48 * MIB) >> 10, "\t1", [(Status.WARN, 48 * MIB, ASKED)]),
        ({"unknown": "Protocol not supported"}, ASKED >> 10, "", [(Status.PASS, ASKED, ASKED)]),
    ],
)  # fmt: skip
def test_what_is_registered_is_held_against_the_launch(
    tmp_path: Path,
    held: dict[str, object],
    pinned_kb: int,
    nested: str,
    rows: list[tuple[Status, int | None, int | None]],
) -> None:
    devices = ("/dev/infiniband/uverbs0",)
    words = client(protocol="rdma")
    process(tmp_path, 100, words, huge(32, {0: 32}), files=devices, pinned_kb=pinned_kb)
    with (tmp_path / "proc/100/status").open("a") as status:
        status.write(f"NSpid:\t100{nested}\n")
    (tmp_path / "calls.json").write_text(json.dumps({"rdma.held": held}))
    judged = findings(running_servers(Root(str(tmp_path)), (100,)))
    found = [one for _, one in judged if one.check == "observe.registered"]
    values = [
        (one.status, *(getattr(x, "value", None) for x in (one.have, one.need))) for one in found
    ]
    assert values == rows
