"""One verdict from two: a launch whose pools are known only between two bounds is judged at both.

What fails at the upper bound alone may start and may not: that is unknown, not a failure. What
fails at both is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from checks.base.finding import Finding, Status
from checks.base.needs import LaunchNeeds
from checks.base.units import or_more
from preflight.sizing.launch_needs import launch_needs
from preflight.sizing.launch_sizing import LaunchSizing

_ORDER = list(Status)


def least_needs(sizing: LaunchSizing) -> LaunchNeeds | None:
    """Compute the needs at the lower bound of the pools; None if both bounds are the same."""
    inputs = sizing.inputs
    if sizing.least is None or inputs.most == inputs.least:
        return None
    memory = {
        number: memory_of._replace(
            most_pools_bytes=memory_of.least_pools_bytes, most_by_stage=memory_of.least_by_stage
        )
        for number, memory_of in inputs.memory.items()
    }
    lower = inputs._replace(most=inputs.least, memory=memory)
    return launch_needs(sizing._replace(inputs=lower, most=sizing.least))


def between(at_most: Iterable[Finding], at_least: Iterable[Finding]) -> list[Finding]:
    """Return the findings of both bounds as one list, in the order of those at the upper one."""
    lower: dict[str, list[Finding]] = {}
    for finding in at_least:
        lower.setdefault(finding.check, []).append(finding)
    groups = groupby(at_most, key=lambda finding: finding.check)
    return [
        finding
        for check, upper in groups
        for finding in _of_check(list(upper), lower.get(check, []))
    ]


def _of_check(upper: Sequence[Finding], lower: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings of one check, each as both bounds have it."""
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
            yield _open(finding, other, finding, "fits at the lower one, but at the upper one")
        elif other is not None and status is Status.FAIL and finding.status is not Status.FAIL:
            yield _open(finding, other, other, "fits at the upper one, but at the lower one")
        else:
            yield finding


def _worst(findings: Sequence[Finding]) -> Status:
    return min((finding.status for finding in findings), key=_ORDER.index, default=Status.SKIP)


def _open(upper: Finding, lower: Finding | None, failed: Finding, where: str) -> Finding:
    """Return ``failed`` as unknown: it holds at one bound of the sizes alone."""
    need = upper.need
    if lower is not None and lower.need and lower.need != need:
        need = f"{lower.need} to {need}"
    text = f"known only between two bounds: it {where}: {failed.text}"
    return failed._replace(status=Status.UNKNOWN, need=need, text=text)
