"""A report's verdict in words, for every form that it is printed in."""

from __future__ import annotations

from checks.base.finding import Consequence, Status
from preflight.base.one_line import clean
from preflight.check.report import Report

_WORST = (
    Consequence.WILL_NOT_START,
    Consequence.CORRUPTS,
    Consequence.DIES_LATER,
    Consequence.DEGRADED,
)


def verdict_reason(report: Report) -> str:
    """What the verdict means for this launch, or for this host where none was given."""
    launch = None if report.needs is None else clean(report.needs.source)
    where = "this host" if report.root == "/" else clean(report.root)
    if report.reason:
        return report.reason
    if report.verdict is Status.FAIL:
        found = {row.consequence for row in report.of(Status.FAIL)}
        worst = next((kind.value for kind in _WORST if kind in found), "will not start")
        return f"{launch or 'a launch'} {_future(worst)} on {where}"
    if report.verdict is Status.UNKNOWN:
        return f"what decides for {launch or 'a launch'} on {where} cannot be known"
    about = f"{launch} on {where}" if launch else f"{where}, without a launch to hold against it"
    if report.verdict is Status.WARN:
        return f"{about}: nothing fails, something is not as it should be"
    return f"{about}: nothing stands in the way"


def _future(consequence: str) -> str:
    return "would be silently degraded" if consequence.startswith("silent") else consequence


def count_text(report: Report) -> str:
    """``2 fail, 1 unknown, 41 pass``: what there is none of is left out."""
    counts = [f"{number} {name}" for name, number in report.counts.items() if number]
    return ", ".join(counts) or "nothing checked"
