"""Checks of RLIMIT_MEMLOCK against what a launch pins, and of who sets it: containers, daemons."""

from __future__ import annotations

from collections.abc import Iterator

from checks.framework.docker_config import DOCKER_CONFIG
from checks.framework.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold
from checks.framework.needs import UNLIMITED, LaunchNeeds, ProcessNeeds, is_root
from checks.framework.problem import Problems
from checks.framework.units import format_bytes, format_need, or_more
from checks.framework.unknown import RUN_INSIDE, Unknown, or_unknown, require, unread
from checks.limits.facts import IPC_LOCK_BIT, UID_MAP, LimitFacts
from checks.limits.launch_limits import not_started
from checks.limits.runtimes import Limit, UnitLimit, daemon_of
from checks.memlock.demand import (
    QUEUES_PER_NIC_BYTES,
    Demand,
    Grant,
    declares_ipc_lock,
    demand,
    format_limit,
    grant,
    pinned_unseen,
    pinning,
    pins,
    soft_text,
)
from checks.numa.nodes import STATUS
from checks.rdma.facts import RdmaFacts
from checks.rdma.per_device import NO_RDMA, rdma_launch_or_host
from checks.rdma.registration import largest_region_bytes
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import MooncakeRelease, release_of
from checks.system.facts import SystemFacts

CHECKS = Problems()
# A launch may be told to register less, by so much of it at most.
MOST_LESS = 0.9


@CHECKS("memlock.limit", needs=pinning)
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
    """Judge whether one process may pin all that it registers.

    Args:
        release: None if not known.
    """
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
        return unknown_finding(process.name, wanted, have=granted.have)
    if not wanted.bytes and wanted.more is None:
        return skip("it registers no memory with a NIC", process.name)
    finding = _judge_demand(granted, wanted, process.runtime)
    return finding._replace(subject=process.name, formula=wanted.formula, evidence=granted.evidence)


def _judge_demand(granted: Grant, wanted: Demand, runtime: str) -> Finding:
    """Judge whether the limit in ``granted`` allows what ``wanted`` pins, unless a capability
    certainly lifts that limit.

    The finding has no subject and no evidence: the caller adds both.
    """
    have, limit = granted.have, granted.limit
    limit_bytes = 0 if isinstance(limit, Unknown) or limit.soft is None else limit.soft
    need: str = format_need(wanted.bytes, limit_bytes)
    if isinstance(limit, Unknown):
        return unknown_finding("", limit.of("what it may lock is not known: "), have, need)
    if wanted.more is not None:
        need = or_more(need)
    reserve = wanted.nics * QUEUES_PER_NIC_BYTES
    soft = limit.soft
    if soft is not None and wanted.more is not None and soft >= wanted.bytes:
        return unknown_finding("", wanted.more.of("what it registers is not known: "), have, need)
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
        return unknown_finding("", why, have, need)
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
    advice += _advice_to_fit(soft, wanted)
    return passed("", have, need).failed(text, advice, settings)


def _advice_to_fit(soft: int, wanted: Demand) -> str:
    """Return advice on what fits into the limit ``soft``: fewer bytes on each NIC, or fewer NICs.

    Return "" if the demand is not known whole, or if too little would be left.
    """
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
    """Add up what a process pins on the devices of this host that it uses.

    Returns:
        Unknown if these devices, or the memory regions of the process, are not known.
    """
    why = unread(rdma)
    if why is not None:
        return why
    names = require(devices_in_use(rdma, process, release).names)
    nics = [nic for nic in rdma.present if nic.name in names]
    largest = largest_region_bytes(nics, process.environment)
    return demand(process, len(names), page_bytes(system), largest, release)


def page_bytes(system: SystemFacts) -> int:
    """Return the base page size; if it is not known the largest of Linux, to be safe."""
    size = system.page_bytes if unread(system) is None else Unknown("not read")
    return 65536 if isinstance(size, Unknown) else size


@CHECKS("memlock.io-uring-buffers")
def ring_buffers(needs: LaunchNeeds, limits: LimitFacts, system: SystemFacts) -> Iterator[Finding]:
    users = [process for process in needs.processes if process.uses_uring is not False]
    if not users:
        yield skip("no process of the launch uses io_uring")
        return
    yield from fold(_judge_rings(system, limits, process) for process in users)


def _judge_rings(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds) -> Finding:
    """Judge whether the limit may be too low for the SSD offload's io_uring buffers.

    Any finite limit is a warning.
    """
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
            return finding.undecided(fact)
    assert isinstance(limit, Limit)
    return finding.warned(
        "a ring whose buffer does not fit works without it; one that fits leaves less for RDMA",
        "lift RLIMIT_MEMLOCK where the process is started",
        _lift(granted, limit.soft, process.runtime),
    )


