"""All rules about a launch, and what they find in one."""

from __future__ import annotations

from collections.abc import Sequence

from checks.releases.mooncake import MooncakeRelease
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules import (
    consumers,
    hicache,
    memory,
    programs,
    store,
    tier_use,
    variables,
)
from preflight.launch_problems.rules.rules import Rule, RuleFinding, Severity, Versions
from preflight.processes.processes import LaunchProcess

RULE_SETS = (
    *(hicache.RULES, store.RULES, store.DEVICES, variables.RULES, tier_use.OFFLOAD, tier_use.RULES),
    *(programs.RULES, memory.RULES, consumers.RULES),
)
RULES: dict[str, Rule] = {id_: rule for rules in RULE_SETS for id_, rule in rules.page.items()}
_WORST_FIRST = tuple(Severity)  # in the order in which they are declared


def findings(
    processes: tuple[LaunchProcess, ...],
    servers: Sequence[tuple[SglangServer, Versions]] = (),
    mooncake: MooncakeRelease | None = None,
) -> tuple[RuleFinding, ...]:
    """Return the findings of all rules, the worst first.

    Args:
        servers: Those that the rules about memory judge.
        mooncake: None leaves out the rules that depend on the release.
    """
    every = [finding for rules in RULE_SETS for finding in rules.findings(processes, mooncake)]
    for server, versions in servers:
        for rules in RULE_SETS:
            every += rules.memory_findings(server, versions)
    return tuple(sorted(every, key=lambda finding: _WORST_FIRST.index(finding.rule.severity)))
