"""Checks of what containers and daemons make of RLIMIT_MEMLOCK and of CAP_IPC_LOCK."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, any_launch
from checks.base.docker_config import DOCKER_CONFIG
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, skip, unknown
from checks.base.fold import fold
from checks.base.needs import UNLIMITED, LaunchNeeds, ProcessNeeds, is_root
from checks.base.unknown import RUN_INSIDE, Unknown, known
from checks.limits.facts import IPC_LOCK_BIT, STATUS, UID_MAP, LimitFacts
from checks.limits.runtimes import Limit, UnitLimit, daemon_of, runtime_units
from checks.memlock.demand import (
    NO_RDMA,
    declares_ipc_lock,
    format_limit,
    grant,
    registering_or_host,
    soft_text,
)
from checks.system.facts import SystemFacts

CHECKS = CheckSet()


@CHECKS.check("memlock.user-namespace", registering_or_host)
def user_namespace(needs: LaunchNeeds | None, limits: LimitFacts) -> Iterator[Finding]:
    """Judge whether CAP_IPC_LOCK counts: it does in the initial user namespace alone."""
    initial, mask = known(limits.initial_user_namespace), known(limits.effective_capabilities)
    capable = bool(mask >> IPC_LOCK_BIT & 1)
    have = "the initial user namespace" if initial else "a user namespace of its own"
    evidence = (Evidence(UID_MAP, have), Evidence(STATUS, f"CapEff: {mask:016x}"))
    finding = passed("host", have, evidence=evidence)
    memlock = limits.memlock
    if not initial and capable and not (isinstance(memlock, Limit) and memlock.soft is None):
        finding = finding.warned(
            "CAP_IPC_LOCK shows in CapEff and does not lift RLIMIT_MEMLOCK for RDMA",
            "start the container with memlock unlimited, or in the host's user namespace",
            (Setting(Kind.ULIMIT, "memlock", "unlimited", soft_text(memlock)),),
            need="the initial user namespace, or memlock unlimited",
        )
    yield finding
    remapped = limits.runtimes.userns_remap
    if isinstance(remapped, str) and remapped:
        yield from fold(_remapped(needs, remapped))


def _remapped(needs: LaunchNeeds | None, remapped: str) -> Iterator[Finding]:
    """Judge processes that rely on a capability which has no effect because Docker remaps users."""
    have = f"userns-remap {remapped}"
    evidence = (Evidence(DOCKER_CONFIG, f"userns-remap: {remapped}"),)
    for process in needs.rdma_processes if needs is not None else ():
        container = process.container
        if container is None or container.runtime == "kubernetes":
            continue
        if declares_ipc_lock(container) and container.memlock_bytes != UNLIMITED:
            finding = passed(process.name, have, "memlock unlimited", evidence=evidence)
            yield finding.warned(
                "Docker remaps users, so IPC_LOCK and privileged do not lift RLIMIT_MEMLOCK",
                "give the container memlock unlimited",
                _lift("", container.runtime),
            )


def _lift(now: str, runtime: str = "") -> tuple[Setting, ...]:
    return (Setting(Kind.ULIMIT, "memlock", "unlimited", now, described_by=runtime),)


@CHECKS.check("memlock.runtime-limit", any_launch)
def runtime_limit(
    needs: LaunchNeeds | None, limits: LimitFacts, system: SystemFacts
) -> Iterator[Finding]:
    """Judge the memlock limit that containers of the launch start with."""
    runtimes = limits.runtimes
    if needs is None:
        findings = [_of_unit(unit, runtimes.slurm_propagates) for unit in runtimes.units]
        yield from findings or [skip("no daemon that starts containers or jobs is seen")]
        return
    contained = [process for process in needs.rdma_processes if process.container is not None]
    if not contained:
        none = "the launch's RDMA processes run in no container"
        yield skip(none if needs.rdma_processes else NO_RDMA)
        return
    yield from fold(_of_process(system, limits, process) for process in contained)


def _of_unit(unit: UnitLimit, slurm_propagates: bool | Unknown | None = None) -> Finding:
    """Judge the memlock limit that one daemon hands on."""
    memlock = unit.running.memlock if unit.running is not None else unit.configured
    daemon = daemon_of(unit.name)
    if memlock is None:
        return skip(f"{daemon} does not run, and its unit sets no limit", daemon)
    if daemon == "slurmd" and slurm_propagates is True:
        return skip("slurm.conf gives jobs the limit of the shell that submits", daemon)
    if isinstance(memlock, Unknown):
        return unknown(daemon, memlock)
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
    now, service = soft_text(memlock), f"{unit.name}.service"
    setting = Setting(Kind.ULIMIT, "memlock", "unlimited", now, unit=service)
    return finding.warned(text, advice, (setting,), need="unlimited")


def _of_process(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds) -> Finding:
    """Judge the memlock limit of one container: its own, Docker's default, or its daemon's."""
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
        settings = _lift(soft_text(default), container.runtime)
        advice = "give the container --ulimit memlock=-1"
        return finding.warned(text, advice, settings, need="unlimited")
    units = [unit for name in runtime_units(container.runtime) if (unit := runtimes.unit(name))]
    for unit in sorted(units, key=lambda unit: unit.running is None):
        judged = _of_unit(unit)
        if judged.status is not Status.SKIP:
            return judged._replace(subject=f"{process.name} ({judged.subject})")
    text = "the launch sets no memlock, and no daemon is seen here that would pass one on"
    finding = finding._replace(have="the runtime's default")
    if container.runtime == "kubernetes":  # a manifest has no place for the limit
        return finding.unknown(text, advice=RUN_INSIDE)
    advice = "run this check inside the container, or set memlock for it"
    return finding.unknown(text, advice=advice, settings=_lift("", container.runtime))


@CHECKS.check("memlock.inert-capability", registering_or_host)
def inert_capability(
    needs: LaunchNeeds | None, limits: LimitFacts, system: SystemFacts
) -> Iterator[Finding]:
    """Judge whether an added IPC_LOCK is in effect for the container's user."""
    contained = needs.rdma_processes if needs is not None else ()
    declared = [process for process in contained if process.container is not None]
    if declared:
        yield from fold(_declared(process) for process in declared)
        return
    if not system.container.inside:
        if system.container.kind == "unknown":
            yield unknown("host", system.container.source)
            return
        # Outside of containers every user's bounding set is full, which says nothing.
        yield skip("this is no container, and the launch describes none")
        return
    yield _inert_here(limits)


