"""Tells which limit a refused registration met, by errno and the state of host and device.

Source: kernel core/umem.c (EPERM, ENOMEM), kernel/cgroup/rdma.c (EAGAIN), erdma_verbs.c (EIO,
EINVAL), mlx5 (EAGAIN and ENOMEM, with a line in the kernel's log); seen on soft-RoCE.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown, or_unknown, require
from checks.memlock.demand import grant
from checks.rdma.device_table import BASE_PAGE_BYTES, DEVICE_TABLE, MEMORY_KEYS
from checks.rdma.facts import Nic
from checks.rdma.registration import (
    PROTECTION_DOMAINS,
    largest_region_bytes,
    load_of,
    nic_loads,
    objects_of,
    regions_under,
    registration_of,
    table_row,
)
from checks.rdma.use import uses
from checks.rdma.verbs import CgroupLimit, RdmaCgroup
from checks.run_checks.facts import Facts
from checks.running_processes.processes import read_open_files, read_processes

MEMLOCK = "RLIMIT_MEMLOCK"
CGROUP = "rdma cgroup"
REGION_LENGTH = "max_mr_size"
HOST_MEMORY = "host memory"
SPEND = "--spend"
NOT_TOLD = "not told"
_TABLE_DRIVERS = ("erdma", "ionic", "efa")
_OF_TABLES = (errno.ENOMEM, errno.ENOSPC)  # of these drivers alone
_KEYS_LOG = "CREATE_MKEY"
_LENGTH_LOG = "Out of mr size"


class CgroupUse(NamedTuple):
    """One cgroup's line for the device, at the moment of the refusal."""

    file: str
    limit: CgroupLimit
    used: CgroupLimit


