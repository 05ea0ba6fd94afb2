"""What is registered with RDMA devices: the kernel's own list, held against the launch."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.base.finding import Status
from checks.base.root import Root
from checks.rdma import calls
from preflight.observing.comparison import findings
from preflight.observing.running_launch import running_servers
from tests.observing.test_observing import client, huge, process

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