def _declared(process: ProcessNeeds) -> Finding:
    """Judge whether the IPC_LOCK that the launch adds to a container has an effect.

    It has none for a named user other than root, unless memlock is unlimited. Pass if none is
    added.
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
    """Warn that the capability lifts nothing. now: the limit as a setting has it, or ""."""
    return finding.warned(
        "the capability is not in effect for this user, so RLIMIT_MEMLOCK counts",
        "give the container memlock unlimited, or run it as user 0",
        _lift(now, runtime),
        need="user 0, or memlock unlimited",
    )


def _inert_here(limits: LimitFacts) -> Finding:
    """Judge the IPC_LOCK of the container that this check runs in."""
    here = passed("this container")
    effective = here.known(limits.effective_capabilities)
    bounding = here.known(limits.bounding_capabilities)
    sets = (("CapEff", effective), ("CapBnd", bounding))
    evidence = tuple(Evidence(STATUS, f"{name}: {bits:016x}") for name, bits in sets)
    effects, allowed = (bool(mask >> IPC_LOCK_BIT & 1) for mask in (effective, bounding))
    have = "in effect" if effects else "allowed, not in effect" if allowed else "not added"
    finding = passed("this container", f"IPC_LOCK {have}", evidence=evidence)
    unlimited = isinstance(limits.memlock, Limit) and limits.memlock.soft is None
    if effects or not allowed or unlimited:
        return finding
    return _no_effect(finding, soft_text(limits.memlock))
