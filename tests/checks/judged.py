"""Runs one check in a test, and keeps what it yields within what it declares."""

from collections.abc import Mapping

from checks.framework.finding import Finding, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.problem import Problem
from checks.run_checks.facts import Facts
from checks.run_checks.runner import every_check, judge


def checks_of(*topics: str) -> dict[str, Problem]:
    """The checks whose ids begin with one of ``topics``, by id."""
    return {check.id: check for check in every_check() if check.id.partition(".")[0] in topics}


def judged(check: Problem, facts: Facts, needs: LaunchNeeds | None) -> list[Finding]:
    """What the check finds; it has found something, says why it does not pass, and declares it."""
    # The command reads the declared topics alone.
    facts = Facts({name: facts.topic(name) for name in check.about})
    findings = judge(facts, needs, [check])
    listed = {status for status, _ in check.page.outcomes}
    for finding in findings:
        assert finding.check == check.id
        assert not finding.text.startswith("defect"), finding.text
        # A topic that is missing altogether makes any check unknown.
        assert finding.status in listed | {Status.UNKNOWN}, (finding, listed)
        if finding.status is not Status.PASS:
            assert finding.text
        if finding.status in (Status.FAIL, Status.WARN):
            assert finding.advice
            assert finding.evidence or finding.have
    return findings


def assert_declared(checks: Mapping[str, Problem]) -> None:
    """Each declaration is complete enough for its page."""
    for check in checks.values():
        assert len({status for status, _ in check.page.outcomes}) == len(check.page.outcomes)
        for text in (check.page.asks, check.page.why, check.page.remedy, check.page.source):
            assert text.strip()
        assert check.page.asks.endswith("?")
