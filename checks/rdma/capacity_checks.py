"""Checks of RDMA objects (rdma cgroup, device) and of registration (longest region, tables)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from checks.framework.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    Subject,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold
from checks.framework.needs import LaunchNeeds
from checks.framework.pages import Region
from checks.framework.problem import Problems
from checks.framework.units import (
    MIB,
    counted,
    format_bytes,
    format_need,
    format_page_size,
    or_more,
)
from checks.framework.unknown import Unknown, require
from checks.rdma.device_table import BASE_PAGE_BYTES, DEVICE_TABLE, MEMORY_KEYS, DeviceRow, Measured
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.per_device import (
    NO_DEVICE,
    judge_nics,
    judge_regions,
    rdma_launch,
    whichever_is_used,
)
from checks.rdma.registration import (
    NicLoad,
    Objects,
    Split,
    largest_region_bytes,
    nic_loads,
    objects_of,
    registration_of,
    table_row,
    takers,
)
from checks.rdma.use import Transport, Use, uses
from checks.rdma.verbs import CgroupLimit, RdmaCgroup

CHECKS = Problems()
NO_COUNT = "how many regions the launch registers is not known: "
# Over this share of a device's objects in use, something leaks or the host is crowded.
CROWDED_PERCENT = 80


@CHECKS("rdma.cgroup-limit", needs=rdma_launch)
def cgroup_limit(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether the rdma cgroup lets the launch open its devices and make its objects."""
    cgroups = unknown_finding("cgroup", "").require(rdma.cgroups)
    if not require(rdma.nics):
        return [skip(NO_DEVICE)]
    launch_uses = uses(rdma, needs)
    limited = [
        (nic, need, cgroup)
        for nic in rdma.present
        if (need := objects_of(nic, needs, launch_uses)).contexts
        for cgroup in cgroups
        if cgroup.limit(nic.name) != CgroupLimit(None, None)
    ]
    short = set()  # the devices that not all processes that would open them can open
    for nic, need, cgroup in limited:
        used = cgroup.in_use(nic.name)
        left = None if isinstance(used, Unknown) else _rest(cgroup.limit(nic.name), used).handles
        if left is not None and left < need.contexts:
            short.add(nic.name)
    findings = [
        _judge_cgroup(nic, need, cgroup, _finding_without_handle(nic, launch_uses, short))
        for nic, need, cgroup in limited
    ]
    return findings or [passed("cgroup", "no limit on any device used")]


def _finding_without_handle(nic: Nic, launch_uses: Iterable[Use], short: set[str]) -> Finding:
    """Return the worst finding for a process of the launch that gets no handle of ``nic``.

    Args:
        short: Names of the devices that have fewer handles left than processes need.
    """
    finding = passed(Subject(nic.name, "device")).warned(
        "opening the device fails with EAGAIN: a process without a handle goes on with "
        "its other devices"
    )
    for use in launch_uses:
        lost = short.union(lost_device.name for lost_device in use.devices.lost)
        if not takers(use, nic) or not lost.issuperset(use.devices.candidates):
            continue
        if use.devices.without is not Transport.TCP:
            text = "opening the device fails with EAGAIN, and there is no other device: setup fails"
            return finding.failed(text, consequence=None)
        finding = finding.failed(
            "opening the device fails with EAGAIN, and there is no other device: a "
            "process without a handle starts all the same, setup returns 0 and everything "
            "goes over TCP, without a message",
            consequence=Consequence.DEGRADED,
        )
    return finding


