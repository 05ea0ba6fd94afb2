"""What is known before a probe: its ceilings, what a launch needs, and who uses the device."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.memlock.demand import grant
from checks.rdma.device_table import BASE_PAGE_BYTES, Bound
from checks.rdma.facts import Nic
from checks.rdma.registration import (
    PROTECTION_DOMAINS,
    largest_region_bytes,
    load_of,
    nic_loads,
    objects_of,
    regions_under,
    registration_of,
    row_of,
)
from checks.rdma.registration_measured import DEVICE_TABLE, MEMORY_KEYS
from checks.rdma.use import devices_in_use, uses
from checks.rdma.verbs import Budget
from checks.releases.mooncake import release_of
from checks.run.facts import Facts
from preflight.probes.limits import CGROUP, MEMLOCK


class Ceiling(NamedTuple):
    """One limit, as known before anything is tried, on each device.

    bytes: of regions of the probed size; regions: registrations. One of them is None.
    """

    kind: str
    bytes: int | None
    regions: int | None
    source: str


class Need(NamedTuple):
    """What a launch registers. process_bytes: the largest process with each NIC; nic_bytes,
    nic_regions: all processes with the fullest NIC. nic_objects: regions and what else is made
    there at start, as the rdma cgroup counts. lengths: of single registrations."""

    process_bytes: int
    nic_bytes: int
    nic_regions: int
    nic_objects: int
    lengths: tuple[int, ...]


def ceilings(
    facts: Facts, nics: Iterable[Nic], region_bytes: int, page_bytes: int
) -> list[Ceiling]:
    """Every limit that is known of registering regions on all of ``nics`` at once."""
    chosen = list(nics)
    found = []
    granted = grant(facts.system, facts.limits, None)
    limit = granted.limit
    if granted.void is not True and not isinstance(limit, Unknown) and limit.soft is not None:
        regions = regions_under(limit.soft, len(chosen), region_bytes, BASE_PAGE_BYTES)
        source = f"{format_bytes(limit.soft)} for {len(chosen)} x {format_bytes(region_bytes)}"
        found.append(Ceiling(MEMLOCK, regions * region_bytes, None, source))
    for nic in chosen:
        found += _of_cgroups(facts, nic)
        found += _of_device(facts, nic, page_bytes)
    return found


def _of_cgroups(facts: Facts, nic: Nic) -> list[Ceiling]:
    if isinstance(facts.rdma.cgroups, Unknown):
        return []
    found = []
    for group in facts.rdma.cgroups:
        limit = group.limits.get(nic.name, Budget(None, None))
        used = Budget(0, 0)
        if not isinstance(group.used, Unknown):
            used = group.used.get(nic.name, used)
        if limit.objects is not None:
            left = max(0, limit.objects - (used.objects or 0) - PROTECTION_DOMAINS)
            source = f"{group.file}: {nic.name} hca_object={limit.objects}"
            found.append(Ceiling(CGROUP, None, left, source))
        if limit.handles is not None and limit.handles <= (used.handles or 0):
            source = f"{group.file}: {nic.name} hca_handle={limit.handles}"
            found.append(Ceiling(CGROUP, None, 0, source))
    return found


def _of_device(facts: Facts, nic: Nic, page_bytes: int) -> list[Ceiling]:
    found = []
    limits, kernel = nic.verbs.limits, facts.rdma.kernel
    if not isinstance(limits, Unknown) and limits.max_mr > 0 and not isinstance(kernel, Unknown):
        used = kernel.resources.get(nic.name, {}).get("mr", 0)
        source = f"{nic.name}: max_mr {limits.max_mr}, {used} in use"
        found.append(Ceiling(MEMORY_KEYS, None, max(0, limits.max_mr - used), source))
    row = row_of(nic)
    if row is not None and not isinstance(row, Unknown) and row.table.bound is Bound.ENTRIES:
        source = f"{row.name}: {row.table.holds_entries} entries, {row.confidence.value}"
        found.append(Ceiling(DEVICE_TABLE, row.table.holds_entries * page_bytes, None, source))
    return found


def launch_devices(facts: Facts, needs: LaunchNeeds) -> tuple[str, ...] | Unknown:
    """The devices of the launch's first process that uses any; Unknown where that is."""
    release = release_of(needs.mooncake_version)
    for process in needs.rdma_processes:
        names = devices_in_use(facts.rdma, process, release).names
        if isinstance(names, Unknown) or names:
            return names
    return ()


