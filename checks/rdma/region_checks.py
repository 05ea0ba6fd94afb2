"""Checks of what the launch registers: no region too long for a device, and room in its tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, or_unjudged, passed
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds
from checks.base.pages import Region
from checks.base.units import MIB, Quantity, counted, format_bytes, format_need, format_page_size
from checks.base.unknown import known
from checks.rdma.device_table import BASE_PAGE_BYTES, DEVICE_TABLE, DeviceRow, Measured, TableBound
from checks.rdma.facts import RdmaFacts
from checks.rdma.per_device import judge_regions, rdma_launch, whichever_is_used
from checks.rdma.registration import (
    NicLoad,
    Split,
    largest_region_bytes,
    nic_loads,
    registration_of,
    row_of,
)
from checks.rdma.use import Use, uses

CHECKS = CheckSet()
HUGE_PAGE_BYTES = 2 * MIB


@CHECKS.check("rdma.region-too-large", rdma_launch)
def region_too_large(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    return judge_regions(rdma, needs, _judge_length)


@or_unjudged
def _judge_length(name: str, regions: tuple[Region, ...], use: Use) -> Finding:
    """Judge whether each memory region fits into one registration of its devices, or is split."""
    longest = max(regions, key=lambda region: region.bytes, default=Region("no memory", 0, 0))
    finding = passed(name, need=format_bytes(longest.bytes, f"{{}} in one region ({longest.what})"))
    largest = finding.known(largest_region_bytes(use.nics, use.environment))
    limits = {n.name: f"max_mr_size {known(n.verbs.limits).max_mr_size_bytes}" for n in use.nics}
    finding = finding._replace(
        have=format_bytes(largest, "{} in one registration"),
        need=format_need(longest.bytes, largest, f"{{}} in one region ({longest.what})"),
        evidence=tuple(Evidence(f"ibv_query_device {nic}", at) for nic, at in limits.items()),
    )
    names: dict[Split, dict[str, None]] = {}
    pieces = 0
    for region in regions:
        registered = registration_of(region, largest, use.release)
        names.setdefault(registered.split, {})[region.what] = None
        pieces += registered.keys if registered.split is Split.PIECES else 0
    worst = next((split for split in _WORST_SPLITS if split in names), Split.WHOLE)
    listed = ", ".join(names.get(worst, ()))
    if worst is Split.REFUSED:
        variable = "MC_MAX_MR_SIZE"
        now = use.environment.get(variable)
        return finding.failed(
            f"{listed}: the device's limit is below one huge page, so registration fails (-600)",
            f"unset {variable}, or use smaller pages",
            () if now is None else (Setting(Kind.ENVIRONMENT, variable, "", now),),
        )
    if worst is Split.UNTOLD:
        text = "whether this Mooncake splits it is unknown, because its version is unknown"
        return finding.unknown(f"{listed}: {text}")
    if worst is Split.CUT_OFF:
        over = max(longest.bytes - largest, 0)
        return finding.failed(
            f"{listed}: registered up to {format_bytes(largest)} only, transfers beyond fail",
            "take Mooncake 0.3.13 or newer, which registers in pieces, or make each region "
            f"{format_bytes(largest)} at most ({format_bytes(over)} less)",
        )
    if worst is Split.PIECES:
        return finding._replace(formula=f"{listed}: {pieces} pieces on each NIC")
    return finding


_WORST_SPLITS = (Split.REFUSED, Split.UNTOLD, Split.CUT_OFF, Split.PIECES)


@CHECKS.check("rdma.table-capacity", rdma_launch)
def table_capacity(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    def judge(launch_uses: Sequence[Use]) -> list[Finding]:
        loads = nic_loads(rdma, launch_uses)
        return [_judge_table(rdma, load, len(loads)) for load in loads]

    return fold(whichever_is_used(uses(rdma, needs), judge))


@or_unjudged
def _judge_table(rdma: RdmaFacts, load: NicLoad, nics: int) -> Finding:
    """Judge whether one NIC's translation table holds all regions that the launch registers."""
    finding = passed(load.nic.name)
    row = finding.known(row_of(load.nic))
    if row is not None and row.table.bound is TableBound.HOST_MEMORY:
        return finding._replace(
            have=f"no limit of its own ({row.name})",
            need=format_bytes(load.bytes) if load.unknown is None else "unknown",
            evidence=_evidence(row),
        )
    judged = _judge_bound(rdma, finding, load, row, nics)
    if load.unknown is None or judged.status in (Status.FAIL, Status.UNKNOWN):
        return judged
    # What is known may be too much by itself; that it is not says nothing of the whole.
    need = Quantity(f"{judged.need} or more", load.bytes, "bytes", least=True)
    if judged.status is Status.WARN:
        return judged._replace(need=need)
    return judged.unknown(load.unknown, need=need)