@or_unjudged
def _judge_cgroup(nic: Nic, need: Objects, cgroup: RdmaCgroup, refused: Finding) -> Finding:
    """Judge one cgroup's limit for a device.

    Args:
        refused: The finding if handles do not suffice.
    """
    # At start: what is certain. The providers of some devices make a few objects of their own.
    regions = 0 if isinstance(need.regions, Unknown) else need.regions
    start = regions + need.others
    finding = passed(
        nic.name,
        need=f"{need.contexts} handles, {start} objects at start, {start + need.queue_pairs} later",
        formula=f"{need.contexts} processes; {regions} memory regions + {need.others} protection "
        f"domains and completion queues; + {need.queue_pairs} queue pairs",
    )
    used, limit = finding.require(cgroup.in_use(nic.name)), cgroup.limit(nic.name)
    handles, objects = _rest(limit, used)
    limits = ["max" if most is None else str(most) for most in limit]
    line, wanted = (
        f"{nic.name} hca_handle={handles_word} hca_object={objects_word}"
        for handles_word, objects_word in (limits, ("max", "max"))
    )
    left = ["unlimited" if count is None else str(count) for count in (handles, objects)]
    in_use = f"hca_handle={used.handles} hca_object={used.objects}"
    current = Evidence(cgroup.file.replace("rdma.max", "rdma.current"), in_use)
    finding = finding._replace(
        have=f"{left[0]} handles, {left[1]} objects left",
        evidence=(Evidence(cgroup.file, line), current),
    )
    remedy = finding._replace(
        advice=f"write '{wanted}' to {cgroup.file} (on the host, as root)",
        settings=(Setting(Kind.CGROUP, cgroup.file, wanted, line),),
    )
    # A process whose handle is refused makes no objects: what is left for those that open it.
    opened = need.contexts if handles is None else min(handles, need.contexts)
    if objects is not None and objects * need.contexts < start * opened:
        text = "registering memory fails: 'Resource temporarily unavailable [11]', setup gives -600"
        return remedy.failed(text)
    if opened < need.contexts:
        return remedy._replace(
            status=refused.status, text=refused.text, consequence=refused.consequence
        )
    if objects is not None and objects < start + need.queue_pairs:
        text = "queue pairs to later peers may fail with 'Resource temporarily unavailable [11]'"
        return remedy.warned(text)
    if isinstance(need.regions, Unknown) and objects is not None:
        return finding.undecided(need.regions.of(NO_COUNT))
    return finding


def _rest(limit: CgroupLimit, used: CgroupLimit) -> CgroupLimit:
    """Return how much of a limit is left, 0 at least; None for a part without a limit."""
    pairs = zip(limit, used, strict=True)
    return CgroupLimit(
        *(None if most is None else max(0, most - (count or 0)) for most, count in pairs)
    )


