"""Checks of RLIMIT_MEMLOCK against what a launch registers and pins."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Finding, Kind, Setting, Status, skip, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.limits.runtimes import Limit
from checks.memlock.demand import NO_RDMA, QUEUES_PER_NIC_BYTES, Demand, Grant, demand, grant
from checks.rdma.registration import largest_region_bytes
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import MooncakeRelease, release_of
from checks.run.facts import Facts, TopicUnknownError

CHECKS = CheckSet()
_LIFT = Setting(Kind.ULIMIT, "memlock", "unlimited")


_LIMIT = "memlock.limit"


@CHECKS.declare(_LIMIT, "limits", "rdma", "system")
def memlock_limit(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_LIMIT)
        return
    if not needs.rdma_processes:
        yield skip(_LIMIT, NO_RDMA)
        return
    release = release_of(needs.mooncake_version)
    yield from fold(_judge_limit(facts, process, release) for process in needs.rdma_processes)


def _judge_limit(facts: Facts, process: ProcessNeeds, release: MooncakeRelease | None) -> Finding:
    granted = grant(facts, process.container)
    wanted = _demand_or_unknown(facts, process, release)
    if isinstance(wanted, Demand) and not wanted.nics:
        text = "no NIC is in use, so nothing is registered (see the checks of rdma)"
        return skip(_LIMIT, text, process.name)
    if granted.void is True or granted.limit == Limit(None, None):
        if isinstance(wanted, Unknown):
            need, formula = "not known, and nothing limits it", ""
        else:
            need, formula = format_bytes(wanted.bytes), wanted.formula
        found = Finding(_LIMIT, Status.PASS, process.name, granted.have, need, formula)
        return found._replace(evidence=granted.evidence)
    if isinstance(wanted, Unknown):
        return unknown(_LIMIT, process.name, wanted.reason, have=granted.have)
    if not wanted.bytes and wanted.more is None:
        return skip(_LIMIT, "it registers no memory with a NIC", process.name)
    found = _held_against(granted, wanted, process.runtime)
    return found._replace(subject=process.name, formula=wanted.formula, evidence=granted.evidence)


def _held_against(granted: Grant, wanted: Demand, runtime: str) -> Finding:
    """The verdict where the limit counts; subject, formula and evidence are the caller's."""
    have, need = granted.have, format_bytes(wanted.bytes)
    limit = granted.limit
    if isinstance(limit, Unknown):
        return unknown(_LIMIT, "", f"what it may lock is not known: {limit.reason}", have, need)
    if wanted.more is not None:
        need = f"{need} and more"
    reserve = wanted.nics * QUEUES_PER_NIC_BYTES
    soft = limit.soft
    if soft is not None and wanted.more is not None and soft >= wanted.bytes:
        return unknown(
            _LIMIT, "", f"what it registers is not known: {wanted.more.reason}", have, need
        )
    if soft is None or soft >= wanted.bytes + reserve:
        return Finding(_LIMIT, Status.PASS, "", have, need)
    settings = (_LIFT._replace(now=str(limit.soft), described_by=runtime),)
    if soft >= wanted.bytes:
        left = format_bytes(soft - wanted.bytes)
        text = (
            f"only {left} are left for queue pairs and completion queues, which mlx5 and others "
            'pin too: "Failed to create QP: Cannot allocate memory [12]" as peers come'
        )
        advice = f"Lift RLIMIT_MEMLOCK, or leave {format_bytes(reserve)} above the need."
        return Finding(
            _LIMIT, Status.WARN, "", have, need, text=text, advice=advice, settings=settings
        )
    if isinstance(granted.void, Unknown):
        reason = f"the limit is too low, and whether it counts is not known: {granted.void.reason}"
        return unknown(_LIMIT, "", reason, have, need)
    if granted.doubt:
        text = f"it starts only as root: {granted.doubt}, else the limit fails the registration"
        advice = "Lift the limit, which then holds for every user, or set the user to root."
        return Finding(
            _LIMIT, Status.WARN, "", have, need, text=text, advice=advice, settings=settings
        )
    error = "Cannot allocate memory [12]" if limit.soft else "Operation not permitted [1]"
    text = f'registering fails with "Failed to register memory ...: {error}"'
    hard = limit.hard
    if hard is None or hard >= wanted.bytes:
        text += "; the hard limit would do, but nothing raises the soft one"
    advice = granted.hint or "Lift RLIMIT_MEMLOCK where the process is started."
    advice = f"{advice} {_within(soft, wanted)}".rstrip()
    return Finding(_LIMIT, Status.FAIL, "", have, need, text=text, advice=advice, settings=settings)


def _within(soft: int, wanted: Demand) -> str:
    """What would fit into the limit as it is: fewer bytes, or fewer NICs."""
    if wanted.more is not None or not soft:
        return ""
    each = (wanted.bytes - wanted.ring_bytes) // wanted.nics
    less = format_bytes(-(-(wanted.bytes - soft) // wanted.nics))
    text = f"As it is, {less} less on each of {wanted.nics} NICs would fit"
    if wanted.nics == 1:
        text = f"As it is, {less} less would fit"
    nics = (soft - wanted.ring_bytes) // each if each else 0
    if nics > 0:
        text += f", or {nics} NIC{'s' if nics > 1 else ''} instead of {wanted.nics}"
    return f"{text}; huge pages change nothing."


def _demand_or_unknown(
    facts: Facts, process: ProcessNeeds, release: MooncakeRelease | None
) -> Demand | Unknown:
    try:
        names = devices_in_use(facts.rdma, process, release).names
    except TopicUnknownError as missing:
        return Unknown(str(missing))
    if isinstance(names, Unknown):
        return names
    nics = [nic for nic in facts.rdma.present if nic.name in names]
    largest = largest_region_bytes(nics, process.environment)
    return demand(process, len(names), page_bytes(facts), largest, release)


def page_bytes(facts: Facts) -> int:
    """The base page; where it could not be told the largest that Linux has, to be safe."""
    try:
        size = facts.system.page_bytes
    except TopicUnknownError:
        return 65536
    return 65536 if isinstance(size, Unknown) else size


_RINGS = "memlock.io-uring-buffers"


@CHECKS.declare(_RINGS, "limits", "system")
def ring_buffers(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_RINGS)
        return
    users = [process for process in needs.processes if process.uses_uring]
    if not users:
        yield skip(_RINGS, "no process of the launch uses io_uring")
        return
    yield from fold(_judge_rings(facts, process) for process in users)


def _judge_rings(facts: Facts, process: ProcessNeeds) -> Finding:
    granted = grant(facts, process.container)
    size = process.ring_bytes
    need = f"{format_bytes(size) if size else 'the buffer'} per I/O thread"
    found = Finding(_RINGS, Status.PASS, process.name, granted.have, need)
    found = found._replace(evidence=granted.evidence)
    limit = granted.limit
    if granted.void is True or (isinstance(limit, Limit) and limit.soft is None):
        return found
    for fact in (limit, granted.void):
        if isinstance(fact, Unknown):
            return found._replace(status=Status.UNKNOWN, text=fact.reason)
    assert isinstance(limit, Limit)
    return found._replace(
        status=Status.WARN,
        text="rings whose buffer does not fit read without it, and those that fit eat RDMA's share",
        advice="Lift RLIMIT_MEMLOCK where the process is started.",
        settings=(_LIFT._replace(now=str(limit.soft), described_by=process.runtime),),
    )