def need_of(facts: Facts, needs: LaunchNeeds, devices: tuple[str, ...]) -> Need | Unknown:
    """What the launch registers with ``devices``; Unknown where its memory is."""
    release = release_of(needs.mooncake_version)
    most = nic_bytes = nic_regions = nic_objects = 0
    found = uses(facts.rdma, needs)
    lengths: set[int] = set()
    for use in found:
        names = use.devices.names
        if isinstance(names, Unknown):
            return names
        nics = [nic for nic in facts.rdma.present if nic.name in names]
        largest = largest_region_bytes(nics, use.environment)
        for process in use.processes:
            load = load_of(process, largest, release)
            if isinstance(load, Unknown):
                return load
            if load.more is not None:
                return load.more
            if not set(names) & set(devices):
                continue
            most = max(most, load.bytes)
            regions = () if isinstance(process.regions, Unknown) else process.regions
            for region in regions:
                longest = region.bytes if isinstance(largest, Unknown) else largest
                lengths.add(registration_of(region, longest, release).piece_bytes)
    for sums in nic_loads(facts.rdma, needs, found):
        if sums.nic.name in devices:
            nic_bytes = max(nic_bytes, sums.bytes)
            objects = objects_of(sums.nic, facts.rdma, needs, found)
            regions_here = sum(own.registrations for _, own in sums.loads)
            nic_regions = max(nic_regions, regions_here)
            nic_objects = max(nic_objects, regions_here + objects.others)
    return Need(most, nic_bytes, nic_regions, nic_objects, tuple(sorted(lengths - {0})))


_MOST_SHOWN = 3


class Users(NamedTuple):
    """contexts, regions: of all processes of the host, None where they cannot be counted.

    processes: those that this user sees with the device open, ``name (pid)``.
    """

    device: str
    contexts: int | None
    regions: int | None
    processes: tuple[str, ...]

    @property
    def text(self) -> str:
        if self.contexts is None:
            return f"{self.device}: whether others use it cannot be told"
        found = f"{self.device} is in use: {self.contexts} open, {self.regions} memory regions"
        names = ", ".join(self.processes[:_MOST_SHOWN])
        more = len(self.processes) - _MOST_SHOWN
        if more > 0:
            names += f" and {more} more"
        return f"{found} ({names})" if names else found


def users_of(facts: Facts, nics: tuple[Nic, ...]) -> Iterator[Users]:
    """The devices that somebody uses; one whose users cannot be counted is one of them."""
    kernel = facts.rdma.kernel
    for nic in nics:
        counts = {} if isinstance(kernel, Unknown) else kernel.resources.get(nic.name)
        if isinstance(kernel, Unknown) or counts is None:
            yield Users(nic.name, None, None, ())
        elif counts.get("ctx", 0) or counts.get("mr", 0):
            openers = tuple(_openers(nic.uverbs))
            yield Users(nic.name, counts.get("ctx", 0), counts.get("mr", 0), openers)


def _openers(uverbs: str | None) -> Iterator[str]:
    node = f"/dev/infiniband/{uverbs}"
    for pid in sorted((name for name in os.listdir("/proc") if name.isdecimal()), key=int):
        name = _name_of_opener(pid, node)
        if name:
            yield f"{name} ({pid})"


def _name_of_opener(pid: str, node: str) -> str:
    """The process's name where it has ``node`` open; "" where not, or where that is hidden."""
    try:
        links = os.listdir(f"/proc/{pid}/fd")
        if not any(os.readlink(f"/proc/{pid}/fd/{link}") == node for link in links):
            return ""
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
