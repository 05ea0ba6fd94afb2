"""One launch held against one host, as data: what check, plan and apply all start from.

A launch whose pools are known only between two bounds is judged at both. A failure at only the
upper bound becomes unknown, as the launch may start. A failure at both bounds stays a failure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from checks.framework.finding import Finding, Status, unknown_finding
from checks.framework.needs import LaunchNeeds
from checks.framework.problem import Problem
from checks.framework.units import or_more
from checks.framework.unknown import Unknown
from checks.run_checks.facts import READERS, Facts, read_facts
from checks.run_checks.runner import judge
from preflight.command_inputs.host_source import Host, Sized, open_host, size_within
from preflight.command_inputs.launch_words import LaunchWords
from preflight.host_tuning.refusal import REFUSING, without_refused

_ORDER = list(Status)


class JudgedHost(NamedTuple):
    """A launch held against a host.

    Attributes:
        launch: None if none was given, Unknown if it was not read in time.
        needs: Of the launch, None without one.
        of_host, of_launch: The findings of each.
    """

    host: Host
    launch: Sized | Unknown | None
    needs: LaunchNeeds | None
    facts: Facts
    of_host: list[Finding]
    of_launch: list[Finding]

    @property
    def findings(self) -> list[Finding]:
        return [*self.of_host, *self.of_launch]


def judge_host(
    launch: LaunchWords,
    root: str | Host,
    timeout_seconds: float,
    checks: Sequence[Problem],
    more_topics: Iterable[str] = READERS,
    slow: Callable[[list[str]], None] | None = None,
    takes: Callable[[str], bool] = lambda _: True,
) -> JudgedHost:
    """Judge a launch on a host by ``checks``: read their topics and ``more_topics``, run them, and
    judge the launch itself.

    Raises UsageError.

    Args:
        root: A path, or a ``Host`` that was opened before, whose facts are not read twice. Without
            a launch, checks that need one are left out.
        slow: Called with the topics that are still being read after a while.
        takes: Tells which findings of the launch are asked for, by their ids. Others are judged
            where they may refuse a setting of the host.
    """
    host = open_host(root, timeout_seconds) if isinstance(root, str) else root
    read = size_within(launch, host, timeout_seconds)
    sized = None if isinstance(read, Unknown) else read
    needs = None if sized is None else sized.needs
    asked = [check for check in checks if needs is not None or check.of_host]
    wanted = {topic for check in asked for topic in check.about}.union(more_topics)
    topics = [topic for topic in READERS if topic in wanted]
    facts = read_facts(host.root, needs, timeout_seconds, topics, slow)
    seen = JudgedHost(host, read, needs, facts, [], [])
    of_host = _at_both_bounds(seen, checks)
    refusing = REFUSING if any(finding.settings for finding in of_host) else ()
    of_launch = _judge_launch(read, facts, lambda id_: takes(id_) or id_ in refusing)
    return seen._replace(of_host=without_refused(of_host, of_launch), of_launch=of_launch)


def judge_again(seen: JudgedHost, checks: Sequence[Problem]) -> list[Finding]:
    """Run ``checks`` on the facts of ``seen``, at both bounds, without the refused settings."""
    return without_refused(_at_both_bounds(seen, checks), seen.of_launch)


def _at_both_bounds(seen: JudgedHost, checks: Sequence[Problem]) -> list[Finding]:
    findings = judge(seen.facts, seen.needs, checks)
    sized = seen.launch
    if isinstance(sized, Sized) and sized.least_needs is not None:
        findings = merge_bounds(findings, judge(seen.facts, sized.least_needs, checks))
    return findings


def merge_bounds(at_most: Iterable[Finding], at_least: Iterable[Finding]) -> list[Finding]:
    """Return the findings of both bounds as one list, in the order of ``at_most`` (the upper)."""
    lower: dict[str, list[Finding]] = {}
    for finding in at_least:
        lower.setdefault(finding.check, []).append(finding)
    groups = groupby(at_most, key=lambda finding: finding.check)
    return [
        finding
        for check, upper in groups
        for finding in _merge_check(list(upper), lower.get(check, []))
    ]


def _merge_check(upper: Sequence[Finding], lower: Sequence[Finding]) -> Iterator[Finding]:
    """Merge the findings of one check at both bounds: a failure at only one bound becomes unknown.

    If the upper bound is unknown and the lower bound fails, its failures are kept.
    """
    below = {finding.subject: finding for finding in lower}
    if _worst(upper) is Status.UNKNOWN and _worst(lower) is Status.FAIL:
        # The upper bound is not known, and the lower one is too much already.
        failed = [finding for finding in lower if finding.status is Status.FAIL]
        for finding in failed:
            yield finding._replace(need=or_more(finding.need) if finding.need else "")
        subjects = {finding.subject for finding in failed}
        yield from (finding for finding in upper if finding.subject not in subjects)
        return
    for finding in upper:
        other = below.get(finding.subject)
        status = _worst(lower) if other is None else other.status
        if finding.status is Status.FAIL and status not in (Status.FAIL, Status.UNKNOWN):
            yield _undecided(finding, other, finding, "fits at the lower one, but at the upper one")
        elif other is not None and status is Status.FAIL and finding.status is not Status.FAIL:
            yield _undecided(finding, other, other, "fits at the upper one, but at the lower one")
        else:
            yield finding


def _worst(findings: Sequence[Finding]) -> Status:
    return min((finding.status for finding in findings), key=_ORDER.index, default=Status.SKIP)


def _undecided(upper: Finding, lower: Finding | None, failed: Finding, where: str) -> Finding:
    """Return ``failed`` as unknown: it fails at only one bound.

    Args:
        where: Says at which bound.
    """
    need = upper.need
    if lower is not None and lower.need and lower.need != need:
        need = f"{lower.need} to {need}"
    text = f"known only between two bounds: it {where}: {failed.text}"
    return failed._replace(status=Status.UNKNOWN, need=need, text=text)


def _judge_launch(
    launch: Sized | Unknown | None, facts: Facts, takes: Callable[[str], bool]
) -> list[Finding]:
    """Judge the launch itself on a host, as far as ``takes`` tells; [] without a launch.

    A launch that was not read, or an error in the checks, gives one unknown finding.
    """
    if launch is None:
        return []
    from preflight.verdict.catalogue import launch_ids

    if not isinstance(launch, Unknown) and not any(map(takes, launch_ids())):
        return []
    from preflight.verdict.launch_checks import SIZES, launch_findings

    if isinstance(launch, Unknown):
        return [unknown_finding("launch", launch, check=SIZES)]
    try:
        return launch_findings(launch.sizing, facts, takes)
    except Exception as error:
        text = f"defect of this check: {type(error).__name__}: {error}"
        return [Finding(SIZES, Status.UNKNOWN, "launch", text=text)]
