"""memlock in a container: what the check says is what mlock and io_uring's fixed buffers meet.

Both ask what registering memory with a NIC asks: RLIMIT_MEMLOCK, and CAP_IPC_LOCK of the initial
user namespace.
"""

from __future__ import annotations

import resource
import shlex
import sys

import pytest

from tests.containers.container import DOCKER_CAPABILITIES, MIB, Limits, Machine, check, probe

pytestmark = pytest.mark.containers

KIB = 1 << 10
EPERM, ENOMEM = 1, 12
SIZES = [KIB * 32, KIB * 64, KIB * 68, MIB, 8 * MIB, 8 * MIB + 4 * KIB, 16 * MIB]
WITH_LOCK = (*DOCKER_CAPABILITIES, "IPC_LOCK")
JUDGE = shlex.join([sys.executable, "-m", "tests.containers.judge_memlock", *map(str, SIZES)])
URING = {
    "MOONCAKE_OFFLOAD_USE_URING": "true",
    "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/dev/shm",
    "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(16 * MIB),
}
URING_CHECKS = ("memlock.io-uring-buffers", "io-uring.unavailable")
OFFLOAD = ("mooncake_client", "--global_segment_size=16MB", "--enable_offload=true")


ROOT, USER = Limits(), Limits(user=1000)
LOCKING_ROOT, LOCKING_USER = (Limits(user=n, capabilities=WITH_LOCK) for n in (0, 1000))
# Roots of a namespace: with the initial one's ids, and with others.
SAME_IDS, OTHER_IDS = (Limits(users=first, capabilities=WITH_LOCK) for first in (0, 100000))


@pytest.mark.parametrize(
    ("who", "memlock"),
    [
        *((who, limit) for who in (ROOT, USER) for limit in (0, 64 * KIB, 8 * MIB)),
        *((LOCKING_ROOT, 64 * KIB), (LOCKING_USER, 64 * KIB), (SAME_IDS, 64 * KIB)),
        *((OTHER_IDS, 0), (OTHER_IDS, 8 * MIB), (USER, -1)),
    ],
)
def test_what_may_be_pinned_is_what_the_check_says(
    containers: Machine, who: Limits, memlock: int
) -> None:
    """Of each size: mlock gets it where the check does not fail, to the page, and nowhere else."""
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if memlock < 0 <= hard:
        pytest.skip(f"no process of this machine may have more than {hard} bytes")
    limits = Limits(**{**vars(who), "memlock": memlock, "environment": URING})
    judged, locked, rings = containers.run(
        limits, JUDGE, probe("lock", *SIZES), check(*OFFLOAD, only="*io-uring*")
    )
    said, done = judged.json, locked.json
    assert said.keys() == done.keys() == {str(size) for size in SIZES}
    for size, status in said.items():
        assert (done[size]["mlock"] != 0) == (status == "fail"), (size, status, done)
    # A ring itself takes some pages of the limit on newer kernels: the limit's edge says nothing.
    for size in (32 * KIB, MIB, 16 * MIB):
        if done[str(size)]["ring"] is not None:
            refused = done[str(size)]["ring"] != 0
            assert refused == (said[str(size)] == "fail"), (size, said, done)
    # The buffer of 16 MiB is refused wherever the check does not pass; where there is not even a
    # ring, another check fails.
    whole = done[str(16 * MIB)]["ring"]
    answers = tuple(rings.finding(name)["status"] for name in URING_CHECKS)
    expected = {0: ("pass", "pass"), ENOMEM: ("warn", "pass"), None: ("warn", "fail")}[whole]
    assert answers == expected, done


def test_a_limit_of_nothing_is_another_error(containers: Machine) -> None:
    """The check's page says "Operation not permitted [1]" for a limit of 0, and ENOMEM above."""
    (nothing,) = containers.run(Limits(memlock=0), probe("lock", MIB))
    (little,) = containers.run(Limits(memlock=64 * KIB), probe("lock", MIB))
    assert (nothing.json[str(MIB)]["mlock"], little.json[str(MIB)]["mlock"]) == (EPERM, ENOMEM)
