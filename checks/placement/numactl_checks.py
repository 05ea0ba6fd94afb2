"""Check of the program numactl, through which SGLang starts the ranks that it binds."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Finding, Kind, Setting, Status, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.gpu.hardware_use import probes_numactl
from checks.run.facts import Facts
from checks.software.facts import Environment
from checks.software.judging import OTHER_CONTAINER, elsewhere

CHECKS = CheckSet()

_NUMACTL = "software.numactl-missing"


@CHECKS.declare(_NUMACTL, "software", "system")
def numactl_missing(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    if needs is None:
        yield skip(_NUMACTL)
        return
    bound = [one for one in needs.processes if one.program == "sglang" and one.node is not None]
    if not bound:
        yield skip(_NUMACTL, "no rank of the launch is bound to a NUMA node")
        return
    yield from fold(_judge_numactl(facts, needs, process) for process in bound)


def _judge_numactl(facts: Facts, needs: LaunchNeeds, process: ProcessNeeds) -> Finding:
    if elsewhere(facts, process):
        return skip(_NUMACTL, OTHER_CONTAINER, process.name)
    if process.environment.get("SGLANG_NUMA_BIND_V2", "1").lower() in ("0", "false", "no", "n"):
        text = "SGLANG_NUMA_BIND_V2 is off, so SGLang binds without the program"
        return skip(_NUMACTL, text, process.name)
    programs = facts.software.programs
    if isinstance(programs, Unknown):
        return Finding(_NUMACTL, Status.UNKNOWN, process.name, text=programs.reason)
    path = programs.get("numactl")
    found = Finding(_NUMACTL, Status.PASS, process.name, path or "none", "numactl on PATH")
    if path is not None:
        return found
    probes = probes_numactl(_version(facts, needs))
    package = Setting(Kind.PACKAGE, "numactl", "installed")
    found = found._replace(advice="Install numactl.", settings=(package,))
    if isinstance(probes, Unknown):
        text = (
            f"SGLang before 0.5.15 loses the rank here, newer ones do not bind it: {probes.reason}"
        )
        return found._replace(status=Status.UNKNOWN, text=text)
    if not probes:
        text = 'the rank ends at once with "exec: numactl: not found"'
        return found._replace(status=Status.FAIL, text=text)
    return found._replace(status=Status.WARN, text="ranks are not bound to their NUMA node")


def _version(facts: Facts, needs: LaunchNeeds) -> str:
    """The release that the launch names, else the one installed; "" where neither is known."""
    engine = facts.software.engine
    if needs.sglang_version or not isinstance(engine, Environment) or engine.sglang is None:
        return needs.sglang_version
    return engine.sglang.version