def _judge_bound(
    rdma: RdmaFacts, finding: Finding, load: NicLoad, row: DeviceRow | None, nics: int
) -> Finding:
    """Hold the entries against what was measured here, else against the table of devices."""
    need = format_bytes(load.bytes, f"{{}}, {load.entries} entries")
    finding = finding._replace(need=need, formula=_formula(load))
    bound = TableBound.UNTOLD if row is None else row.table.bound
    least = min((page for page, size in load.by_page.items() if size), default=BASE_PAGE_BYTES)
    name = load.nic.name
    mine = [each for each in rdma.measured if each.device == name and each.page_bytes <= least]
    if mine:
        # Larger pages never take more of a table: the largest that is not larger says most.
        best = max(mine, key=lambda each: (each.page_bytes, each.holds_bytes))
        fits = _holds(load, best, bound)
        if fits is not None:
            return _as_measured(finding, load, best, fits, nics)
    if row is None or bound is TableBound.UNTOLD:
        what = row.name if row is not None else f"{load.nic.provider}, which is no known device,"
        text = f"how much {what} can hold is unknown: only a measurement tells it"
        advice = "run: mooncake-preflight measure --only registration --device "
        advice += shlex.quote(name)
        return finding.unknown(text, evidence=() if row is None else _evidence(row), advice=advice)
    return _as_the_table_has_it(finding, load, row, nics)


def _formula(load: NicLoad) -> str:
    """Return ``2 processes: 60.00 GiB / 4 KiB + 30.00 GiB / 2 MiB``."""
    terms = [
        f"{format_bytes(size)} / {format_page_size(page)}"
        for page, size in sorted(load.by_page.items())
        if size
    ]
    count = len(load.loads)
    return f"{count} process{'es' if count > 1 else ''}: {' + '.join(terms) or '0 B'}"


def _evidence(row: DeviceRow) -> tuple[Evidence, ...]:
    source = row.confidence.value
    return tuple(Evidence(f"{row.name}, {source}", text) for text in row.evidence)


def _holds(load: NicLoad, measured: Measured, bound: TableBound) -> bool | None:
    """Tell whether a device was measured to hold a load; None if that was not measured."""
    by_page = {page: size for page, size in load.by_page.items() if size}
    if sum(by_page.values()) <= measured.holds_bytes:
        return True
    if bound is TableBound.ENTRIES and load.entries <= measured.holds_bytes // measured.page_bytes:
        return True
    exact = set(by_page) == {measured.page_bytes}
    return False if exact and measured.met == DEVICE_TABLE else None


def _as_measured(
    finding: Finding, load: NicLoad, measured: Measured, fits: bool, nics: int
) -> Finding:
    """Judge by a measurement on this host."""
    page = format_page_size(measured.page_bytes)
    source = measured.file or "mooncake-preflight measure --only registration"
    met = f"{measured.holds_regions} regions, then: {measured.met or 'as much as was asked'}"
    finding = finding._replace(
        have=format_bytes(measured.holds_bytes, f"{{}} of {page} pages, measured here"),
        evidence=(Evidence(source, met),),
    )
    if fits:
        return finding
    text = "registration fails: this device was measured to hold less"
    return _over(finding.failed(text), load, measured.holds_bytes // measured.page_bytes, nics)


def _as_the_table_has_it(finding: Finding, load: NicLoad, row: DeviceRow, nics: int) -> Finding:
    """Judge by the table of devices: what is vouched for, worked, or failed for others."""
    table = row.table
    have = counted(table.holds_entries, "entries")
    finding = finding._replace(have=have, evidence=_evidence(row))
    if load.entries <= table.holds_entries:
        return finding
    if table.failed_entries and load.entries >= table.failed_entries:
        seen = "users have reported failures at this size"
    elif load.entries <= table.worked_entries:
        seen = "one user registered as much; nothing guarantees it"
    else:
        seen = "no report of a success at this size is known"
    error = "Input/output error [5]" if row.errno == 5 else "Cannot allocate memory [12]"
    text = f"registration may fail with '{error}': {seen}"
    return _over(finding.warned(text), load, table.holds_entries, nics)


def _over(finding: Finding, load: NicLoad, most: int, nics: int) -> Finding:
    """Return the finding with advice, computed, that brings the NIC's entries down to ``most``."""
    ways = []
    settings: tuple[Setting, ...] = ()
    small = load.by_page.get(BASE_PAGE_BYTES, 0)
    on_huge_pages = load.entries - small // BASE_PAGE_BYTES + -(-small // HUGE_PAGE_BYTES)
    if small and on_huge_pages <= most:
        ways.append(
            f"move the {format_bytes(small)} of 4 KiB pages to huge pages "
            f"({on_huge_pages} entries in all)"
        )
        settings = (Setting(Kind.ENVIRONMENT, "MC_STORE_USE_HUGEPAGE", "1"),)
    least = min((page for page, size in load.by_page.items() if size), default=BASE_PAGE_BYTES)
    less = format_bytes((load.entries - most) * least)
    ways.append(f"register {less} less on this NIC")
    # Each process on one NIC alone: the largest first, each to the emptiest.
    full = [0] * max(1, nics)
    for entries in sorted((load_.entries for _, load_ in load.loads), reverse=True):
        full[full.index(min(full))] += entries
    if max(full) <= most:
        ways.append(
            f"let each of the {len(load.loads)} processes name one of the {nics} NICs "
            f"({max(full)} entries on the fullest)"
        )
    return finding._replace(advice=", or ".join(ways), settings=settings)
