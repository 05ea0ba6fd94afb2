"""Will the objects that the launch makes fit into the rdma cgroup, and into the device?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet
from checks.base.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    passed,
    skip,
    unknown,
)
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.judging import NO_DEVICE, nics_of, rdma_launch, rdma_launch_or_host, users
from checks.rdma.limits import Budget, RdmaCgroup
from checks.rdma.objects import Objects, objects_of, takers
from checks.rdma.registration_measured import MEMORY_KEYS
from checks.rdma.use import Transport, Use, uses

CHECKS = CheckSet()
# Over this share of a device's objects in use, something leaks or the host is crowded.
CROWDED_PERCENT = 80


@CHECKS.check("rdma.cgroup-limit", rdma_launch)
def cgroup_limit(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    cgroups = rdma.cgroups
    if isinstance(cgroups, Unknown):
        return [unknown("cgroup", cgroups.reason)]
    if not rdma.present:
        return [skip(NO_DEVICE)]
    found = uses(rdma, needs)
    limited: list[tuple[Nic, Objects, RdmaCgroup, Budget]] = []
    for nic in rdma.present:
        need = objects_of(nic, rdma, needs, found)
        for cgroup in cgroups:
            limit = cgroup.limits.get(nic.name)
            if limit and need.contexts and limit != Budget(None, None):
                limited.append((nic, need, cgroup, limit))
    short = {nic.name for nic, need, cgroup, limit in limited if _is_short(nic, need, cgroup)}
    findings = [
        _judge_cgroup(nic, need, cgroup, limit, _refused(nic, found, short))
        for nic, need, cgroup, limit in limited
    ]
    return findings or [passed("cgroup", "no limit on any device used")]


def _is_short(nic: Nic, need: Objects, cgroup: RdmaCgroup) -> bool:
    """Whether not all processes that would open ``nic`` can."""
    if isinstance(cgroup.used, Unknown):
        return False
    used = cgroup.used.get(nic.name, Budget(0, 0))
    left = _left(cgroup.limits[nic.name].handles, used.handles)
    return left is not None and left < need.contexts


def _refused(nic: Nic, found: Iterable[Use], short: set[str]) -> Finding:
    """What becomes of the processes that get no handle of ``nic``, the worst of it.

    short: the devices of which some process gets none.
    """
    finding = passed(nic.name).warned(
        "opening the device fails with EAGAIN: a process that gets no handle leaves it out, "
        "and goes on with those that are left"
    )
    for use in found:
        lost = short.union(one.name for one in use.devices.lost)
        if not takers(use, nic) or not lost.issuperset(use.devices.candidates):
            continue
        finding = finding._replace(status=Status.FAIL)
        if use.devices.without is not Transport.TCP:
            text = "opening the device fails with EAGAIN, none other is left: setup fails"
            return finding._replace(text=text, consequence=None)
        finding = finding._replace(
            text="opening the device fails with EAGAIN, none other is left: a process that gets no "
            "handle starts all the same, setup returns 0 and everything goes over TCP, without a "
            "word",
            consequence=Consequence.DEGRADED,
        )
    return finding


def _judge_cgroup(
    nic: Nic, need: Objects, cgroup: RdmaCgroup, limit: Budget, refused: Finding
) -> Finding:
    """``refused``: what it comes to where the handles do not suffice."""
    # At start: what is certain. The providers of some devices make a few objects of their own.
    regions = need.regions or 0
    start = regions + need.others
    finding = passed(
        nic.name,
        need=f"{need.contexts} handles, {start} objects at start, {start + need.queue_pairs} later",
        formula=f"{need.contexts} processes; {regions} memory regions + {need.others} protection "
        f"domains and completion queues; + {need.queue_pairs} queue pairs",
    )
    if isinstance(cgroup.used, Unknown):
        return finding.unknown(cgroup.used.reason)
    used = cgroup.used.get(nic.name, Budget(0, 0))
    handles, objects = _left(limit.handles, used.handles), _left(limit.objects, used.objects)
    line = f"{nic.name} hca_handle={_written(limit.handles)} hca_object={_written(limit.objects)}"
    wanted = f"{nic.name} hca_handle=max hca_object=max"
    finding = finding._replace(
        have=f"{_shown(handles)} handles, {_shown(objects)} objects left",
        evidence=(
            Evidence(cgroup.file, line),
            Evidence(
                cgroup.file.replace("rdma.max", "rdma.current"),
                f"hca_handle={used.handles} hca_object={used.objects}",
            ),
        ),
    )
    remedy = finding._replace(
        advice=f"write '{wanted}' to {cgroup.file} (on the host, as root)",
        settings=(Setting(Kind.CGROUP, cgroup.file, wanted, line),),
    )
    opens = handles is None or handles >= need.contexts
    # A process whose handle is refused makes no objects: what is left for those that open it.
    opened = need.contexts if handles is None else min(handles, need.contexts)
    if objects is not None and objects * need.contexts < start * opened:
        text = "registering memory fails: 'Resource temporarily unavailable [11]', setup gives -600"
        return remedy.failed(text)
    if not opens:
        return remedy._replace(
            status=refused.status, text=refused.text, consequence=refused.consequence
        )
    if objects is not None and objects < start + need.queue_pairs:
        text = "queue pairs to later peers may fail with 'Resource temporarily unavailable [11]'"
        return remedy.warned(text)
    if need.regions is None and objects is not None:
        text = "how many regions the launch registers is not known"
        return finding.unknown(text)
    return finding


def _left(limit: int | None, used: int | None) -> int | None:
    return None if limit is None else max(0, limit - (used or 0))


def _written(limit: int | None) -> str:
    return "max" if limit is None else str(limit)


def _shown(left: int | None) -> str:
    return "unlimited" if left is None else str(left)


@CHECKS.check("rdma.resources", rdma_launch_or_host)
def resources(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    if needs is None:
        nothing = Objects(0, 0, 0, 0)
        found = [_judge_resources(rdma, nic, nothing) for nic in rdma.present]
        return found or [skip(NO_DEVICE)]
    launched = uses(rdma, needs)
    findings: list[Finding] = []
    used: dict[str, Nic] = {}
    for use, instead in users(launched):
        if instead is not None:
            findings.append(instead)
        used |= {nic.name: nic for nic in nics_of(rdma, use)}
    for nic in used.values():
        need = objects_of(nic, rdma, needs, launched)
        findings.append(_judge_resources(rdma, nic, need))
    return findings


def _judge_resources(rdma: RdmaFacts, nic: Nic, need: Objects) -> Finding:
    finding = passed(nic.name)
    kernel, limits = rdma.kernel, nic.verbs.limits
    for fact in (kernel, limits):
        if isinstance(fact, Unknown):
            return finding.unknown(fact.reason)
    assert not isinstance(kernel, Unknown)
    assert not isinstance(limits, Unknown)
    counts = kernel.resources.get(nic.name)
    if counts is None:
        return finding.unknown(f"the kernel counts no {nic.name}")
    regions, pairs = counts.get("mr", 0), counts.get("qp", 0)
    finding = finding._replace(
        have=f"{regions} of {_bound(limits.max_mr)} memory regions, {pairs} of "
        f"{_bound(limits.max_qp)} queue pairs in use",
        need=f"{need.regions if need.regions is not None else 'unknown'} regions, up to "
        f"{need.queue_pairs} queue pairs",
        evidence=(
            Evidence(f"rdma resource, {nic.name}", f"mr {regions} qp {pairs}"),
            Evidence(
                f"ibv_query_device {nic.name}", f"max_mr {limits.max_mr} max_qp {limits.max_qp}"
            ),
        ),
    )
    advice = "see 'rdma resource show mr' and 'show qp' for who holds them, and end those processes"
    most = _most_regions(rdma, nic, limits.max_mr)
    if most > 0 and need.regions is not None and regions + need.regions > most:
        text = f"registering memory fails, and setup returns -600: {most} regions are all it has"
        if regions and need.regions <= most:
            text += f"; {regions + need.regions - most} of those in use must go"
        return finding.failed(text, advice)
    crowded = [
        name
        for name, used, most in (
            ("memory regions", regions, limits.max_mr),
            ("queue pairs", pairs, limits.max_qp),
        )
        if most > 0 and used * 100 > most * CROWDED_PERCENT
    ]
    if crowded:
        text = f"over {CROWDED_PERCENT} % of the {' and '.join(crowded)} are in use"
        return finding.warned(text, advice)
    if 0 < limits.max_qp < pairs + need.queue_pairs:
        text = "connections to later peers may fail: 'Failed to create QP: Cannot allocate memory'"
        return finding.warned(
            text,
            "set MC_ENABLE_DEST_DEVICE_AFFINITY=1 on all hosts: one peer NIC for each",
            (Setting(Kind.ENVIRONMENT, "MC_ENABLE_DEST_DEVICE_AFFINITY", "1"),),
        )
    if need.regions is None:
        text = "how many regions the launch registers is not known"
        return finding.unknown(text)
    return finding


def _most_regions(rdma: RdmaFacts, nic: Nic, told: int) -> int:
    """max_mr, or fewer where the probe met the device's own bound before that; 0: no bound."""
    met = [
        one.holds_regions
        for one in rdma.measured
        if one.device == nic.name and one.met == MEMORY_KEYS
    ]
    return min([told] * (told > 0) + met, default=0)


def _bound(most: int) -> str:
    return str(most) if most > 0 else "unbounded"
