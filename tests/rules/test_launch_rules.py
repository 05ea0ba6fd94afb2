"""All rules together: each has its example, is declared once, and findings come worst first."""

from __future__ import annotations

import re
from pathlib import Path

from preflight.rules.launch_rules import RULE_SETS, RULES, findings
from preflight.rules.rules import Severity, read_page
from tests.builders.launch_text import STORE, understood
from tests.builders.rule_examples import Example, prove
from tests.paths import ROOT
from tests.rules import (
    test_rules_consumers,
    test_rules_devices,
    test_rules_hicache,
    test_rules_memory,
    test_rules_programs,
    test_rules_store,
    test_rules_tier_use,
    test_rules_variables,
)
from tests.rules.test_rules_consumers import TRAPS
from tests.tables import each_row

RULES_FOLDER = ROOT / "preflight/rules"
ITEMS = ["what follows", "what to do", "read or seen in"]
EXAMPLES: tuple[Example, ...] = (
    *(*test_rules_store.EXAMPLES, *test_rules_hicache.EXAMPLES, *test_rules_devices.EXAMPLES),
    *(*test_rules_variables.EXAMPLES, *test_rules_programs.EXAMPLES),
    *(*test_rules_consumers.EXAMPLES, *test_rules_tier_use.EXAMPLES),
)


@each_row("example", EXAMPLES)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)


def test_every_rule_has_an_example() -> None:
    """No rule is declared whose finding was never seen."""
    shown = {example.id for example in EXAMPLES}
    shown |= {example.id for example in test_rules_memory.EXAMPLES}
    shown |= set().union(*test_rules_tier_use.SILENT.values()) | test_rules_tier_use.BY_RELEASE
    shown |= {trap.id for trap in TRAPS if trap.id in RULES}  # others are checks
    # Its page has the words before and after: test_rule_pages.py.
    shown |= {rule.id for rule in RULES.values() if rule.before}
    # Found when the pools are computed: tests/sglang/test_source_pools.py shows it. Of a Compose
    # file: tests/rules/test_rules_transfer.py.
    assert shown | {"host-pools-refused", "service-misdirected"} == set(RULES)


def test_each_section_has_its_function_and_stands_once() -> None:
    """A section that nothing checks would promise what is never found."""
    checked = [
        rule.id for rules in RULE_SETS for checks in rules.checks.values() for rule, _ in checks
    ]
    assert len(set(checked)) == len(checked)
    assert {*checked, "host-pools-refused"} == set(RULES)
    assert sum(len(rules.page) for rules in RULE_SETS) == len(RULES)
    for rule in RULES.values():
        assert not rule.finds.endswith(".")


SECTION = """# Topic

## a-rule

**warn**: a `--flag` that
nothing reads

- what follows: nothing
- what to do: drop
  it
- read or seen in: a.cpp
"""


def test_a_page_is_read_as_it_is_written() -> None:
    """Lines are joined, and backticks are for the reader of the page."""
    (rule,) = read_page(SECTION).values()
    assert rule.severity is Severity.WARN
    assert (rule.id, rule.finds) == ("a-rule", "a --flag that nothing reads")
    assert (rule.consequence, rule.remedy, rule.source) == ("nothing", "drop it", "a.cpp")
    assert (rule.before, rule.after) == ("", "")
    (shown,) = read_page(SECTION + "- before: `--flag`\n- after: leave it out\n").values()
    assert (shown.source, shown.before, shown.after) == ("a.cpp", "--flag", "leave it out")


@each_row("page", sorted(RULES_FOLDER.glob("*.md")))
def test_each_section_of_a_page_has_its_items(page: Path) -> None:
    """Each id once, what it finds, and three items, or five with the words before and after."""
    sections = page.read_text().split("\n## ")[1:]
    ids = [section.partition("\n")[0] for section in sections]
    assert len(ids) == len(set(ids))
    for section in sections:
        head, *items = section.split("\n- ")
        assert re.match(r".*\n\n?\*\*(fail|dies|corrupts|unused|warn|note)\*\*: \S", head), section
        names = [item.partition(": ")[0] for item in items]
        assert names in (ITEMS, [*ITEMS, "before", "after"]), section


def test_findings_come_worst_first() -> None:
    found = findings(understood((f"{STORE} --hicache-size x", {"MC_GID_INDX": "1"})))
    order = list(Severity)
    assert [order.index(finding.rule.severity) for finding in found] == sorted(
        order.index(finding.rule.severity) for finding in found
    )
    assert found[0].rule.severity is Severity.FAIL


def test_an_unresolved_value_makes_no_finding_of_its_own() -> None:
    launch = (f"{STORE} --tp $TP --hicache-size $SIZE", {"MOONCAKE_MASTER": "$MASTER"})
    found = [f for f in findings(understood(launch)) if f.rule.severity is not Severity.NOTE]
    assert {finding.rule.id for finding in found} <= {"two-transfer-engines"}
