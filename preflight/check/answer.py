"""One launch held against one host: the findings, what follows from each, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from checks.base.check import Check, Judge
from checks.base.finding import Finding
from checks.base.unknown import Unknown
from checks.run.runner import every_check
from preflight.check.report import Findings, Report, consequences, report
from preflight.check.selection import Selection, select
from preflight.inputs.launch_words import LaunchWords
from preflight.judging.judge_host import JudgedHost, judge_host

# Where the commands that mend something are to be run follows from these, whatever is checked.
_CONTEXT_TOPICS = ("system", "limits")


class Checked(NamedTuple):
    """A report, and what it was made from."""

    report: Report
    seen: JudgedHost


def checked(
    launch: LaunchWords,
    root: str,
    timeout_seconds: float,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    ignore: Sequence[str] = (),
    more_topics: Iterable[str] = (),
    slow: Callable[[list[str]], None] | None = None,
) -> Checked:
    """Judge ``launch`` on the host at ``root``. Raises UsageError.

    only, skip: patterns over ids; ignore: waivers, as ID=REASON. more_topics: to be read too.
    ``slow`` is told what takes long to read.
    """
    host_checks = list(every_check())
    selection = _selection(only, skip, ignore, host_checks)
    chosen = [pair for pair in host_checks if selection.takes(pair[0].id)]
    seen = judge_host(launch, root, timeout_seconds, chosen, (*_CONTEXT_TOPICS, *more_topics), slow)
    # That a launch could not be read is said whatever is selected.
    unread = isinstance(seen.launch, Unknown)
    of_launch = [found for found in seen.of_launch if unread or selection.takes(found.check)]
    found = _explained([*seen.of_host, *of_launch], seen, host_checks)
    return Checked(report(found, selection.ignore, seen.needs, seen.host.name), seen)


def _selection(
    only: Sequence[str],
    skip: Sequence[str],
    ignore: Sequence[str],
    host_checks: Sequence[tuple[Check, Judge]],
) -> Selection:
    if not (only or skip or ignore):
        return Selection()
    from preflight.judging.launch_checks import LAUNCH_CHECKS
    from preflight.rules.launch_rules import RULES

    known = [*(check.id for check, _ in host_checks), *(check.id for check in LAUNCH_CHECKS)]
    return select(only, skip, ignore, [*known, *RULES])


def _explained(
    found: Sequence[Finding],
    seen: JudgedHost,
    host_checks: Sequence[tuple[Check, Judge]],
) -> Findings:
    """With what follows from each, and what mends it where it will run."""
    declared = [check for check, _ in host_checks]
    if seen.launch is not None:
        from preflight.judging.launch_checks import LAUNCH_CHECKS

        declared += LAUNCH_CHECKS
    from preflight.settings.commands import commands, context_of

    context = context_of(seen.facts)
    return Findings(found, consequences(declared), lambda one: commands(one.settings, context))
