"""Containers in the guest: what they are given, and one boot that runs them all."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.containers.container import (
    DOCKER_CAPABILITIES,
    MIB,
    Limits,
    check,
    machine,
    probe,
    script,
)
from tests.lab.guest import run_in_guest

LIMIT_SECONDS = 900
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


def run_containers(folder: Path) -> dict[str, list[str]]:
    """Return the lines that each container wrote, by its name."""
    register = [sys.executable, str(Path(__file__).with_name("register_runner.py"))]
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
        lines = run_in_guest(program, folder, LIMIT_SECONDS)
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if line.startswith(">> "):
            name = line[3:]
        found.setdefault(name, []).append(line)
    return found
