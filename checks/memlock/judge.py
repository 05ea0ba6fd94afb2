"""Checks of RLIMIT_MEMLOCK against what a launch registers and pins."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Finding, Kind, Setting, passed, skip, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import format_bytes, format_need, or_more
from checks.base.unknown import Unknown, known, or_unknown, unread
from checks.limits.facts import LimitFacts
from checks.limits.launch_limits import not_started
from checks.limits.runtimes import Limit
from checks.memlock.demand import (
    QUEUES_PER_NIC_BYTES,
    Demand,
    Grant,
    demand,
    grant,
    pinned_unseen,
    pinning,
    pins,
)
from checks.rdma.facts import RdmaFacts
from checks.rdma.registration import largest_region_bytes
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import MooncakeRelease, release_of
from checks.system.facts import SystemFacts

CHECKS = CheckSet()
# A launch may be told to register less, by so much of it at most.
MOST_LESS = 0.9
_LIFT = Setting(Kind.ULIMIT, "memlock", "unlimited")


@CHECKS.check("memlock.limit", pinning)
def memlock_limit(
    needs: LaunchNeeds, limits: LimitFacts, rdma: RdmaFacts, system: SystemFacts
) -> Iterator[Finding]:
    release = release_of(needs.mooncake_version)
    locking = (process for process in needs.processes if pins(process))
    yield from fold(_judge_limit(system, limits, rdma, process, release) for process in locking)


def _judge_limit(
    system: SystemFacts,
    limits: LimitFacts,
    rdma: RdmaFacts,
    process: ProcessNeeds,
    release: MooncakeRelease | None,
) -> Finding:
    """Judge whether one process may pin all that it registers."""
    granted = grant(system, limits, process)
    if process.rdma is None:
        wanted: Demand | Unknown = pinned_unseen(process.transport)
    else:
        wanted = demand_on(system, rdma, process, release)
    if isinstance(wanted, Demand) and not wanted.nics:
        text = "no NIC is in use, so nothing is registered (see the checks of rdma)"
        return skip(text, process.name)
    if granted.refused is not None and granted.refused.must:
        return not_started(passed(process.name, granted.have), granted.refused)
    if granted.void is True or granted.limit == Limit(None, None):
        if isinstance(wanted, Unknown):
            need, formula = "not known, and nothing limits it", ""
        else:
            need, formula = format_bytes(wanted.bytes), wanted.formula
        return passed(process.name, granted.have, need, formula)._replace(evidence=granted.evidence)
    if isinstance(wanted, Unknown):
        return unknown(process.name, wanted, have=granted.have)
    if not wanted.bytes and wanted.more is None:
        return skip("it registers no memory with a NIC", process.name)
    finding = _held_against(granted, wanted, process.runtime)
    return finding._replace(subject=process.name, formula=wanted.formula, evidence=granted.evidence)


def _held_against(granted: Grant, wanted: Demand, runtime: str) -> Finding:
    """Judge a demand against a limit that counts; the caller adds subject and evidence."""
    have, limit = granted.have, granted.limit
    limit_bytes = 0 if isinstance(limit, Unknown) or limit.soft is None else limit.soft
    need: str = format_need(wanted.bytes, limit_bytes)
    if isinstance(limit, Unknown):
        return unknown("", limit.of("what it may lock is not known: "), have, need)
    if wanted.more is not None:
        need = or_more(need)
    reserve = wanted.nics * QUEUES_PER_NIC_BYTES
    soft = limit.soft
    if soft is not None and wanted.more is not None and soft >= wanted.bytes:
        return unknown("", wanted.more.of("what it registers is not known: "), have, need)
    if soft is None or soft >= wanted.bytes + reserve:
        return passed("", have, need)
    settings = _lift(granted, soft, runtime)
    if soft >= wanted.bytes:
        left = format_bytes(soft - wanted.bytes)
        text = (
            f"only {left} are left for queue pairs and completion queues, which mlx5 and others "
            'pin too: "Failed to create QP: Cannot allocate memory [12]" as more peers connect'
        )
        advice = f"lift RLIMIT_MEMLOCK, or leave {format_bytes(reserve)} above the need"
        return passed("", have, need).warned(text, advice, settings)
    if isinstance(granted.void, Unknown):
        why = granted.void.of("the limit is too low, and whether it counts is not known: ")
        return unknown("", why, have, need)
    if granted.doubt:
        text = f"it starts only as root ({granted.doubt}): for other users the limit is too low"
        advice = "lift the limit, which then holds for every user, or set the user to root"
        return passed("", have, need).warned(text, advice, settings)
    error = "Cannot allocate memory [12]" if limit.soft else "Operation not permitted [1]"
    text = f'registering fails with "Failed to register memory ...: {error}"'
    hard = limit.hard
    if hard is None or hard >= wanted.bytes:
        text += "; the hard limit is high enough, but nothing raises the soft one to it"
    advice = granted.hint or "lift RLIMIT_MEMLOCK where the process is started"
    advice += _within(soft, wanted)
    return passed("", have, need).failed(text, advice, settings)


def _within(soft: int, wanted: Demand) -> str:
    """Say what would fit into the limit, fewer bytes or NICs; "" if nothing sensible would."""
    if wanted.more is not None or not soft:
        return ""
    each = (wanted.bytes - wanted.ring_bytes) // wanted.nics
    less_bytes = -(-(wanted.bytes - soft) // wanted.nics)
    if less_bytes > each * MOST_LESS:
        return ""  # what would be left is no launch
    less = format_bytes(less_bytes)
    text = f"; or keep the limit, and register {less} less on each of the {wanted.nics} NICs"
    if wanted.nics == 1:
        text = f"; or keep the limit, and register {less} less"
    nics = (soft - wanted.ring_bytes) // each if each else 0
    if nics > 0:
        text += f", or use {nics} NIC{'s' if nics > 1 else ''} instead of {wanted.nics}"
    return f"{text} (huge pages count as other memory does)"


@or_unknown
def demand_on(
    system: SystemFacts, rdma: RdmaFacts, process: ProcessNeeds, release: MooncakeRelease | None
) -> Demand | Unknown:
    """Add up what a process pins on the devices of this host that it uses."""
    why = unread(rdma)
    if why is not None:
        return why
    names = known(devices_in_use(rdma, process, release).names)
    nics = [nic for nic in rdma.present if nic.name in names]
    largest = largest_region_bytes(nics, process.environment)
    return demand(process, len(names), page_bytes(system), largest, release)


def page_bytes(system: SystemFacts) -> int:
    """Return the base page size; if it is not known the largest of Linux, to be safe."""
    size = system.page_bytes if unread(system) is None else Unknown("not read")
    return 65536 if isinstance(size, Unknown) else size


@CHECKS.check("memlock.io-uring-buffers", the_launch)
def ring_buffers(needs: LaunchNeeds, limits: LimitFacts, system: SystemFacts) -> Iterator[Finding]:
    users = [process for process in needs.processes if process.uses_uring is not False]
    if not users:
        yield skip("no process of the launch uses io_uring")
        return
    yield from fold(_judge_rings(system, limits, process) for process in users)


def _judge_rings(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds) -> Finding:
    """Judge whether the SSD offload's io_uring buffers fit into the limit."""
    granted = grant(system, limits, process)
    size = process.ring_bytes
    need = f"{format_bytes(size) if size else 'the buffer'} per I/O thread"
    finding = passed(process.name, granted.have, need)
    finding = finding._replace(evidence=granted.evidence)
    limit = granted.limit
    if granted.void is True or (isinstance(limit, Limit) and limit.soft is None):
        return finding
    for fact in (limit, granted.void, process.uses_uring):
        if isinstance(fact, Unknown):
            return finding.unknown(fact)
    assert isinstance(limit, Limit)
    return finding.warned(
        "a ring whose buffer does not fit works without it; one that fits leaves less for RDMA",
        "lift RLIMIT_MEMLOCK where the process is started",
        _lift(granted, limit.soft, process.runtime),
    )


def _lift(granted: Grant, soft: int | None, runtime: str) -> tuple[Setting, ...]:
    """Return the setting that lifts the limit; of a launch's own limit only its unit does."""
    lift = _LIFT._replace(now=str(soft), described_by=runtime, unit=granted.unit)
    return (lift,) if granted.unit or not granted.by_launch else ()