def _lift(granted: Grant, soft: int | None, runtime: str) -> tuple[Setting, ...]:
    """Return the setting that lifts the limit; () if the launch sets it outside of a unit."""
    lift = _unlimited(str(soft), runtime, granted.unit)
    return (lift,) if granted.unit or not granted.by_launch else ()


def _unlimited(now: str, runtime: str = "", unit: str = "") -> Setting:
    """Return the setting that lifts memlock of what ``runtime`` describes, or of a systemd unit."""
    return Setting(Kind.ULIMIT, "memlock", "unlimited", now, runtime, unit)


@CHECKS("memlock.user-namespace", needs=rdma_launch_or_host)
def user_namespace(needs: LaunchNeeds | None, limits: LimitFacts) -> Iterator[Finding]:
    """Judge whether CAP_IPC_LOCK lifts RLIMIT_MEMLOCK, as it does in the initial user namespace
    only.

    Warn if this process has the capability in another namespace, and memlock is limited.
    """
    initial, mask = require(limits.initial_user_namespace), require(limits.effective_capabilities)
    capable = bool(mask >> IPC_LOCK_BIT & 1)
    have = "the initial user namespace" if initial else "a user namespace of its own"
    evidence = (Evidence(UID_MAP, have), Evidence(STATUS, f"CapEff: {mask:016x}"))
    finding = passed("host", have, evidence=evidence)
    memlock = limits.memlock
    if not initial and capable and not (isinstance(memlock, Limit) and memlock.soft is None):
        finding = finding.warned(
            "CAP_IPC_LOCK shows in CapEff and does not lift RLIMIT_MEMLOCK for RDMA",
            "start the container with memlock unlimited, or in the host's user namespace",
            (_unlimited(soft_text(memlock)),),
            need="the initial user namespace, or memlock unlimited",
        )
    yield finding


@CHECKS("memlock.runtime-limit")
def runtime_limit(
    needs: LaunchNeeds | None, limits: LimitFacts, system: SystemFacts
) -> Iterator[Finding]:
    """Judge the memlock limit that containers of the launch start with.

    Without a launch, judge the limit of each daemon that starts containers or jobs.
    """
    runtimes = limits.runtimes
    if needs is None:
        findings = [_judge_unit(unit, runtimes.slurm_propagates) for unit in runtimes.units]
        yield from findings or [skip("no daemon that starts containers or jobs is seen")]
        return
    contained = [process for process in needs.rdma_processes if process.container is not None]
    if not contained:
        none = "the launch's RDMA processes run in no container"
        yield skip(none if needs.rdma_processes else NO_RDMA)
        return
    yield from fold(_judge_container(system, limits, process) for process in contained)


def _judge_unit(unit: UnitLimit, slurm_propagates: bool | Unknown | None = None) -> Finding:
    """Judge the memlock limit that one daemon hands on: a warning unless it is unlimited.

    Args:
        slurm_propagates: True if jobs of Slurm get the limit of the shell that submits them.
    """
    memlock = unit.running.memlock if unit.running is not None else unit.configured
    daemon = daemon_of(unit.name)
    if memlock is None:
        return skip(f"{daemon} does not run, and its unit sets no limit", daemon)
    if daemon == "slurmd" and slurm_propagates is True:
        return skip("slurm.conf gives jobs the limit of the shell that submits", daemon)
    if isinstance(memlock, Unknown):
        return unknown_finding(daemon, memlock)
    source = f"{daemon}, running" if unit.running is not None else unit.source
    evidence = (Evidence(source, format_limit(memlock)),)
    finding = passed(daemon, format_limit(memlock), evidence=evidence)
    if memlock.soft is None:
        return finding
    text = "what it starts gets this limit, unless it sets its own"
    advice = f"set LimitMEMLOCK=infinity in a drop-in of {unit.name}.service and restart it"
    if unit.running is not None and unit.configured == Limit(None, None):
        text += f"; {unit.source} says unlimited, but {daemon} runs with what it had before"
        advice = f"restart {unit.name}.service"
    setting = _unlimited(soft_text(memlock), unit=f"{unit.name}.service")
    return finding.warned(text, advice, (setting,), need="unlimited")


