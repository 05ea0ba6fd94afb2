"""All rules about a launch, and what they find in one."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.processes.processes import LaunchProcess, SglangServer
from preflight.rules import (
    rules_allocator,
    rules_arguments,
    rules_ascend,
    rules_devices,
    rules_disaggregation,
    rules_environment,
    rules_flags,
    rules_hicache,
    rules_memory,
    rules_offload,
    rules_pinning,
    rules_processes,
    rules_registration,
    rules_sharing,
    rules_store,
    rules_transfer,
    rules_variables,
)
from preflight.rules.rules import Finding, Rule, Severity, Versions

RULE_SETS = (
    rules_arguments.RULES,
    rules_hicache.RULES,
    rules_disaggregation.RULES,
    rules_transfer.RULES,
    rules_store.RULES,
    rules_sharing.RULES,
    rules_devices.RULES,
    rules_environment.RULES,
    rules_variables.RULES,
    rules_offload.RULES,
    rules_processes.RULES,
    rules_flags.RULES,
    rules_allocator.RULES,
    rules_ascend.RULES,
    rules_memory.RULES,
    rules_registration.RULES,
    rules_pinning.RULES,
)
RULES: dict[str, Rule] = {rule.id: rule for rules in RULE_SETS for rule in rules.rules}
RULES[rules_memory.POOLS_REFUSED.id] = rules_memory.POOLS_REFUSED
_WORST_FIRST = (Severity.FAIL, Severity.WARN, Severity.NOTE)


def findings(
    processes: tuple[LaunchProcess, ...],
    servers: Sequence[tuple[SglangServer, Versions]] = (),
) -> tuple[Finding, ...]:
    """Everything that the rules find, the worst first; ``servers`` with what they run on."""
    found = [finding for rules in RULE_SETS for finding in rules.findings(processes)]
    for server, versions in servers:
        for rules in RULE_SETS:
            found += rules.memory_findings(server, versions)
    return tuple(sorted(found, key=lambda finding: _WORST_FIRST.index(finding.rule.severity)))
