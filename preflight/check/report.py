"""A check's answer as data: rows in the order in which they are shown, counts, and the verdict."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from checks.base.check import Check
from checks.base.finding import Consequence, Evidence, Finding, Status
from checks.base.fold import fold_alike
from checks.base.needs import LaunchNeeds
from checks.capture.secrets import public
from checks.hugetlb.targets import ASK_FIT, FIT
from preflight.base import exit_codes
from preflight.base.one_line import clean
from preflight.base.shell import Line

# A folded row names so many subjects that have no number to count by.
MOST_NAMES = 4

# The sentence that names the command which a finding asks, if no command can be typed.
ASKED = {FIT: ASK_FIT}

_JUDGED = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS)
_ORDER = list(Status)
_TEXTS = ("have", "need", "text", "advice", "cause")  # of a finding, which may hold secrets
EXIT_CODES = {
    Status.PASS: exit_codes.PASS,
    Status.WARN: exit_codes.WARN,
    Status.FAIL: exit_codes.FAIL,
    Status.UNKNOWN: exit_codes.UNKNOWN,
}


class Row(NamedTuple):
    """One finding, or several alike: ``finding`` is the first, its subject names them all.

    ignored: the reason of the waiver, None without one. consequence: of the finding, or its
    check. commands: what mends the finding on this host, one a line; a line that starts with #
    is for people. takes: the conditions of the commands, as ``as root``. ask_sentence: names the
    command of this program to ask, "" if ``commands`` has that command.
    """

    finding: Finding
    subjects: tuple[str, ...]
    ignored: str | None
    consequence: Consequence | None
    commands: tuple[Line, ...]
    takes: tuple[str, ...] = ()
    ask_sentence: str = ""

    @property
    def advice(self) -> str:
        """The finding's advice and ``ask_sentence``, as one text."""
        return "; ".join(filter(None, (self.finding.advice, self.ask_sentence)))


class Report(NamedTuple):
    """The answer: rows, the worst first, and the verdict.

    counts: findings by status, before folding; ignored ones apart. reason: the reason of the
    verdict, if the rows do not give it. understood: the launch in one sentence; "" without one.
    left_out: programs that the launch names and does not start.
    """

    verdict: Status
    reason: str
    rows: tuple[Row, ...]
    counts: Mapping[str, int]
    needs: LaunchNeeds | None
    root: str
    unused_waivers: tuple[str, ...]
    understood: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def of(self, *statuses: Status) -> tuple[Row, ...]:
        """Return the rows with one of these statuses, without waived ones."""
        return tuple(
            row for row in self.rows if row.ignored is None and row.finding.status in statuses
        )

    @property
    def waived(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.ignored is not None)


class Findings(NamedTuple):
    """The findings to report, and functions that give what follows from each.

    commands: those that mend a finding here; takes: their conditions. asked: the line of this
    program that finds what would do, () if no line can be typed.
    """

    findings: Sequence[Finding]
    consequence_of: Callable[[str], Consequence | None]
    commands: Callable[[Finding], tuple[Line, ...]]
    takes: Callable[[Finding], tuple[str, ...]] = lambda _: ()
    asked: Callable[[Finding], tuple[Line, ...]] = lambda _: ()


def consequences(declared: Iterable[Check]) -> Callable[[str], Consequence | None]:
    """Return a function: a check's id -> the consequence of its page; None for other ids."""
    by_id = {check.id: check for check in declared}
    return lambda id_: by_id[id_].consequence if id_ in by_id else None


def report(
    findings: Findings,
    waivers: Mapping[str, str],
    needs: LaunchNeeds | None,
    root: str,
    understood: str = "",
) -> Report:
    """Fold, order and judge the findings. Those that are waived count nowhere."""
    counting: list[Finding] = []
    waived: list[Finding] = []
    for finding in findings.findings:
        wanting = finding.status in (Status.FAIL, Status.UNKNOWN, Status.WARN)
        (waived if wanting and finding.check in waivers else counting).append(finding)
    verdict, reason = _verdict(counting)
    rows = [_row(group, findings, None) for group in _alike(counting)]
    rows += [_row(group, findings, waivers[group[0].check]) for group in _alike(waived)]
    counts = {
        status.value: sum(finding.status is status for finding in counting) for status in Status
    }
    used = {finding.check for finding in waived}
    return Report(
        verdict,
        reason,
        tuple(sorted(rows, key=_place)),
        {**counts, "ignored": len(waived)},
        None if needs is None else needs._replace(source=public(needs.source)),
        root,
        tuple(check for check in waivers if check not in used),
        str(public(understood)),
    )


