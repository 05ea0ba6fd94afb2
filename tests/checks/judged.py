"""Runs one check in a test, and keeps what it yields within what it declares."""

from collections.abc import Mapping

from checks.framework.check import Check, Judge
from checks.framework.finding import Finding, Status
from checks.framework.needs import LaunchNeeds
from checks.run_checks.facts import Facts
from checks.run_checks.runner import every_check, judge


def checks_of(*topics: str) -> dict[str, tuple[Check, Judge]]:
    """The checks whose ids begin with one of ``topics``, by id."""
    return {
        check.id: (check, judge_one)
        for check, judge_one in every_check()
        if check.id.partition(".")[0] in topics
    }


def judged(declared: tuple[Check, Judge], facts: Facts, needs: LaunchNeeds | None) -> list[Finding]:
    """What the check finds; it has found something, says why it does not pass, and declares it."""
    check, _ = declared
    # The command reads the declared topics alone.
    facts = Facts({name: facts.topic(name) for name in check.topics})
    findings = judge(facts, needs, [declared])
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


def assert_declared(checks: Mapping[str, tuple[Check, Judge]]) -> None:
    """Each declaration is complete enough for its page."""
    for check, _ in checks.values():
        assert len({status for status, _ in check.page.outcomes}) == len(check.page.outcomes)
        for text in (check.page.asks, check.page.why, check.page.remedy, check.page.source):
            assert text.strip()
        assert check.page.asks.endswith("?")
