"""What each NIC gets to hold of a launch, over all its processes, and what it can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.units import MIB
from checks.base.unknown import Unknown
from checks.rdma.device_table import BASE_PAGE_BYTES, Bound, DeviceRow, device_row
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.judging import nics_of
from checks.rdma.registration import Load, largest_region_bytes, load_of
from checks.rdma.registration_measured import DEVICE_TABLE, Measured
from checks.rdma.use import Use
from checks.releases.mooncake import release_of

HUGE_PAGE_BYTES = 2 * MIB
# Kernel driver -> provider, where the kernel's number has none.
_PROVIDERS = {"ib_qib": "ipathverbs", "qib": "ipathverbs"}


class NicLoad(NamedTuple):
    """What is registered with one NIC. loads: by process. unknown: why there is more."""

    nic: Nic
    loads: tuple[tuple[str, Load], ...] = ()
    unknown: Unknown | None = None

    @property
    def by_page(self) -> Mapping[int, int]:
        """Registered bytes by the size of the backing page."""
        sums: dict[int, int] = {}
        for _, load in self.loads:
            for page, size in load.by_page.items():
                sums[page] = sums.get(page, 0) + size
        return sums

    @property
    def bytes(self) -> int:
        return sum(load.bytes for _, load in self.loads)

    @property
    def entries(self) -> int:
        return sum(load.entries for _, load in self.loads)


def nic_loads(rdma: RdmaFacts, needs: LaunchNeeds, found: Iterable[Use]) -> list[NicLoad]:
    """Each NIC in use, in the host's order, with all that the launch registers with it."""
    release = release_of(needs.mooncake_version)
    sums: dict[str, NicLoad] = {}
    elsewhere: Unknown | None = None
    for use in found:
        if isinstance(use.devices.names, Unknown):
            reason = use.devices.names.reason
            elsewhere = Unknown(f"{use.who} may register with it too: {reason}")
        nics = nics_of(rdma, use)
        largest = largest_region_bytes(nics, use.environment)
        for process in use.processes:
            load = load_of(process, largest, release)
            for nic in nics:
                own = sums.get(nic.name, NicLoad(nic))
                if isinstance(load, Unknown):
                    own = own._replace(unknown=load)
                else:
                    loads = (*own.loads, (process.name, load))
                    own = own._replace(
                        loads=loads, unknown=load.more if own.unknown is None else own.unknown
                    )
                sums[nic.name] = own
    there = [sums[nic.name] for nic in rdma.present if nic.name in sums]
    if elsewhere is None:
        return there
    return [
        load if load.unknown is not None else load._replace(unknown=elsewhere) for load in there
    ]


def row_of(nic: Nic) -> DeviceRow | Unknown | None:
    """The device's row of the table; None where it is no known device."""
    provider = nic.provider
    if isinstance(provider, Unknown):
        known = _PROVIDERS.get(nic.driver) if isinstance(nic.driver, str) else None
        if known is None:
            return provider
        provider = known
    return device_row(provider, nic.function)


class Held(NamedTuple):
    """Whether a device was measured to hold what is asked. fits: False: it was met, and is over.

    None: the measurement does not say.
    """

    fits: bool | None
    by: Measured


def held_as_measured(load: NicLoad, measured: Iterable[Measured], bound: Bound) -> Held | None:
    """What measurements of the NIC say of ``load``; None where there is none of use."""
    by_page = {page: size for page, size in load.by_page.items() if size}
    mine = [one for one in measured if one.device == load.nic.name]
    least = min(by_page, default=BASE_PAGE_BYTES)
    usable = [one for one in mine if one.page_bytes <= least]
    if not usable:
        return None
    # Larger pages never take more of a table: the largest that is not larger says most.
    best = max(usable, key=lambda one: (one.page_bytes, one.holds_bytes))
    if sum(by_page.values()) <= best.holds_bytes:
        return Held(True, best)
    if bound is Bound.ENTRIES and load.entries <= best.holds_bytes // best.page_bytes:
        return Held(True, best)
    exact = set(by_page) == {best.page_bytes}
    return Held(False if exact and best.met == DEVICE_TABLE else None, best)


class Remedy(NamedTuple):
    """What would bring a NIC's entries down to ``most``.

    less_bytes: so much less of the smallest pages. huge_bytes: what lies on base pages;
    huge_entries: all entries if that lay on 2 MiB pages. spread_entries: of the fullest NIC, were
    each process to use one NIC alone.
    """

    less_bytes: int
    huge_bytes: int
    huge_entries: int
    spread_entries: int

    def fits_on_huge_pages(self, most: int) -> bool:
        return bool(self.huge_bytes) and self.huge_entries <= most


def remedy(load: NicLoad, most_entries: int, nics: int) -> Remedy:
    """For a ``load`` over ``most_entries``; ``nics``: how many the launch uses."""
    by_page = load.by_page
    small = by_page.get(BASE_PAGE_BYTES, 0)
    huge = load.entries - small // BASE_PAGE_BYTES + -(-small // HUGE_PAGE_BYTES)
    least = min((page for page, size in by_page.items() if size), default=BASE_PAGE_BYTES)
    return Remedy(
        (load.entries - most_entries) * least,
        small,
        huge,
        _spread([one.entries for _, one in load.loads], nics),
    )


def _spread(entries: Iterable[int], nics: int) -> int:
    """The fullest of ``nics`` where the largest go first, each to the emptiest."""
    full = [0] * max(1, nics)
    for count in sorted(entries, reverse=True):
        full[full.index(min(full))] += count
    return max(full)