def _judge_container(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds) -> Finding:
    """Judge the memlock limit that one process's container starts with: the launch's, else Docker's
    default, else the daemon's.

    Inside of a container only the launch's limit is judged.
    """
    container = process.container
    assert container is not None
    finding = passed(process.name)
    if container.memlock_bytes is not None:
        size = None if container.memlock_bytes == UNLIMITED else container.memlock_bytes
        have = format_limit(Limit(size, size), ", the launch's own")
        return finding._replace(have=have, evidence=(Evidence(container.origin, have),))
    if system.container.inside:
        return skip("this is a container: its own limit is judged by memlock.limit", process.name)
    granted = grant(system, limits, process)
    if granted.void is True:
        return finding._replace(have=granted.have, evidence=granted.evidence)
    runtimes, default = limits.runtimes, limits.runtimes.docker_default
    if container.runtime != "kubernetes" and isinstance(default, Limit):
        seen = Evidence(DOCKER_CONFIG, f"default-ulimits memlock {format_limit(default)}")
        have = format_limit(default, ", Docker's default")
        finding = finding._replace(have=have, evidence=(seen,))
        if default.soft is None:
            return finding
        text = "what Docker starts gets this limit, unless it sets its own"
        settings = (_unlimited(soft_text(default), container.runtime),)
        advice = "give the container --ulimit memlock=-1"
        return finding.warned(text, advice, settings, need="unlimited")
    for unit in runtimes.units_of(container.runtime):
        judged = _judge_unit(unit)
        if judged.status is not Status.SKIP:
            return judged._replace(subject=f"{process.name} ({judged.subject})")
    text = "the launch sets no memlock, and no daemon is seen here that would pass one on"
    finding = finding._replace(have="the runtime's default")
    if container.runtime == "kubernetes":  # a manifest has no place for the limit
        return finding.undecided(text, advice=RUN_INSIDE)
    advice = "run this check inside the container, or set memlock for it"
    settings = (_unlimited("", container.runtime),)
    return finding.undecided(text, advice=advice, settings=settings)


@CHECKS("memlock.inert-capability", needs=rdma_launch_or_host)
def inert_capability(
    needs: LaunchNeeds | None, limits: LimitFacts, system: SystemFacts
) -> Iterator[Finding]:
    """Judge whether an added IPC_LOCK is in effect for the container's user: in the launch's
    containers, else in the container that this check runs in.
    """
    contained = needs.rdma_processes if needs is not None else ()
    declared = [process for process in contained if process.container is not None]
    if declared:
        yield from fold(_judge_declared(process) for process in declared)
        return
    if not system.container.inside:
        if system.container.kind == "unknown":
            yield unknown_finding("host", system.container.source)
            return
        # Outside of containers every user's bounding set is full, which says nothing.
        yield skip("this is no container, and the launch describes none")
        return
    yield _judge_here(limits)


def _judge_declared(process: ProcessNeeds) -> Finding:
    """Judge whether the IPC_LOCK that the launch adds to a container has an effect.

    Warn if the launch names a user other than root, and memlock is not unlimited. Pass if no
    IPC_LOCK is added.
    """
    container = process.container
    assert container is not None
    finding = passed(process.name, "no IPC_LOCK added")
    if not declares_ipc_lock(container):
        return finding
    user = "the image's own user" if container.user is None else f"user {container.user}"
    have = f"{'privileged' if container.privileged else 'IPC_LOCK added'}, {user}"
    finding = finding._replace(have=have, evidence=(Evidence(container.origin, have),))
    if container.user is None or is_root(container.user) or container.memlock_bytes == UNLIMITED:
        return finding
    now = "" if container.memlock_bytes is None else str(container.memlock_bytes)
    return _no_effect(finding, now, container.runtime)


def _no_effect(finding: Finding, now: str, runtime: str = "") -> Finding:
    """Warn that the capability lifts nothing.

    Args:
        now: The present limit as text, "" if not set.
    """
    return finding.warned(
        "the capability is not in effect for this user, so RLIMIT_MEMLOCK counts",
        "give the container memlock unlimited, or run it as user 0",
        (_unlimited(now, runtime),),
        need="user 0, or memlock unlimited",
    )


def _judge_here(limits: LimitFacts) -> Finding:
    """Judge the IPC_LOCK of the container that this check runs in.

    Warn if it is allowed but not in effect, and memlock is not unlimited.
    """
    here = passed("this container")
    effective = here.require(limits.effective_capabilities)
    bounding = here.require(limits.bounding_capabilities)
    sets = (("CapEff", effective), ("CapBnd", bounding))
    evidence = tuple(Evidence(STATUS, f"{name}: {bits:016x}") for name, bits in sets)
    effects, allowed = (bool(mask >> IPC_LOCK_BIT & 1) for mask in (effective, bounding))
    have = "in effect" if effects else "allowed, not in effect" if allowed else "not added"
    finding = passed("this container", f"IPC_LOCK {have}", evidence=evidence)
    unlimited = isinstance(limits.memlock, Limit) and limits.memlock.soft is None
    if effects or not allowed or unlimited:
        return finding
    return _no_effect(finding, soft_text(limits.memlock))
