"""Check of the program numactl, through which SGLang starts the ranks that it binds."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Finding, Kind, Setting, or_unjudged, passed, skip, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.gpu.hardware_use import probes_numactl
from checks.software.facts import Environment, SoftwareFacts
from checks.software.software_checks import OTHER_CONTAINER, elsewhere
from checks.system.facts import SystemFacts

CHECKS = CheckSet()


@CHECKS.check("software.numactl-missing", the_launch)
def numactl_missing(
    needs: LaunchNeeds, software: SoftwareFacts, system: SystemFacts
) -> Iterator[Finding]:
    bound = [one for one in needs.processes if one.program == "sglang" and one.node is not None]
    if not bound:
        yield skip("no rank of the launch is bound to a NUMA node")
        return
    yield from fold(_judge_numactl(system, software, needs, process) for process in bound)


@or_unjudged
def _judge_numactl(
    system: SystemFacts, software: SoftwareFacts, needs: LaunchNeeds, process: ProcessNeeds
) -> Finding:
    if elsewhere(system, process):
        return skip(OTHER_CONTAINER, process.name)
    if process.environment.get("SGLANG_NUMA_BIND_V2", "1").lower() in ("0", "false", "no", "n"):
        return skip("SGLANG_NUMA_BIND_V2 is off, so SGLang binds without the program", process.name)
    path = unknown(process.name, "").known(software.programs).get("numactl")
    found = passed(process.name, path or "none", "numactl on PATH")
    if path is not None:
        return found
    probes = probes_numactl(_version(software, needs))
    package = Setting(Kind.PACKAGE, "numactl", "installed")
    found = found._replace(advice="install numactl", settings=(package,))
    why = "SGLang before 0.5.15 loses the rank here, newer ones do not bind it: "
    if not found.known(probes, why):
        return found.failed('the rank ends at once with "exec: numactl: not found"')
    return found.warned("ranks are not bound to their NUMA node")


def _version(software: SoftwareFacts, needs: LaunchNeeds) -> str:
    """Return the release that the launch names, else the one installed.

    "" where neither is known.
    """
    engine = software.engine
    if needs.sglang_version or not isinstance(engine, Environment) or engine.sglang is None:
        return needs.sglang_version
    return engine.sglang.version
