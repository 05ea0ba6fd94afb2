"""Launches that ``fit`` sizes in the guest, each with one limit that nothing can lift there."""

from __future__ import annotations

from dataclasses import dataclass

from tests.lab.rehearsals import SPLIT, store

ONE_NIC = ("--nic-numa-nodes", "0")


@dataclass(frozen=True)
class Fitting:
    """One launch, sized with ``fit --goal pool --write``, then rehearsed as written and one more.

    binds: the check that stops one step more. segment_mib: what fit is to find. words: beside the
    launch. nic_nodes: of the two devices. memlock_kib: RLIMIT_MEMLOCK, as user 1000, who has no
    CAP_IPC_LOCK; None: as root. hugetlb_mib: of a cgroup, ``hugetlb.2MB.rsvd.max``. error: what one
    step more dies of. why: what rehearse says of it.
    """

    id: str
    script: str
    binds: str
    segment_mib: int
    nic_nodes: tuple[int, ...] = (0, 1)
    words: tuple[str, ...] = SPLIT
    memlock_kib: int | None = None
    hugetlb_mib: int | None = None
    error: str = "setup returns -600"
    why: str = "as predicted: memlock.limit"


def mib(number: int) -> int:
    """In KiB, and less than one page of 2 MiB or one step of 1 MiB more."""
    return 1024 * number + 300


# fit goes on past a limit of locked memory, which a plan lifts; that of a cgroup stops it.
ALL = (
    # No limit of pinned memory: 96 MiB of huge pages, of which the local buffer takes 16.
    Fitting("hugetlb cgroup", store(), "hugetlb.cgroup-limit", 80, hugetlb_mib=97,
        why="Failed to allocate segment memory"),
)  # fmt: skip