@CHECKS("rdma.resources")
def resources(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether each device in use has memory regions and queue pairs left for the launch."""

    def judge(nic: Nic, launch_uses: Sequence[Use]) -> Finding:
        need = Objects(0, 0, 0, 0) if needs is None else objects_of(nic, needs, launch_uses)
        return _judge_resources(rdma, nic, need)

    return judge_nics(rdma, needs, judge)


@or_unjudged
def _judge_resources(rdma: RdmaFacts, nic: Nic, need: Objects) -> Finding:
    """Judge whether one device has room for the objects of the launch, and how full it is."""
    finding = passed(nic.name)
    kernel, limits = finding.require(rdma.kernel), finding.require(nic.verbs.limits)
    counts = kernel.resources.get(nic.name)
    if counts is None:
        return finding.undecided("the kernel does not count it")
    regions, pairs = counts.get("mr", 0), counts.get("qp", 0)
    most_of_each = f"max_mr {limits.max_mr} max_qp {limits.max_qp}"
    attributes = Evidence(f"ibv_query_device {nic.name}", most_of_each)
    finding = finding._replace(
        have=f"{regions} of {_bound_text(limits.max_mr)} memory regions, {pairs} of "
        f"{_bound_text(limits.max_qp)} queue pairs in use",
        need=f"{'unknown' if isinstance(need.regions, Unknown) else need.regions} regions, up to "
        f"{need.queue_pairs} queue pairs",
        evidence=(Evidence(f"rdma resource, {nic.name}", f"mr {regions} qp {pairs}"), attributes),
    )
    advice = "see 'rdma resource show mr' and 'show qp' for who holds them, and end those processes"
    met = [
        result.holds_regions
        for result in rdma.measured
        if result.device == nic.name and result.met == MEMORY_KEYS
    ]
    most = min([limits.max_mr] * (limits.max_mr > 0) + met, default=0)  # 0: no bound
    if most > 0 and not isinstance(need.regions, Unknown) and regions + need.regions > most:
        text = f"registering fails, and setup returns -600: the device has {most} regions in all"
        if regions and need.regions <= most:
            text += f"; {regions + need.regions - most} of those in use have to be freed"
        return finding.failed(text, advice)
    counted = (("memory regions", regions, limits.max_mr), ("queue pairs", pairs, limits.max_qp))
    crowded = [
        name for name, used, most in counted if most > 0 and used * 100 > most * CROWDED_PERCENT
    ]
    if crowded:
        text = f"over {CROWDED_PERCENT} % of the {' and '.join(crowded)} are in use"
        return finding.warned(text, advice)
    if 0 < limits.max_qp < pairs + need.queue_pairs:
        return finding.warned(
            "connections to later peers may fail: 'Failed to create QP: Cannot allocate memory'",
            "set MC_ENABLE_DEST_DEVICE_AFFINITY=1 on all hosts: one peer NIC for each",
            (Setting(Kind.ENVIRONMENT, "MC_ENABLE_DEST_DEVICE_AFFINITY", "1"),),
        )
    if isinstance(need.regions, Unknown):
        return finding.undecided(need.regions.of(NO_COUNT))
    return finding


def _bound_text(most: int) -> str:
    return str(most) if most > 0 else "unbounded"


HUGE_PAGE_BYTES = 2 * MIB


@CHECKS("rdma.region-too-large", needs=rdma_launch)
def region_too_large(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    return judge_regions(rdma, needs, _judge_length)


@or_unjudged
def _judge_length(name: str, regions: tuple[Region, ...], use: Use) -> Finding:
    """Judge whether each region of the process ``name`` fits into one registration, or is split."""
    longest = max(regions, key=lambda region: region.bytes, default=Region("no memory", 0, 0))
    finding = passed(name, need=format_bytes(longest.bytes, f"{{}} in one region ({longest.what})"))
    largest = finding.require(largest_region_bytes(use.nics, use.environment))
    limits = {n.name: f"max_mr_size {require(n.verbs.limits).max_mr_size_bytes}" for n in use.nics}
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
        return finding.undecided(f"{listed}: {text}")
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


@CHECKS("rdma.table-capacity", needs=rdma_launch)
def table_capacity(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    def judge(launch_uses: Sequence[Use]) -> list[Finding]:
        loads = nic_loads(rdma, launch_uses)
        return [_judge_table(rdma, load, len(loads)) for load in loads]

    return fold(whichever_is_used(uses(rdma, needs), judge))


@or_unjudged
def _judge_table(rdma: RdmaFacts, load: NicLoad, nics: int) -> Finding:
    """Judge whether one NIC's translation table holds all regions that the launch registers.

    Args:
        nics: The number of NICs in use, for the advice to spread processes over them.
    """
    finding = passed(load.nic.name)
    row = finding.require(table_row(load.nic))
    if row is not None and not row.holds_entries:
        return finding._replace(
            have=f"no limit of its own ({row.name})",
            need=format_bytes(load.bytes) if load.unknown is None else "unknown",
            evidence=_evidence(row),
        )
    judged = _judge_bound(rdma, finding, load, row, nics)
    if load.unknown is None or judged.status in (Status.FAIL, Status.UNKNOWN):
        return judged
    # What is known may be too much by itself; that it is not says nothing of the whole.
    judged = judged._replace(need=or_more(judged.need))
    return judged if judged.status is Status.WARN else judged.undecided(load.unknown)


def _judge_bound(
    rdma: RdmaFacts, finding: Finding, load: NicLoad, row: DeviceRow | None, nics: int
) -> Finding:
    """Judge a NIC's load by a measurement on this host, or else by the table of devices.

    Args:
        finding: To be completed.
        row: Of the table, None if the device is not in it: the result is then unknown unless a
            measurement tells it.
        nics: See ``_judge_table``.
    """
    need = format_bytes(load.bytes, f"{{}}, {load.entries} entries")
    finding = finding._replace(need=need, formula=_formula(load))
    least = min((page for page, size in load.by_page.items() if size), default=BASE_PAGE_BYTES)
    name = load.nic.name
    mine = [each for each in rdma.measured if each.device == name and each.page_bytes <= least]
    if mine:
        # Larger pages never take more of a table: the largest that is not larger says most.
        best = max(mine, key=lambda each: (each.page_bytes, each.holds_bytes))
        fits = _holds(load, best, row)
        if fits is not None:
            return _judge_by_measurement(finding, load, best, fits, nics)
    if row is None:
        text = f"how much a device of {load.nic.provider} can hold is unknown: only a measurement "
        advice = f"run: mooncake-preflight measure --only registration --device {shlex.quote(name)}"
        return finding.undecided(f"{text}tells it", advice=advice)
    return _judge_by_table(finding, load, row, nics)


def _formula(load: NicLoad) -> str:
    """Return the load as text: ``2 processes: 60.00 GiB / 4 KiB + 30.00 GiB / 2 MiB``."""
    terms = [
        f"{format_bytes(size)} / {format_page_size(page)}"
        for page, size in sorted(load.by_page.items())
        if size
    ]
    count = len(load.loads)
    return f"{count} process{'es' if count > 1 else ''}: {' + '.join(terms) or '0 B'}"


def _evidence(row: DeviceRow) -> tuple[Evidence, ...]:
    return tuple(Evidence(f"{row.name}, {row.confidence}", text) for text in row.evidence)


def _holds(load: NicLoad, measured: Measured, row: DeviceRow | None) -> bool | None:
    """Tell whether a measurement shows that a device holds a load; None if it shows neither.

    It shows that a load is too large only if all pages have the measured size, and the device's
    table was full.

    Args:
        row: Of the table of devices, None if the device is not in it.
    """
    by_page = {page: size for page, size in load.by_page.items() if size}
    if sum(by_page.values()) <= measured.holds_bytes:
        return True
    # A row that is judged by what was measured has a table of entries.
    if row is not None and load.entries <= measured.holds_bytes // measured.page_bytes:
        return True
    exact = set(by_page) == {measured.page_bytes}
    return False if exact and measured.met == DEVICE_TABLE else None


def _judge_by_measurement(
    finding: Finding, load: NicLoad, measured: Measured, fits: bool, nics: int
) -> Finding:
    """Judge a load by a measurement on this host.

    Args:
        fits: Whether the device can hold the load.
    """
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
    return _advise(finding.failed(text), load, measured.holds_bytes // measured.page_bytes, nics)


def _judge_by_table(finding: Finding, load: NicLoad, row: DeviceRow, nics: int) -> Finding:
    """Judge a load by the table of devices.

    Warn about a load larger than the row vouches for, and tell whether users reported success or
    failure at that size.
    """
    have = counted(row.holds_entries, "entries")
    finding = finding._replace(have=have, evidence=_evidence(row))
    if load.entries <= row.holds_entries:
        return finding
    if row.failed_entries and load.entries >= row.failed_entries:
        seen = "users have reported failures at this size"
    elif load.entries <= row.worked_entries:
        seen = "one user registered as much; nothing guarantees it"
    else:
        seen = "no report of a success at this size is known"
    error = "Input/output error [5]" if row.errno == 5 else "Cannot allocate memory [12]"
    text = f"registration may fail with '{error}': {seen}"
    return _advise(finding.warned(text), load, row.holds_entries, nics)


def _advise(finding: Finding, load: NicLoad, most: int, nics: int) -> Finding:
    """Add the advice to bring a NIC's entries down to ``most``: huge pages, less memory, or
    processes that use one of the ``nics`` NICs each.
    """
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