class RegistrationRefusal(NamedTuple):
    """A call that a device refused (to open it or to register memory), and the state at that
    moment.

    Attributes:
        number: The errno of ``call``.
        held_bytes: Registered with this device before.
        asked_bytes: The length that was refused, of one region or several joined.
        pinned_bytes: VmPin of the process.
        memlock_bytes: The soft memlock limit, None if unlimited or not known.
        lifted: CAP_IPC_LOCK is in effect, so that limit does not apply.
        cgroups: None if they cannot be read.
        keys_used, most_keys: Memory regions of all users, and the most that the device has.
        log: New lines of the kernel's log, None if it may not be read.
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


class LimitMet(NamedTuple):
    """The limit that a refusal met: its name and a sentence.

    Attributes:
        sure: True if more than the errno shows that limit.
    """

    limit: str
    sure: bool
    text: str


def limit_met(refusal: RegistrationRefusal) -> LimitMet:
    """Return the limit that explains ``refusal``; else HOST_MEMORY (for ENOMEM) or NOT_TOLD."""
    shown = f"{os.strerror(refusal.number)} [{refusal.number}]"
    every = (judge(refusal) for judge in (_cgroup, _memlock, _length, _keys, _table))
    text = "neither the memlock limit nor the device explains it: the kernel ran out of memory"
    otherwise = LimitMet(HOST_MEMORY, False, text)
    if refusal.number != errno.ENOMEM:
        otherwise = LimitMet(NOT_TOLD, False, "nothing that was read explains it")
    met = next(filter(None, every), otherwise)
    return met._replace(text=f"{refusal.call} on {refusal.device}: {shown}: {met.text}")


def _cgroup(refusal: RegistrationRefusal) -> LimitMet | None:
    """Return the limit of an rdma cgroup if it explains EAGAIN; else None."""
    if refusal.number != errno.EAGAIN:
        return None
    for group in refusal.cgroups or ():
        counts = (
            ("hca_object", group.used.objects or 0, group.limit.objects),
            ("hca_handle", group.used.handles or 0, group.limit.handles),
        )
        # Opening takes a handle and objects, anything else objects alone.
        for name, used, most in counts if refusal.call == "ibv_open_device" else counts[:1]:
            if most is not None and used >= most:
                text = f"{group.file} lets it have {name}={most}, and {used} are in use"
                return LimitMet(CGROUP, True, text)
    return None


def _memlock(refusal: RegistrationRefusal) -> LimitMet | None:
    """Return the memlock limit if it explains EPERM or ENOMEM; else None."""
    limit, pinned = refusal.memlock_bytes, refusal.pinned_bytes
    if limit is None or refusal.lifted:
        return None
    text = ""
    if refusal.number == errno.EPERM and limit == 0:
        text = "the limit is 0, so nothing may be locked"
    elif refusal.number == errno.ENOMEM and pinned is not None:
        more = format_bytes(refusal.asked_bytes)
        text = f"{format_bytes(pinned)} are pinned (VmPin) and {more} more are over the limit of "
        text = f"{text}{format_bytes(limit)}" if pinned + refusal.asked_bytes > limit else ""
    return LimitMet(MEMLOCK, refusal.lifted is False, text) if text else None


def _length(refusal: RegistrationRefusal) -> LimitMet | None:
    """Return the limit on the length of one region if it explains the refusal; else None."""
    if refusal.number not in (errno.EINVAL, errno.ENOSPC, errno.EFBIG):
        return None
    most = refusal.max_mr_size_bytes
    if most is not None and refusal.asked_bytes > most:
        text = f"one region of {format_bytes(refusal.asked_bytes)} is over {format_bytes(most)}"
        return LimitMet(REGION_LENGTH, True, text)
    line = _log_line(refusal, _LENGTH_LOG)
    return None if line is None else LimitMet(REGION_LENGTH, True, f"the kernel's log: {line}")


def _keys(refusal: RegistrationRefusal) -> LimitMet | None:
    """Return the limit on the device's memory keys if it explains EAGAIN or ENOMEM; else None.

    EAGAIN without other evidence also gives this limit, as one that is not ``sure``.
    """
    if refusal.number not in (errno.EAGAIN, errno.ENOMEM):
        return None
    line = _log_line(refusal, _KEYS_LOG)
    if line is not None:
        return LimitMet(MEMORY_KEYS, True, f"the kernel's log: {line}")
    used, most = refusal.keys_used, refusal.most_keys
    if used is not None and most is not None and 0 < most <= used:
        return LimitMet(MEMORY_KEYS, True, f"{used} of the device's {most} regions are in use")
    if refusal.number == errno.EAGAIN:
        text = (
            "no cgroup that is seen here is at its limit, so the device has no key left, or a "
            "cgroup above this container is full"
        )
        return LimitMet(MEMORY_KEYS, False, text)
    return None


def _table(refusal: RegistrationRefusal) -> LimitMet | None:
    """Return the limit of the device's translation table if the errno shows it; else None.

    EIO shows it for every driver, ENOMEM and ENOSPC only for ``_TABLE_DRIVERS``. The limit is sure
    only for these drivers.
    """
    listed = refusal.driver in _TABLE_DRIVERS
    if refusal.number not in (errno.EIO, *(_OF_TABLES if listed else ())):
        return None
    text = f"the device refused it with {format_bytes(refusal.held_bytes)} in its tables"
    line = _log_line(refusal, "return with error") or _log_line(refusal, refusal.driver)
    if line is not None:
        text += f"; the kernel's log: {line}"
    return LimitMet(DEVICE_TABLE, listed, text)


def _log_line(refusal: RegistrationRefusal, text: str) -> str | None:
    """Return the first new line of the kernel's log that contains ``text``, cut to 200 characters.

    Returns:
        None if no line does, ``text`` is empty, or the log may not be read.
    """
    return next((line[:200] for line in refusal.log or () if text and text in line), None)


class RegistrationCeiling(NamedTuple):
    """A limit that is known before measuring, on each device: in bytes or in regions, the other
    None.
    """

    limit: str
    bytes: int | None
    regions: int | None
    source: str


class ProbeNeed(NamedTuple):
    """The memory that a launch registers.

    Attributes:
        process_bytes: Of the largest process, with each of its NICs.
        nic_bytes, nic_regions, nic_objects: Of all processes with one NIC, each the maximum over
            the NICs.
        nic_objects: Regions, protection domains and completion queues, as the rdma cgroup counts.
        lengths: Of single registrations, ascending.
    """

    process_bytes: int
    nic_bytes: int
    nic_regions: int
    nic_objects: int
    lengths: tuple[int, ...]


def ceilings(
    facts: Facts, nics: Sequence[Nic], region_bytes: int, page_bytes: int
) -> Iterator[RegistrationCeiling]:
    """Yield every known limit on registering regions with all of ``nics`` at once.

    First the memlock limit for all together, then the rdma cgroups' and the device's for each NIC.

    Args:
        page_bytes: The page that backs the regions.
    """
    granted = grant(facts.system, facts.limits, None)
    limit = granted.limit
    if granted.void is not True and not isinstance(limit, Unknown) and limit.soft is not None:
        regions = regions_under(limit.soft, len(nics), region_bytes, BASE_PAGE_BYTES)
        source = f"{format_bytes(limit.soft)} for {len(nics)} x {format_bytes(region_bytes)}"
        yield RegistrationCeiling(MEMLOCK, regions * region_bytes, None, source)
    for nic in nics:
        yield from _of_cgroups(facts, nic)
        yield from _of_device(facts, nic, page_bytes)


def _of_cgroups(facts: Facts, nic: Nic) -> Iterator[RegistrationCeiling]:
    """Yield how many more regions of ``nic`` each rdma cgroup allows; 0 if no handle is left."""
    for group in () if isinstance(facts.rdma.cgroups, Unknown) else facts.rdma.cgroups:
        limit, used = group.limit(nic.name), use_of(group, nic.name)
        source = f"{group.file}: {nic.name}"
        if limit.objects is not None:
            left = max(0, limit.objects - (used.objects or 0) - PROTECTION_DOMAINS)
            yield RegistrationCeiling(CGROUP, None, left, f"{source} hca_object={limit.objects}")
        if limit.handles is not None and limit.handles <= (used.handles or 0):
            yield RegistrationCeiling(CGROUP, None, 0, f"{source} hca_handle={limit.handles}")


def use_of(group: RdmaCgroup, device: str) -> CgroupLimit:
    """Return the use that a cgroup makes of a device; zeros if that cannot be read."""
    used = group.in_use(device)
    return CgroupLimit(0, 0) if isinstance(used, Unknown) else used


def _of_device(facts: Facts, nic: Nic, page_bytes: int) -> Iterator[RegistrationCeiling]:
    """Yield the device's own limits, as far as known: memory keys left, and bytes that its table
    maps.

    Args:
        page_bytes: The page that backs the regions; the table has an entry for each.
    """
    limits, kernel = nic.verbs.limits, facts.rdma.kernel
    if not isinstance(limits, Unknown) and limits.max_mr > 0 and not isinstance(kernel, Unknown):
        used = kernel.resources.get(nic.name, {}).get("mr", 0)
        source = f"{nic.name}: max_mr {limits.max_mr}, {used} in use"
        yield RegistrationCeiling(MEMORY_KEYS, None, max(0, limits.max_mr - used), source)
    row = table_row(nic)
    if row is not None and not isinstance(row, Unknown) and row.holds_entries:
        source = f"{row.name}: {row.holds_entries} entries, {row.confidence}"
        size = row.holds_entries * page_bytes
        yield RegistrationCeiling(DEVICE_TABLE, size, None, source)


def launch_devices(facts: Facts, needs: LaunchNeeds) -> tuple[str, ...] | Unknown:
    """Return the devices of the first process that uses any, or (); Unknown if not known."""
    every = (use.devices.names for use in uses(facts.rdma, needs))
    return next((names for names in every if isinstance(names, Unknown) or names), ())


@or_unknown
def need_of(facts: Facts, needs: LaunchNeeds, devices: tuple[str, ...]) -> ProbeNeed | Unknown:
    """Compute what a probe of ``devices`` has to reach for the launch to register all its memory.

    Returns:
        Unknown if the memory that processes register, or which NICs they use, is not known.
    """
    most = 0
    every = uses(facts.rdma, needs)
    lengths: set[int] = set()
    for use in every:
        names = require(use.devices.names)
        largest = largest_region_bytes(use.nics, use.environment)
        for process in use.processes:
            load = require(load_of(process, largest, use.release))
            if load.more is not None:
                return load.more
            if not set(names) & set(devices):
                continue
            most = max(most, load.bytes)
            for region in require(process.regions):
                longest = region.bytes if isinstance(largest, Unknown) else largest
                lengths.add(registration_of(region, longest, use.release).piece_bytes)
    rows = [(0, 0, 0)]
    for sums in nic_loads(facts.rdma, every):
        if sums.nic.name in devices:
            regions = sum(load.registrations for _, load in sums.loads)
            others = objects_of(sums.nic, needs, every).others
            rows.append((sums.bytes, regions, regions + others))
    size, regions, objects = map(max, zip(*rows, strict=True))
    return ProbeNeed(most, size, regions, objects, tuple(sorted(lengths - {0})))


_MOST_SHOWN = 3


class Users(NamedTuple):
    """Who uses one device now.

    Attributes:
        contexts, regions: Open contexts and memory regions of all processes, None if unknown.
        processes: ``name (pid)`` of those that this user can see.
    """

    device: str
    contexts: int | None
    regions: int | None
    processes: tuple[str, ...]

    @property
    def text(self) -> str:
        """One sentence: who uses the device, or that this cannot be told."""
        if self.contexts is None:
            return f"{self.device}: whether others use it cannot be told"
        text = f"{self.device} is in use: {self.contexts} open, {self.regions} memory regions"
        names = ", ".join(self.processes[:_MOST_SHOWN])
        more = len(self.processes) - _MOST_SHOWN
        return f"{text} ({names}{f' and {more} more' if more > 0 else ''})" if names else text


def users_of(facts: Facts, nics: tuple[Nic, ...]) -> Iterator[Users]:
    """Yield the users of each device that is in use.

    A device whose users cannot be counted is yielded too, with None for the counts.
    """
    kernel = facts.rdma.kernel
    for nic in nics:
        counts = None if isinstance(kernel, Unknown) else kernel.resources.get(nic.name)
        if counts is None:
            yield Users(nic.name, None, None, ())
            continue
        used = counts.get("ctx", 0), counts.get("mr", 0)
        if any(used):
            yield Users(nic.name, *used, tuple(_openers(Root(), str(nic.uverbs))))


def _openers(root: Root, uverbs: str) -> Iterator[str]:
    """Yield ``name (pid)`` of each visible process that has the device file ``uverbs`` open."""
    processes = read_processes(root)
    for process in () if isinstance(processes, Unknown) else processes:
        files = read_open_files(root, process.pid)
        if not isinstance(files, Unknown) and uverbs in files.verbs_devices:
            yield f"{os.path.basename(process.words[0])} ({process.pid})"
