"""Can each piece of memory be registered as it is: its length, and the device's tables?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, Region
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.rdma.device_table import Bound, DeviceRow
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.judging import Registered, judge_regions, rdma_launch, users
from checks.rdma.registration import Plan, Split, largest_region_bytes, plan_region
from checks.rdma.registration_sums import (
    Held,
    NicLoad,
    held_as_measured,
    nic_loads,
    remedy,
    row_of,
)
from checks.rdma.use import uses

CHECKS = CheckSet()


@CHECKS.check("rdma.region-too-large", rdma_launch)
def region_too_large(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    return judge_regions(rdma, needs, _judge_length)


def _judge_length(memory: Registered) -> Finding:
    regions = memory.regions
    longest = max(regions, key=lambda region: region.bytes, default=Region("no memory", 0, 0))
    finding = passed(
        memory.process.name, need=f"{format_bytes(longest.bytes)} in one region ({longest.what})"
    )
    largest = largest_region_bytes(memory.nics, memory.environment)
    if isinstance(largest, Unknown):
        return finding.unknown(largest.reason)
    finding = finding._replace(
        have=f"{format_bytes(largest)} in one registration",
        evidence=tuple(_limit_of(nic) for nic in memory.nics),
    )
    plans = [(region, plan_region(region, largest, memory.release)) for region in regions]
    by_split = {plan.split: (region, plan) for region, plan in reversed(plans)}
    over = max(longest.bytes - largest, 0)
    advice = (
        "take Mooncake 0.3.13 or newer, which registers in pieces, or make each region "
        f"{format_bytes(largest)} at most ({format_bytes(over)} less)"
    )
    if Split.REFUSED in by_split:
        return _refused(finding, memory, _names(plans, Split.REFUSED))
    if Split.UNTOLD in by_split:
        names = _names(plans, Split.UNTOLD)
        text = f"{names}: whether this Mooncake splits it is not known: its version is not"
        return finding.unknown(text)
    if Split.CUT_OFF in by_split:
        names = _names(plans, Split.CUT_OFF)
        text = f"{names}: cut off at {format_bytes(largest)}, and peers fail behind that"
        return finding.failed(text, advice)
    if Split.PIECES in by_split:
        count = sum(plan.keys for _, plan in plans if plan.split is Split.PIECES)
        formula = f"{_names(plans, Split.PIECES)}: {count} pieces on each NIC"
        return finding._replace(formula=formula)
    return finding


def _names(plans: list[tuple[Region, Plan]], split: Split) -> str:
    return ", ".join(dict.fromkeys(region.what for region, plan in plans if plan.split is split))


def _refused(finding: Finding, memory: Registered, names: str) -> Finding:
    text = f"{names}: the limit is below one huge page, so registration is refused (-600)"
    settings: tuple[Setting, ...] = ()
    if "MC_MAX_MR_SIZE" in memory.environment:
        now = memory.environment["MC_MAX_MR_SIZE"]
        settings = (Setting(Kind.ENVIRONMENT, "MC_MAX_MR_SIZE", "", now),)
    advice = "take MC_MAX_MR_SIZE away, or use smaller pages"
    return finding.failed(text, advice, settings)


def _limit_of(nic: Nic) -> Evidence:
    limits = nic.verbs.limits
    value = "unknown" if isinstance(limits, Unknown) else str(limits.max_mr_size_bytes)
    return Evidence(f"ibv_query_device {nic.name}", f"max_mr_size {value}")


@CHECKS.check("rdma.table-capacity", rdma_launch)
def table_capacity(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    found = uses(rdma, needs)
    findings = [instead for _, instead in users(found) if instead is not None]
    loads = nic_loads(rdma, needs, found)
    findings += [_judge_table(rdma, load, len(loads)) for load in loads]
    return fold(findings)


def _judge_table(rdma: RdmaFacts, load: NicLoad, nics: int) -> Finding:
    finding = passed(load.nic.name)
    row = row_of(load.nic)
    if isinstance(row, Unknown):
        return finding.unknown(row.reason)
    if row is not None and row.table.bound is Bound.HOST_MEMORY:
        return finding._replace(
            have=f"no bound of its own ({row.name})",
            need=format_bytes(load.bytes) if load.unknown is None else "unknown",
            evidence=_evidence(row),
        )
    judged = _judge_bound(rdma, finding, load, row, nics)
    if load.unknown is None or judged.status in (Status.FAIL, Status.UNKNOWN):
        return judged
    # What is known may be too much by itself; that it is not says nothing of the whole.
    need = f"{judged.need} and more"
    if judged.status is Status.WARN:
        return judged._replace(need=need)
    return judged.unknown(load.unknown.reason, need=need)


def _judge_bound(
    rdma: RdmaFacts, finding: Finding, load: NicLoad, row: DeviceRow | None, nics: int
) -> Finding:
    finding = finding._replace(need=_need(load), formula=_formula(load))
    bound = Bound.UNTOLD if row is None else row.table.bound
    held = held_as_measured(load, rdma.measured, bound)
    if held is not None and held.fits is not None:
        return _as_measured(finding, load, held, nics)
    if row is None or bound is Bound.UNTOLD:
        what = row.name if row is not None else f"{load.nic.provider}, which is no known device,"
        text = f"how much {what} can hold is not known, and nothing tells it but trying"
        advice = f"run: mooncake-preflight probe registration --device {load.nic.name}"
        evidence = () if row is None else _evidence(row)
        return finding.unknown(text, evidence=evidence, advice=advice)
    return _as_the_table_has_it(finding, load, row, nics)


def _need(load: NicLoad) -> str:
    return f"{format_bytes(load.bytes)}, {load.entries} entries"


def _formula(load: NicLoad) -> str:
    """``2 processes: 60.00 GiB / 4 KiB + 30.00 GiB / 2 MiB``."""
    terms = [
        f"{format_bytes(size)} / {format_page_size(page)}"
        for page, size in sorted(load.by_page.items())
        if size
    ]
    count = len(load.loads)
    return f"{count} process{'es' if count > 1 else ''}: {' + '.join(terms) or '0 B'}"


def _evidence(row: DeviceRow) -> tuple[Evidence, ...]:
    told = row.confidence.value
    return tuple(Evidence(f"{row.name}, {told}", text) for text in row.evidence)


def _as_measured(finding: Finding, load: NicLoad, held: Held, nics: int) -> Finding:
    by = held.by
    page = format_page_size(by.page_bytes)
    finding = finding._replace(
        have=f"{format_bytes(by.holds_bytes)} of {page} pages, measured here",
        evidence=(
            Evidence(
                by.file or "mooncake-preflight probe registration",
                f"{by.holds_regions} regions, then: {by.met or 'as much as was asked'}",
            ),
        ),
    )
    if held.fits:
        return finding
    most = by.holds_bytes // by.page_bytes
    return _over(finding._replace(status=Status.FAIL), load, most, nics)._replace(
        text="registration fails: this device was measured to hold less"
    )


def _as_the_table_has_it(finding: Finding, load: NicLoad, row: DeviceRow, nics: int) -> Finding:
    table = row.table
    finding = finding._replace(have=f"{table.holds_entries} entries", evidence=_evidence(row))
    if load.entries <= table.holds_entries:
        return finding
    if table.failed_entries and load.entries >= table.failed_entries:
        seen = "as much has failed for others"
    elif load.entries <= table.worked_entries:
        seen = "as much has worked for one user, and nothing promises it"
    else:
        seen = "nobody is known to have had as much"
    error = "Input/output error [5]" if row.errno == 5 else "Cannot allocate memory [12]"
    return _over(finding._replace(status=Status.WARN), load, table.holds_entries, nics)._replace(
        text=f"registration may fail with '{error}': {seen}"
    )


def _over(finding: Finding, load: NicLoad, most: int, nics: int) -> Finding:
    """With what would bring the NIC's sum down, each computed."""
    found = remedy(load, most, nics)
    ways = []
    settings: tuple[Setting, ...] = ()
    if found.fits_on_huge_pages(most):
        ways.append(
            f"put the {format_bytes(found.huge_bytes)} on 4 KiB pages on huge pages "
            f"({found.huge_entries} entries in all)"
        )
        settings = (Setting(Kind.ENVIRONMENT, "MC_STORE_USE_HUGEPAGE", "1"),)
    ways.append(f"register {format_bytes(found.less_bytes)} less on this NIC")
    if found.spread_entries <= most:
        ways.append(
            f"let each of the {len(load.loads)} processes name one of the {nics} NICs "
            f"({found.spread_entries} entries on the fullest)"
        )
    return finding._replace(advice=", or ".join(ways), settings=settings)
