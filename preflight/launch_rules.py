"""All rules about a launch, and what they find in one."""

from __future__ import annotations

from preflight import (
    rules_devices,
    rules_environment,
    rules_hicache,
    rules_processes,
    rules_store,
)
from preflight.launch_processes import LaunchProcess
from preflight.rules import Finding, Rule, Severity

RULE_SETS = (
    rules_hicache.RULES,
    rules_store.RULES,
    rules_devices.RULES,
    rules_environment.RULES,
    rules_processes.RULES,
)
RULES: dict[str, Rule] = {rule.id: rule for rules in RULE_SETS for rule in rules.rules}
_WORST_FIRST = (Severity.FAIL, Severity.WARN, Severity.NOTE)


def findings(processes: tuple[LaunchProcess, ...]) -> tuple[Finding, ...]:
    """Everything that the rules find, the worst first."""
    found = [finding for rules in RULE_SETS for finding in rules.findings(processes)]
    return tuple(sorted(found, key=lambda finding: _WORST_FIRST.index(finding.rule.severity)))
