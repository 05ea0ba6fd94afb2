"""Which limit a refused registration met: errno alone is ambiguous, all the evidence together not.

Source: kernel core/umem.c (EPERM, ENOMEM), kernel/cgroup/rdma.c (EAGAIN), erdma_verbs.c (EIO,
EINVAL), mlx5 (EAGAIN and ENOMEM, with a line in the kernel's log); seen on soft-RoCE.
"""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from checks.base.units import format_bytes
from checks.rdma.registration_measured import DEVICE_TABLE, MEMORY_KEYS

MEMLOCK = "RLIMIT_MEMLOCK"
CGROUP = "rdma cgroup"
REGION_LENGTH = "max_mr_size"
HOST_MEMORY = "host memory"
SPEND = "--spend"
NOT_TOLD = "not told"
_TABLE_DRIVERS = ("erdma", "ionic", "efa")
_KEYS_LOG = "CREATE_MKEY"
_LENGTH_LOG = "Out of mr size"


class CgroupUse(NamedTuple):
    """One cgroup's line for the device, at the moment of the refusal; None: no limit."""

    file: str
    most_objects: int | None
    used_objects: int
    most_handles: int | None = None
    used_handles: int = 0


class Refusal(NamedTuple):
    """What was asked of a device and refused, and how things stood then.

    held_bytes: on this device, before. asked_bytes: one more region, or several in one.
    pinned_bytes: VmPin of the process. memlock_bytes: its soft limit, None for none.
    lifted: CAP_IPC_LOCK is in effect. keys_used, most_keys: the device's memory regions, all
    users'. log: new lines of the kernel's log, None where it may not be read.
    """

    device: str
    driver: str
    call: str
    number: int
    held_bytes: int
    asked_bytes: int
    pinned_bytes: int | None = None
    memlock_bytes: int | None = None
    lifted: bool | None = None
    cgroups: tuple[CgroupUse, ...] | None = ()
    max_mr_size_bytes: int | None = None
    keys_used: int | None = None
    most_keys: int | None = None
    log: tuple[str, ...] | None = None


class Limit(NamedTuple):
    """The limit, in a word and in a sentence. sure: more than the errno speaks for it."""

    kind: str
    sure: bool
    text: str


def limit_met(refusal: Refusal) -> Limit:
    """The limit that ``refusal`` met."""
    shown = f"{os.strerror(refusal.number)} [{refusal.number}]"
    for judge in (_cgroup, _memlock, _length, _keys, _table, _memory):
        met = judge(refusal)
        if met is not None:
            return met._replace(text=f"{refusal.call} on {refusal.device}: {shown}: {met.text}")
    text = "nothing that was looked at explains it"
    return Limit(NOT_TOLD, False, f"{refusal.call} on {refusal.device}: {shown}: {text}")


def _cgroup(refusal: Refusal) -> Limit | None:
    if refusal.number != errno.EAGAIN:
        return None
    for group in refusal.cgroups or ():
        counts = (
            ("hca_object", group.used_objects, group.most_objects),
            ("hca_handle", group.used_handles, group.most_handles),
        )
        # Opening takes a handle and objects, anything else objects alone.
        for name, used, most in counts if "open" in refusal.call else counts[:1]:
            if most is not None and used >= most:
                text = f"{group.file} lets it have {name}={most}, and {used} are in use"
                return Limit(CGROUP, True, text)
    return None


def _memlock(refusal: Refusal) -> Limit | None:
    limit = refusal.memlock_bytes
    if limit is None or refusal.lifted:
        return None
    if refusal.number == errno.EPERM and limit == 0:
        return Limit(MEMLOCK, refusal.lifted is False, "the limit is 0, so nothing may be locked")
    if refusal.number != errno.ENOMEM or refusal.pinned_bytes is None:
        return None
    sum_bytes = refusal.pinned_bytes + refusal.asked_bytes
    if sum_bytes <= limit:
        return None
    text = (
        f"{format_bytes(refusal.pinned_bytes)} are pinned (VmPin) and "
        f"{format_bytes(refusal.asked_bytes)} more are over the limit of {format_bytes(limit)}"
    )
    return Limit(MEMLOCK, refusal.lifted is False, text)


def _length(refusal: Refusal) -> Limit | None:
    if refusal.number not in (errno.EINVAL, errno.ENOSPC, errno.EFBIG):
        return None
    most = refusal.max_mr_size_bytes
    if most is not None and refusal.asked_bytes > most:
        text = f"one region of {format_bytes(refusal.asked_bytes)} is over {format_bytes(most)}"
        return Limit(REGION_LENGTH, True, text)
    line = _logged(refusal, _LENGTH_LOG)
    return None if line is None else Limit(REGION_LENGTH, True, f"the kernel's log: {line}")


def _keys(refusal: Refusal) -> Limit | None:
    if refusal.number not in (errno.EAGAIN, errno.ENOMEM):
        return None
    line = _logged(refusal, _KEYS_LOG)
    if line is not None:
        return Limit(MEMORY_KEYS, True, f"the kernel's log: {line}")
    used, most = refusal.keys_used, refusal.most_keys
    if used is not None and most is not None and 0 < most <= used:
        return Limit(MEMORY_KEYS, True, f"{used} of the device's {most} regions are in use")
    if refusal.number == errno.EAGAIN:
        text = (
            "no cgroup that is seen here is at its limit, so the device has no key left, or a "
            "cgroup above this container is full"
        )
        return Limit(MEMORY_KEYS, False, text)
    return None


def _table(refusal: Refusal) -> Limit | None:
    own = refusal.number == errno.EIO or (
        refusal.number in (errno.ENOMEM, errno.ENOSPC) and refusal.driver in _TABLE_DRIVERS
    )
    if not own:
        return None
    text = f"the device refused it with {format_bytes(refusal.held_bytes)} in its tables"
    line = _logged(refusal, "return with error") or _logged(refusal, refusal.driver)
    if line is not None:
        text += f"; the kernel's log: {line}"
    return Limit(DEVICE_TABLE, refusal.driver in _TABLE_DRIVERS, text)


def _memory(refusal: Refusal) -> Limit | None:
    if refusal.number != errno.ENOMEM:
        return None
    text = "neither the memlock limit nor the device explains it: the kernel ran out of memory"
    return Limit(HOST_MEMORY, False, text)


def _logged(refusal: Refusal, words: str) -> str | None:
    """The first new line of the kernel's log with ``words``."""
    lines = [line for line in refusal.log or () if words and words in line]
    return lines[0][:200] if lines else None
