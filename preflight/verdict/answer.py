"""One launch held against one host: the findings, what follows from each, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from checks.framework.finding import Finding, Status
from checks.framework.problem import Problem
from checks.framework.unknown import Unknown
from checks.run_checks.runner import every_check
from preflight.base.shell import Line, line
from preflight.base.usage_error import UsageError
from preflight.command_inputs.launch_words import ALL_CHECKS, Chosen, LaunchWords, Waiver
from preflight.verdict.judge_host import JudgedHost, judge_host
from preflight.verdict.report import Findings, Report, consequences, report

# Where the commands that mend something are to be run follows from these, whatever is checked.
_CONTEXT_TOPICS = ("system", "limits")


class Checked(NamedTuple):
    """A report, the judged host that it is made from, and the waivers that have not expired."""

    report: Report
    judged_host: JudgedHost
    waivers: tuple[Waiver, ...] = ()


def check_launch(
    launch: LaunchWords,
    root: str,
    timeout_seconds: float,
    *,
    chosen: Chosen = ALL_CHECKS,
    more_topics: Iterable[str] = (),
    report_slow: Callable[[list[str]], None] | None = None,
    judge_measured: Callable[[JudgedHost], list[Finding]] = lambda _: [],
) -> Checked:
    """Judge ``launch`` on the host ``root``.

    Raises UsageError.

    Args:
        chosen: Which checks to make and to waive.
        more_topics: Topics to read besides those of the checks.
        report_slow: Called with the topics that are still being read after a while.
        judge_measured: Gives findings about measured rates.
    """
    selection = selection_of(chosen)
    made = list(every_check(selection.takes))
    topics = (*_CONTEXT_TOPICS, *more_topics)
    judged_host = judge_host(
        launch, root, timeout_seconds, made, topics, report_slow, selection.takes
    )
    # That a launch could not be read is said whatever is selected.
    unread = isinstance(judged_host.launch, Unknown)
    known = known_problems(judged_host, selection)
    of_launch = [*judged_host.of_launch, *known, *judge_measured(judged_host)]
    of_launch = [findings for findings in of_launch if unread or selection.takes(findings.check)]
    over = waiver_findings(selection)
    ask_line = partial(_ask_line, launch=launch, root=root)
    every_finding = [*over, *judged_host.of_host, *of_launch]
    findings = _with_commands(every_finding, judged_host, made, ask_line)
    understood = ""
    left_out: tuple[str, ...] = ()
    if judged_host.launch is not None and not isinstance(judged_host.launch, Unknown):
        from preflight.command_inputs.reading.understood import (
            sentence,
            uses_no_hicache_or_mooncake,
        )
        from preflight.processes.host_groups import foreground_server

        processes = judged_host.launch.sizing.inputs.processes
        understood = sentence(processes)
        left_out = judged_host.launch.sizing.reading.left_out
        understood += "".join(f"; {text}" for text in left_out)
        if (group := judged_host.launch.sizing.group) is not None:
            understood += f"; {group.text}"
        elif (behind := foreground_server(judged_host.launch.sizing.whole)) is not None:
            understood += f"; {behind.text}"
        if uses_no_hicache_or_mooncake(processes):
            judged = {each.check for each in findings.findings if each.status is not Status.SKIP}
            of_host = {check.partition(".")[0] for check in judged if "." in check} - {"launch"}
            looked_at = ", ".join(sorted(of_host)) or "nothing of the host"
            understood += f"; neither HiCache nor Mooncake. Checked all the same: {looked_at}"
    needs, name = judged_host.needs, judged_host.host.name
    answer = report(findings, selection.ignore, needs, name, understood)
    answer = answer._replace(left_out=left_out, given_again=_given_again(launch))
    return Checked(answer, judged_host, selection.waivers)


def known_problems(judged_host: JudgedHost, selection: Selection) -> list[Finding]:
    """Judge the launch by the records of known problems; [] without a launch that was read, or
    without a record that is selected.
    """
    sized = judged_host.launch
    if sized is None or isinstance(sized, Unknown):
        return []
    from preflight.launch_problems.advisories.records import record_ids

    if not any(map(selection.takes, record_ids())):
        return []
    from preflight.launch_problems.advisories.judge import ADVISORIES

    given = {"sized": sized, "facts": judged_host.facts, "root": judged_host.host.root}
    return [found for each in ADVISORIES.problems for found in each.judge(given, subject="launch")]


def selection_of(chosen: Chosen) -> Selection:
    """Return the checks and rules chosen, and the waivers, valid and expired.

    A waiver of a lock is left out if its check is unknown, or has another waiver.

    Raises:
        UsageError: If a pattern or a waiver names no check, a check is waived twice, no check is
            left, or the file of waivers cannot be read.
    """
    if chosen == ALL_CHECKS:
        return Selection()
    from datetime import date

    from preflight.verdict.catalogue import judged_ids

    for option, patterns in (("--only", chosen.only), ("--skip", chosen.skip)):
        for pattern in patterns:
            if not any(_matches(check, (pattern,)) for check in judged_ids()):
                raise UsageError(f"{option} {pattern}: {_why_not(pattern, such='such an')}")
    options = [("--ignore", waiver) for waiver in chosen.ignore]
    if chosen.waivers is not None:
        option = f"--waivers {chosen.waivers}:"
        options += [(option, waiver) for waiver in read_waivers(chosen.waivers)]
    # What a lock waives is of an older command: a check that is gone cannot be found any more.
    rule_ids = {waiver.check for _, waiver in options}
    locked = (waiver for waiver in chosen.locked if waiver.check not in rule_ids)
    options += [("the lock", waiver) for waiver in locked if waiver.check in judged_ids()]
    holds: dict[str, Waiver] = {}
    over = []
    today = date.today()
    for option, waiver in options:
        if waiver.check not in judged_ids():
            raise UsageError(f"{option} {waiver.check}: {_why_not(waiver.check, such='this')}")
        if waiver.is_over(today):
            over.append(waiver)
        elif waiver.check in holds:
            raise UsageError(f"{option} {waiver.check}: it is waived twice: give one reason")
        else:
            holds[waiver.check] = waiver
    over = [waiver for waiver in over if waiver.check not in holds]
    only = chosen.only
    if any(pattern.startswith("advisory.") for pattern in only):
        only += ("launch.advisories",)  # what the records that do not affect the launch say in one
    selection = Selection(only, chosen.skip, tuple(holds.values()), tuple(over))
    if not any(map(selection.takes, judged_ids())):
        raise UsageError("--only and --skip together leave nothing to check, which is no pass")
    return selection


def _with_commands(
    findings: Sequence[Finding],
    judged_host: JudgedHost,
    host_checks: Sequence[Problem],
    ask_line: Callable[[str], tuple[Line, ...]],
) -> Findings:
    """Return the findings with functions for their commands and consequences.

    Args:
        ask_line: Gives the line that runs a subcommand of this program for the same launch.
    """
    from preflight.host_tuning.commands import commands, conditions_of, context_of
    from preflight.verdict.catalogue import launch_problems, paged

    declared = [*host_checks, *launch_problems(), *paged("measure")]

    context = context_of(judged_host.facts)
    return Findings(
        findings,
        consequences(declared),
        lambda finding: commands(finding.settings, context),
        lambda finding: conditions_of(finding.settings, context),
        lambda finding: ask_line(finding.asks),
    )


def _ask_line(command: str, launch: LaunchWords, root: str) -> tuple[Line, ...]:
    """Return the line that runs the subcommand ``command`` for the same launch file.

    Returns:
        () if ``command`` is "", or the launch was typed, piped, or read with other options than
        --root and the versions.
    """
    words = _given_again(launch)
    if not command or words is None or "--" in words:
        return ()
    host = () if root == "/" else ("--root", root)
    return (line(("mooncake-preflight", command, *host, *words)),)


def _given_again(launch: LaunchWords) -> tuple[str, ...] | None:
    """Return the launch's words as another command takes them, with the versions.

    Returns:
        None if it was piped, has a secret, or was read with other options than the versions.
    """
    from checks.host_snapshot.secrets import clean_words

    words, mooncake, sglang = launch.words, launch.mooncake_version, launch.sglang_version
    plain = LaunchWords(words, mooncake_version=mooncake, sglang_version=sglang)
    piped = len(words) == 1 and (words[0] == "-" or words[0].startswith("/dev/fd/"))
    if launch._replace(is_command=False) != plain or piped or clean_words(words) != [*words]:
        return None
    options = (("--mooncake-version", mooncake), ("--sglang-version", sglang))
    options_used = [word for name, value in options if value for word in (name, value)]
    typed = launch.is_command or len(words) > 1
    return (*options_used, *(("--",) if typed else ()), *words)


# Of a file of waivers; longer is none.
_MOST_CHARACTERS = 1 << 20


def read_waivers(path: str) -> tuple[Waiver, ...]:
    """Return the waivers of a TOML file: check, reason, until.

    Raises:
        UsageError: If the file cannot be read, has no waiver, or a wrong one.
    """
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    from preflight.base.within import limit_seconds, within

    def read() -> str:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST_CHARACTERS)

    where = f"--waivers {path}"
    try:
        table = tomllib.loads(within(limit_seconds(), where, read))
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{where}: {why}") from None
    rows = table.get("waiver", [])
    if set(table) - {"waiver"} or not isinstance(rows, list) or not rows:
        text = "write a table [[waiver]] for each, with check, reason and until"
        raise UsageError(f"{where}: {text}")
    return tuple(_waiver(where, number, row) for number, row in enumerate(rows, 1))


def _waiver(where: str, number: int, row: object) -> Waiver:
    """Read one row of the waivers.

    Raises UsageError.

    Args:
        where, number: The file and the row's place, for the message.
    """
    from datetime import date

    row = row if isinstance(row, dict) else {}
    check, reason, until = (row.get(name) for name in Waiver._fields)
    place = f"{where}: waiver {number} ({check})"
    if set(row) - set(Waiver._fields):
        extra = ", ".join(sorted(set(row) - set(Waiver._fields)))
        raise UsageError(f"{place}: {extra}: it has check, reason and until alone")
    if not (isinstance(check, str) and isinstance(reason, str) and check and reason.strip()):
        raise UsageError(f"{place}: give its check, and a reason that others understand, as texts")
    if until is not None and type(until) is not date:
        raise UsageError(f"{place}: until = {until}: write a date without quotes, as 2026-12-31")
    return Waiver(check, " ".join(reason.split()), until)


def waiver_findings(selection: Selection) -> list[Finding]:
    """Return a warning for each expired waiver of a check that is selected."""
    if not selection.expired:
        return []  # nothing of launches is loaded for a host alone
    text = "the waiver has expired, and what the check finds counts again"
    advice = "mend what the check finds, or write a later until; its reason: "
    rows = ((w, f"a waiver until {w.until}") for w in selection.expired if selection.takes(w.check))
    warn = partial(Finding, "launch.waiver", Status.WARN)
    return [warn(w.check, until, text=text, advice=advice + w.reason) for w, until in rows]


class Selection(NamedTuple):
    """Which checks are made, and which findings are waived.

    Attributes:
        only, skip: Patterns over ids (``rdma.*``).
        waivers: Valid ones.
        expired: Those whose last day is over.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    expired: tuple[Waiver, ...] = ()

    @property
    def ignore(self) -> Mapping[str, str]:
        """Return the reason of each waiver by the id of its check."""
        return {waiver.check: waiver.text for waiver in self.waivers}

    def takes(self, check: str) -> bool:
        """Tell whether the check is to be made."""
        return (not self.only or _matches(check, self.only)) and not _matches(check, self.skip)


def _why_not(pattern: str, such: str) -> str:
    """Return the end of an error message: why ``pattern`` matches no id.

    Args:
        such: "such an" or "this", before the word "id".
    """
    from preflight.verdict.catalogue import fleet_problems, judged_ids

    if any(_matches(problem.id, (pattern,)) for problem in fleet_problems()):
        merged = "`mooncake-preflight fleet merge` judges it, from the nodes' reports"
        text = "is found between nodes, never on one host"
        return f"{text}: {merged}, as does `fleet check`, which gets them itself"
    return f"no check has {such} id{nearest(pattern, judged_ids())}"


def nearest(name: str, ids: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown ``name``: the id that was probably meant, or
    the command that lists all.
    """
    from difflib import get_close_matches

    known = sorted(set(ids))
    close = get_close_matches(name, known, 1, 0.5)
    if not close:  # "memlock" for limits.memlock
        close = [check for check in known if name.strip("*.") and name.strip("*.") in check][:1]
    if close:
        return f" (did you mean {close[0]}?)"
    return ": `mooncake-preflight explain` lists them all"


def _matches(check: str, patterns: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(check, pattern) for pattern in patterns)
