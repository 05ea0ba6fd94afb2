"""Checks of the RDMA objects that the launch makes: do the rdma cgroup and the device have them?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checks.base.check import CheckSet, any_launch
from checks.base.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Subject,
    or_unjudged,
    passed,
    skip,
    unknown,
)
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown, known
from checks.rdma.device_table import MEMORY_KEYS
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.per_device import NO_DEVICE, judge_nics, rdma_launch
from checks.rdma.registration import Objects, objects_of, takers
from checks.rdma.use import Transport, Use, uses
from checks.rdma.verbs import CgroupLimit, RdmaCgroup

CHECKS = CheckSet()
NO_COUNT = "how many regions the launch registers is not known: "
# Over this share of a device's objects in use, something leaks or the host is crowded.
CROWDED_PERCENT = 80


@CHECKS.check("rdma.cgroup-limit", rdma_launch)
def cgroup_limit(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether the rdma cgroup lets the launch open its devices and make its objects."""
    cgroups = unknown("cgroup", "").known(rdma.cgroups)
    if not known(rdma.nics):
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
        used = cgroup.use(nic.name)
        left = None if isinstance(used, Unknown) else _left(cgroup.limit(nic.name), used).handles
        if left is not None and left < need.contexts:
            short.add(nic.name)
    findings = [
        _judge_cgroup(nic, need, cgroup, _refused(nic, launch_uses, short))
        for nic, need, cgroup in limited
    ]
    return findings or [passed("cgroup", "no limit on any device used")]


def _refused(nic: Nic, launch_uses: Iterable[Use], short: set[str]) -> Finding:
    """Return the worst for a process without a handle of ``nic``. short: devices with too few."""
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
    """Judge one cgroup's limit for a device. refused: the finding if handles do not suffice."""
    # At start: what is certain. The providers of some devices make a few objects of their own.
    regions = 0 if isinstance(need.regions, Unknown) else need.regions
    start = regions + need.others
    finding = passed(
        nic.name,
        need=f"{need.contexts} handles, {start} objects at start, {start + need.queue_pairs} later",
        formula=f"{need.contexts} processes; {regions} memory regions + {need.others} protection "
        f"domains and completion queues; + {need.queue_pairs} queue pairs",
    )
    used, limit = finding.known(cgroup.use(nic.name)), cgroup.limit(nic.name)
    handles, objects = _left(limit, used)
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
        return finding.unknown(need.regions.of(NO_COUNT))
    return finding


def _left(limit: CgroupLimit, used: CgroupLimit) -> CgroupLimit:
    """Subtract the use from a limit; None: no limit."""
    pairs = zip(limit, used, strict=True)
    return CgroupLimit(
        *(None if most is None else max(0, most - (count or 0)) for most, count in pairs)
    )


@CHECKS.check("rdma.resources", any_launch)
def resources(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether a device has memory regions and queue pairs left for the launch."""

    def judge(nic: Nic, launch_uses: Sequence[Use]) -> Finding:
        need = Objects(0, 0, 0, 0) if needs is None else objects_of(nic, needs, launch_uses)
        return _judge_resources(rdma, nic, need)

    return judge_nics(rdma, needs, judge)


@or_unjudged
def _judge_resources(rdma: RdmaFacts, nic: Nic, need: Objects) -> Finding:
    """Hold the regions and queue pairs that the launch makes against those that are left."""
    finding = passed(nic.name)
    kernel, limits = finding.known(rdma.kernel), finding.known(nic.verbs.limits)
    counts = kernel.resources.get(nic.name)
    if counts is None:
        return finding.unknown("the kernel does not count it")
    regions, pairs = counts.get("mr", 0), counts.get("qp", 0)
    most_of_each = f"max_mr {limits.max_mr} max_qp {limits.max_qp}"
    attributes = Evidence(f"ibv_query_device {nic.name}", most_of_each)
    finding = finding._replace(
        have=f"{regions} of {_bound(limits.max_mr)} memory regions, {pairs} of "
        f"{_bound(limits.max_qp)} queue pairs in use",
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
        return finding.unknown(need.regions.of(NO_COUNT))
    return finding


def _bound(most: int) -> str:
    return str(most) if most > 0 else "unbounded"
