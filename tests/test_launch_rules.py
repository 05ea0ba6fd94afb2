"""All rules together: each has its example, is declared once, and findings come worst first."""

from __future__ import annotations

from preflight.rules.launch_rules import RULE_SETS, RULES, findings
from preflight.rules.rules import Severity
from preflight.rules.rules_memory import POOLS_REFUSED
from tests import (
    test_rules_allocator,
    test_rules_arguments,
    test_rules_ascend,
    test_rules_devices,
    test_rules_flags,
    test_rules_hicache,
    test_rules_memory,
    test_rules_offload,
    test_rules_processes,
    test_rules_store,
    test_rules_transfer,
    test_rules_variables,
)
from tests.launch_text import STORE, understood

SHOWN = (
    test_rules_arguments.EXAMPLES,
    test_rules_store.EXAMPLES,
    test_rules_hicache.EXAMPLES,
    test_rules_devices.EXAMPLES,
    test_rules_variables.EXAMPLES,
    test_rules_offload.EXAMPLES,
    test_rules_processes.EXAMPLES,
    test_rules_flags.EXAMPLES,
    test_rules_allocator.EXAMPLES,
    test_rules_transfer.EXAMPLES,
    test_rules_ascend.EXAMPLES,
)


def test_every_rule_has_an_example() -> None:
    """No rule is declared whose finding was never seen."""
    shown = {example.id for examples in SHOWN for example in examples}
    shown |= {example.id for example in test_rules_memory.EXAMPLES}
    # Found when the pools are computed: tests/test_source_pools.py shows it.
    assert shown | {POOLS_REFUSED.id} == set(RULES)


def test_rules_are_declared_once_and_in_full() -> None:
    declared = [rule for rules in RULE_SETS for rule in rules.rules]
    assert len({rule.id for rule in declared}) == len(declared)
    for rule in declared:
        assert all((rule.finds, rule.consequence, rule.remedy, rule.source))
        assert not rule.finds.endswith(".")


def test_findings_come_worst_first() -> None:
    found = findings(understood((f"{STORE} --hicache-size x", {"MC_GID_INDX": "1"})))
    order = [Severity.FAIL, Severity.WARN, Severity.NOTE]
    assert [order.index(finding.rule.severity) for finding in found] == sorted(
        order.index(finding.rule.severity) for finding in found
    )
    assert found[0].rule.severity is Severity.FAIL


def test_an_unresolved_value_makes_no_finding_of_its_own() -> None:
    launch = (f"{STORE} --tp $TP --hicache-size $SIZE", {"MOONCAKE_MASTER": "$MASTER"})
    found = [f for f in findings(understood(launch)) if f.rule.severity is not Severity.NOTE]
    assert {finding.rule.id for finding in found} <= {"two-transfer-engines"}