def _verdict(findings: Sequence[Finding]) -> tuple[Status, str]:
    """Return the worst of what was judged; nothing judged is nothing known, never a pass."""
    for status in _JUDGED:
        if any(finding.status is status for finding in findings):
            return status, ""
    return Status.UNKNOWN, "nothing was judged: every check was skipped or ignored"


def _place(row: Row) -> tuple[int, int]:
    """Return a key that sorts rows; waived ones stand after the warnings."""
    status = row.finding.status if row.ignored is None else Status.WARN
    return _ORDER.index(status), row.ignored is not None


def _row(group: Sequence[Finding], answers: Findings, ignored: str | None) -> Row:
    """Return the row of findings that are alike, without secrets."""
    first = group[0]
    subjects = tuple(dict.fromkeys(public(finding.subject) for finding in group))
    quiet = first.status in (Status.PASS, Status.SKIP)
    asked = () if quiet or not first.asks else answers.asked(first)
    # What can be typed stands below as a command; else a sentence names it.
    sentence = "" if asked or quiet else ASKED.get(first.asks, "")
    # A report is shown to others: in an issue, in a log that all may read.
    evidence = dict.fromkeys(e for finding in group for e in finding.evidence)
    texts = {name: public(getattr(first, name)) for name in _TEXTS}
    seen = tuple(Evidence(public(each.source), public(each.value)) for each in evidence)
    shown = first._replace(subject=fold(subjects), evidence=seen, **texts)
    commands = () if quiet else (*answers.commands(first), *asked)
    consequence = first.consequence or answers.consequence_of(first.check)
    return Row(shown, subjects, ignored, consequence, commands, answers.takes(first), sentence)


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return groups of findings that are the same but for their subject and its evidence."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding._replace(subject="", evidence=()), []).append(finding)
    return list(groups.values())


def amounts(finding: Finding) -> str:
    """Return ``have 8.00 MiB, need 60.00 GiB``: what there is of the two, on one line."""
    pairs = (("have", finding.have), ("need", finding.need))
    return ", ".join(f"{word} {clean(text)}" for word, text in pairs if text)


def fold(subjects: Sequence[str]) -> str:
    """Return several subjects as one: ``rank 0-7``, ``mlx5_0-3 port 1``, or the first by name."""
    return fold_alike(subjects, MOST_NAMES)


_WORST = (
    Consequence.WILL_NOT_START,
    Consequence.CORRUPTS,
    Consequence.DIES_LATER,
    Consequence.DEGRADED,
)


def verdict_reason(report: Report) -> str:
    """Say what the verdict means for this launch, or for this host without one."""
    launch = None if report.needs is None else clean(report.needs.source)
    where = "this host" if report.root == "/" else clean(report.root)
    if report.reason:
        return report.reason
    if report.verdict is Status.FAIL:
        consequences = {row.consequence or _WORST[0] for row in report.of(Status.FAIL)}
        worst = next((each for each in _WORST if each in consequences), _WORST[0])
        degraded = worst is Consequence.DEGRADED
        what = "starts and runs badly, without a message," if degraded else worst.value
        return f"{launch or 'a launch'} {what} on {where}"
    if report.verdict is Status.UNKNOWN:
        return f"whether {launch or 'a launch'} runs on {where} cannot be known"
    about = f"{launch} on {where}" if launch else f"{where}, without a launch to check it for"
    if report.verdict is Status.WARN:
        return f"{about}: nothing fails, something is not as it should be"
    return f"{about}: nothing stands in the way"


def count_text(report: Report, without: Collection[str] = ()) -> str:
    """Return ``2 fail, 1 unknown, 41 pass``: what there is none of is left out."""
    there = {name: number for name, number in report.counts.items() if number}
    shown = {name for name in there if name not in without} or there
    counts = [f"{there[name]} {name}" for name in there if name in shown]
    return ", ".join(counts) or "nothing checked"
