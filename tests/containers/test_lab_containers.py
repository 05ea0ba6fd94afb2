"""Containers in the virtual machine: real registering with a NIC, and cgroups of version 2.

Whatever this machine has, the guest has soft-RoCE devices, no limit on memlock that could not be
lifted, and version 2 of cgroups alone. One boot runs all containers.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.containers.container import (
    DOCKER_CAPABILITIES,
    MIB,
    Limits,
    answers,
    check,
    machine,
    probe,
    script,
)
from tests.lab.guest import run_in_guest
from tests.lab.guest import why_not as why_no_guest

pytestmark = [pytest.mark.containers, pytest.mark.lab]

LIMIT_SECONDS = 900
ENOMEM, BUS_ERROR, KILLED = 12, 135, 137
HUGE_PAGE = 2 * MIB
WITH_LOCK = (*DOCKER_CAPABILITIES, "IPC_LOCK")
WHO = {
    "root": Limits(memlock=-1, rdma=True),
    "root with the capability": Limits(memlock=-1, rdma=True, capabilities=WITH_LOCK),
    "user": Limits(memlock=-1, rdma=True, user=1000, capabilities=WITH_LOCK),
    "root of a namespace": Limits(memlock=-1, rdma=True, users=0, capabilities=WITH_LOCK),
}
# A segment of 8 huge pages, and an offload buffer of 128 MiB on regular ones.
OFFLOAD = {
    "MC_STORE_USE_HUGEPAGE": "1",
    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/dev/shm",
    "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(128 * MIB),
}
CLIENT = (
    "mooncake_client",
    "--protocol=tcp",
    "--global_segment_size=16MB",
    "--enable_offload=true",
)
# What the checks of both limits say -> the limits. Beside the 128 MiB of the launch the check is in
# the cgroup itself, with a process that can be left behind: 30 MiB, which count as used.
VERSION_2 = {
    "fail": Limits(memory_bytes=100 * MIB, hugetlb={"2MB": 7 * HUGE_PAGE}, environment=OFFLOAD),
    "pass": Limits(memory_bytes=192 * MIB, hugetlb={"2MB": 8 * HUGE_PAGE}, environment=OFFLOAD),
}
# The guest runs its program in a chroot, where the kernel makes no user namespace (current_chrooted
# of kernel/user_namespace.c): the first lines make that root the machine's own.
PREPARE = """
[ -n "$MOVED" ] || exec nsenter --target 1 --mount /bin/busybox sh -c 'cd /new &&
    /bin/busybox mount --move . / && MOVED=1 exec /bin/busybox chroot . /bin/sh "$0"' "$0"
rm -f /.dockerenv
ulimit -l unlimited
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+memory +hugetlb' > /sys/fs/cgroup/cgroup.subtree_control
echo 16 > /proc/sys/vm/nr_hugepages
ip link set lo up
ip link set eth0 up
ip address add 10.0.0.1/24 dev eth0
rdma link add rxe0 type rxe netdev eth0
chmod 666 /dev/infiniband/uverbs*
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines that each container wrote, by its name."""
    reason = why_no_guest()
    if reason is not None:
        pytest.skip(reason)
    register = [sys.executable, str(Path(__file__).with_name("lab_register.py")), "4", "16"]
    runs: list[str] = []
    with machine({}) as made:

        def add(name: str, limits: Limits, *words: str) -> None:
            command = shlex.join(made.command(limits, *words))
            runs.append(f"echo '>> {name}'; {command} 2>&1")

        for who, limits in WHO.items():
            add(who, limits, *register)
        for expected, limits in VERSION_2.items():
            commands = (
                check(*CLIENT, only="*.cgroup*"),
                probe("regular", 128 * MIB),
                probe("huge", 8 * HUGE_PAGE),
            )
            # An emulated machine is slow to read, which the check says to standard error.
            add(expected, limits, *script([f"{command} 2>/dev/null" for command in commands]))
        program = PREPARE + "\n".join(runs) + "\ntrue\n"
        lines = run_in_guest(program, tmp_path_factory.mktemp("guest"), LIMIT_SECONDS)
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if line.startswith(">> "):
            name = line[3:]
        found.setdefault(name, []).append(line)
    return found


@pytest.mark.parametrize("who", WHO)
def test_registering_with_a_nic_is_what_the_check_says(
    said: dict[str, list[str]], who: str
) -> None:
    """Segments of 4 and 16 MB, no limit, 8 MiB and 64 KiB: refused just where the check fails."""
    rows = [json.loads(line) for line in said[who] if line.startswith('{"limit"')]
    assert len(rows) == 6, said[who]
    for row in rows:
        assert row["errno"] == (ENOMEM if row["status"] == "fail" else 0), row
    # 8 MiB hold the one of 4 MB, 64 KiB hold none.
    failures = sum(row["status"] == "fail" for row in rows)
    assert failures == (0 if who == "root with the capability" else 3)


@pytest.mark.parametrize("expected", VERSION_2)
def test_limits_of_cgroups_of_version_2(said: dict[str, list[str]], expected: str) -> None:
    """What the checks refuse dies of it: of memory killed, of huge pages by a bus error."""
    lines = said[expected]
    found, regular, huge = answers("\n".join(lines[1:]) + "\n")
    for name in ("memory.cgroup", "hugetlb.cgroup-limit"):
        assert found.finding(name)["status"] == expected, lines
    fails = expected == "fail"
    assert regular.code == (KILLED if fails else 0), lines
    assert huge.code in ((ENOMEM, BUS_ERROR) if fails else (0,)), lines
