"""What may containers and jobs lock that this host starts without a limit of their own?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, any_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, skip, unknown
from checks.base.fold import fold
from checks.base.needs import UNLIMITED, LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.limits.facts import LimitFacts
from checks.limits.runtimes import DAEMON_OF_UNIT, DOCKER_CONFIG, Limit, UnitLimit, runtime_units
from checks.memlock.demand import NO_RDMA, format_limit, soft_text
from checks.system.facts import SystemFacts

CHECKS = CheckSet()


@CHECKS.check("memlock.runtime-limit", any_launch)
def runtime_limit(
    needs: LaunchNeeds | None, limits: LimitFacts, system: SystemFacts
) -> Iterator[Finding]:
    runtimes = limits.runtimes
    if needs is None:
        findings = [_of_unit(unit, runtimes.slurm_propagates) for unit in runtimes.units]
        yield from findings or [skip("no daemon that starts containers or jobs is seen")]
        return
    contained = [process for process in needs.rdma_processes if process.container is not None]
    if not contained:
        text = (
            "the launch's RDMA processes run in no container" if needs.rdma_processes else NO_RDMA
        )
        yield skip(text)
        return
    yield from fold(_of_process(system, limits, process) for process in contained)


def _of_unit(unit: UnitLimit, slurm_propagates: bool | Unknown | None = None) -> Finding:
    memlock = unit.running.memlock if unit.running is not None else unit.configured
    daemon = DAEMON_OF_UNIT.get(unit.name, unit.name)
    if memlock is None:
        return skip(f"{daemon} does not run, and its unit sets no limit", daemon)
    if daemon == "slurmd" and slurm_propagates is True:
        return skip("slurm.conf gives jobs the limit of the shell that submits", daemon)
    if isinstance(memlock, Unknown):
        return unknown(daemon, memlock.reason)
    source = f"{daemon}, running" if unit.running is not None else unit.source
    evidence = (Evidence(source, format_limit(memlock)),)
    found = passed(daemon, format_limit(memlock), evidence=evidence)
    if memlock.soft is None:
        return found
    text = "what it starts without a limit of its own cannot lock more"
    advice = f"Set LimitMEMLOCK=infinity in a drop-in of {unit.name}.service and restart it."
    if unit.running is not None and unit.configured == Limit(None, None):
        text += f"; {unit.source} says unlimited, but {daemon} runs with what it had before"
        advice = f"Restart {unit.name}.service."
    return found.warned(text, advice, (_unit_setting(unit.name, memlock),), need="unlimited")


def _unit_setting(unit: str, now: Limit) -> Setting:
    return Setting(Kind.ULIMIT, "memlock", "unlimited", soft_text(now), unit=f"{unit}.service")


def _of_process(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds) -> Finding:
    container = process.container
    assert container is not None
    found = passed(process.name)
    if container.memlock_bytes is not None:
        own = None if container.memlock_bytes == UNLIMITED else container.memlock_bytes
        have = f"{format_limit(Limit(own, own))}, the launch's own"
        return found._replace(have=have, evidence=(Evidence(container.origin, have),))
    if system.container.kind != "none":
        text = "this is a container: its own limit is judged by memlock.limit"
        return skip(text, process.name)
    runtimes = limits.runtimes
    if container.runtime != "kubernetes" and isinstance(runtimes.docker_default, Limit):
        return _of_docker_default(runtimes.docker_default, found, container.runtime)
    units = [unit for name in runtime_units(container.runtime) if (unit := runtimes.unit(name))]
    for unit in sorted(units, key=lambda unit: unit.running is None):
        judged = _of_unit(unit)
        if judged.status is not Status.SKIP:
            return judged._replace(subject=f"{process.name} ({judged.subject})")
    return found.unknown(
        "the launch sets no memlock, and no daemon is seen here that would hand one on",
        have="the runtime's default",
        advice="Run this check inside the container, or set memlock for it.",
        settings=()
        if container.runtime == "kubernetes"
        else (Setting(Kind.ULIMIT, "memlock", "unlimited", described_by=container.runtime),),
    )


def _of_docker_default(default: Limit, found: Finding, runtime: str) -> Finding:
    found = found._replace(
        have=f"{format_limit(default)}, Docker's default",
        evidence=(Evidence(DOCKER_CONFIG, f"default-ulimits memlock {format_limit(default)}"),),
    )
    if default.soft is None:
        return found
    return found.warned(
        "what Docker starts without a limit of its own cannot lock more",
        "Give the container --ulimit memlock=-1.",
        (Setting(Kind.ULIMIT, "memlock", "unlimited", soft_text(default), described_by=runtime),),
        need="unlimited",
    )
