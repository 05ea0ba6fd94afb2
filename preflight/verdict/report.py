"""A check's answer for programs: JSON (``schemas/check-v1.schema.json``), JUnit, exit protocols.

JUnit: fail is a failure, unknown an error, skip and an ignored finding are skipped, warn is a test
that passed and printed something. nagios: 0 to 3, no answer is 3. npd: the node problem detector's
custom plugins, 0 good, 1 a problem, 2 not known, a line of 80 bytes. slurm-prolog: anything but 0
drains the node and puts the job back, so only a failure may do that, never a typing error. k8s: an
init container or entry point, anything but 0 keeps the pod from starting.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from checks.framework.finding import Consequence, Evidence, Finding, Status
from checks.framework.fold import fold_alike
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.problem import Problem
from checks.host_snapshot.secrets import public
from checks.hugetlb.targets import ASK_FIT, FIT
from preflight.base import exit_codes
from preflight.base.envelope import actions, envelope, finding_object
from preflight.base.one_line import clean, shortened
from preflight.base.plain_data import fields, plain
from preflight.base.shell import Line, wanted_text

# A folded row names so many subjects that have no number to count by.
MOST_NAMES = 4

# The sentence that names the command which a finding asks, if no command can be typed.
ASKED = {FIT: ASK_FIT}

_JUDGED = (Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS)
_ORDER = list(Status)
# Of a finding, what may hold secrets.
_TEXTS = ("have", "need", "text", "advice", "cause", "tells_cause")
EXIT_CODES = {
    Status.PASS: exit_codes.PASS,
    Status.WARN: exit_codes.WARN,
    Status.FAIL: exit_codes.FAIL,
    Status.UNKNOWN: exit_codes.UNKNOWN,
}


class Row(NamedTuple):
    """One finding, or several alike: ``finding`` is the first, its subject names them all.

    Attributes:
        ignored: The reason of the waiver, None without one.
        consequence: Of the finding, or its check.
        commands: What mends the finding on this host, one a line; a line that starts with # is for
            people.
        conditions: Of the commands, as ``as root``.
        ask_sentence: Names the command of this program to ask, "" if ``commands`` has that command.
    """

    finding: Finding
    subjects: tuple[str, ...]
    ignored: str | None
    consequence: Consequence | None
    commands: tuple[Line, ...]
    conditions: tuple[str, ...] = ()
    ask_sentence: str = ""

    @property
    def advice(self) -> str:
        """The finding's advice and ``ask_sentence``, as one text."""
        return "; ".join(filter(None, (self.finding.advice, self.ask_sentence)))


class Report(NamedTuple):
    """The answer: rows, the worst first, and the verdict.

    Attributes:
        counts: Findings by status, before folding; waived ones by "ignored" alone.
        reason: Of the verdict, if the rows do not give it.
        root: The host's name, "/" for this host.
        unused_waivers: Checks that found nothing to waive.
        understood: The launch in one sentence; "" without one.
        left_out: Programs that the launch names and does not start.
        given_again: The launch as another command takes it, None if that cannot be typed.
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
    given_again: tuple[str, ...] | None = None

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

    Attributes:
        consequence_of: By a check's id, None if the id has none.
        commands: Those that mend a finding here; conditions: of these commands.
        ask_lines: The line that runs the command of this program which the finding asks for; () if
            no line can be typed.
    """

    findings: Sequence[Finding]
    consequence_of: Callable[[str], Consequence | None]
    commands: Callable[[Finding], tuple[Line, ...]]
    conditions: Callable[[Finding], tuple[str, ...]] = lambda _: ()
    ask_lines: Callable[[Finding], tuple[Line, ...]] = lambda _: ()


def consequences(declared: Iterable[Problem]) -> Callable[[str], Consequence | None]:
    """Return a function: a check's id -> the consequence of its page; None for other ids."""
    by_id = {problem.id: problem for problem in declared}
    return lambda id_: by_id[id_].page.consequences[0] if id_ in by_id else None


def report(
    findings: Findings,
    waivers: Mapping[str, str],
    needs: LaunchNeeds | None,
    root: str,
    understood: str = "",
) -> Report:
    """Fold and order the findings, judge them, and remove secrets.

    Waived findings are rows too, but do not change the verdict.

    Args:
        waivers: Check's id -> reason.
        needs: None without a launch.
        root: The host's name.
        understood: The launch in one sentence.
    """
    counting: list[Finding] = []
    waived: list[Finding] = []
    for finding in findings.findings:
        wanting = finding.status in (Status.FAIL, Status.UNKNOWN, Status.WARN)
        (waived if wanting and finding.check in waivers else counting).append(finding)
    verdict, reason = _verdict(counting)
    rows = [_row(group, findings, None) for group in _alike(counting)]
    rows += [_row(group, findings, waivers[group[0].check]) for group in _alike(waived)]
    statuses = [finding.status for finding in counting]
    used = {finding.check for finding in waived}
    return Report(
        verdict,
        reason,
        tuple(sorted(rows, key=_place)),
        {**{each.value: statuses.count(each) for each in Status}, "ignored": len(waived)},
        None if needs is None else needs._replace(source=public(needs.source)),
        root,
        tuple(check for check in waivers if check not in used),
        str(public(understood)),
    )


def _verdict(findings: Sequence[Finding]) -> tuple[Status, str]:
    """Return the worst judged status and ""; UNKNOWN and a reason if nothing was judged."""
    for status in _JUDGED:
        if any(finding.status is status for finding in findings):
            return status, ""
    return Status.UNKNOWN, "nothing was judged: every check was skipped or ignored"


def _place(row: Row) -> tuple[int, int]:
    """Return a key that sorts rows; waived ones stand after the warnings."""
    status = row.finding.status if row.ignored is None else Status.WARN
    return _ORDER.index(status), row.ignored is not None


def _row(group: Sequence[Finding], findings: Findings, ignored: str | None) -> Row:
    """Return the row of a group of findings that are alike, without secrets.

    A pass or a skip gets no commands.

    Args:
        ignored: The reason of the waiver, or None.
    """
    first = group[0]
    subjects = tuple(dict.fromkeys(public(finding.subject) for finding in group))
    quiet = first.status in (Status.PASS, Status.SKIP)
    ask_lines = () if quiet or not first.asks else findings.ask_lines(first)
    # What can be typed stands below as a command; else a sentence names it.
    sentence = "" if ask_lines or quiet else ASKED.get(first.asks, "")
    # A report is shown to others: in an issue, in a log that all may read.
    evidence = dict.fromkeys(e for finding in group for e in finding.evidence)
    texts = {name: public(getattr(first, name)) for name in _TEXTS}
    seen = tuple(Evidence(public(each.source), public(each.value)) for each in evidence)
    shown = first._replace(subject=fold(subjects), evidence=seen, **texts)
    commands = () if quiet else (*findings.commands(first), *ask_lines)
    consequence = first.consequence or findings.consequence_of(first.check)
    conditions = findings.conditions(first)
    return Row(shown, subjects, ignored, consequence, commands, conditions, sentence)


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return groups of findings that are the same but for their subject and its evidence."""
    groups: dict[Finding, list[Finding]] = {}
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


Json = dict[str, Any]


def report_object(
    report: Report, protocol: str, exit_code: int, more: Mapping[str, Any] | None = None
) -> Json:
    """Return the JSON answer of check in its envelope, without secrets.

    Args:
        protocol: Native, nagios or another.
        more: Further keys of the answer.
    """
    answer = {
        "exit_protocol": protocol,
        "counts": dict(report.counts),
        **({} if report.needs is None else _needs(report.needs)),
        "findings": findings_objects(report),
        "unused_ignores": list(report.unused_waivers),
        **(more or {}),
    }
    return envelope(
        "check",
        exit_code,
        public(answer),
        word=report.verdict.value,
        reason=verdict_reason(report),
        launch=launch_of(report),
        host=report.root,
    )


def launch_of(report: Report) -> tuple[str, str] | None:
    """Return the launch's name and what it starts, in one sentence; None without a launch."""
    return None if report.needs is None else (report.needs.source, report.understood)


def error_object(protocol: str, exit_code: int, message: str, command: str = "") -> Json:
    """Return the object for a command that gave no answer."""
    answer = {"exit_protocol": protocol}
    return envelope("check", exit_code, answer, word="error", reason=message, command=command)


def findings_objects(report: Report) -> list[Json]:
    """Return each row as JSON has it."""
    return [_finding(row) for row in report.rows]


def _finding(row: Row) -> Json:
    """Return one row as JSON."""
    finding = row.finding
    return {
        **finding_object(finding, row.subjects, **fields(finding, "formula", "text")),
        **fields(row, "advice", "ignored", "consequence"),
        "actions": actions(row.commands, finding.check),
        "evidence": plain(finding.evidence),
        "settings": [
            {"name": each.label, "wanted": wanted_text(each), **fields(each, "kind", "now")}
            for each in finding.settings
        ],
    }


def _needs(needs: LaunchNeeds) -> Json:
    """Return the needs of the launch as JSON."""
    return {
        **fields(needs, "hosts", "mooncake_version", "sglang_version"),
        "processes": [_process(process) for process in needs.processes],
        "services": [fields(each, "kind", "host", "port", "own") for each in needs.services],
        "ports": [fields(each, "what", "port") for each in needs.ports],
        "storage": [fields(each, "kind", "path") for each in needs.storage],
    }


def _process(process: ProcessNeeds) -> Json:
    """Return the needs of a process as JSON; a size that is not known is {"unknown": reason}."""
    sizes = "registered_bytes", "regular_bytes", "hugetlb_bytes"
    return {
        **fields(process, "name", "program"),
        "numa_node": plain(process.node),
        **fields(process, "gpu", *sizes),
        "devices": None if process.rdma is None else plain(process.rdma.devices),
    }


_TAGS = {
    Status.FAIL: "failure",
    Status.UNKNOWN: "error",
    Status.SKIP: "skipped",
    Status.WARN: "system-out",
}


_TOTALS = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))


def report_junit(report: Report) -> str:
    """Return the report as JUnit XML: one suite per topic, one case per row."""
    from xml.etree.ElementTree import Element

    suites: dict[str, Any] = {}
    for row in report.rows:
        check = row.finding.check
        topic = check.partition(".")[0]
        suite = suites.setdefault(topic, Element("testsuite", name=topic))
        _add_case(suite, check, f"{check}: {row.finding.subject}", *_outcome(row))
    return _document(suites.values())


def error_junit(message: str) -> str:
    """Return JUnit XML for a command that gave no answer: one suite with one error."""
    from xml.etree.ElementTree import Element

    suite = Element("testsuite", name="mooncake-preflight")
    _add_case(suite, "mooncake-preflight", "check", "error", message)
    return _document([suite])


def _outcome(row: Row) -> tuple[str, str, str]:
    """Return the tag of a row's outcome ("" for a plain pass), its message, and its details."""
    finding, tag = row.finding, _TAGS.get(row.finding.status, "")
    if row.ignored is not None:
        return "skipped", f"was {finding.status.value}; ignored: {row.ignored}", ""
    if tag in ("", "skipped"):
        return tag, finding.text, ""
    if tag == "system-out":
        return tag, "", f"warn: {_details(row)}"
    return tag, finding.text or row.advice or finding.check, _details(row)


def _add_case(suite: Any, check: str, name: str, tag: str, message: str, details: str = "") -> None:
    """Add a test case to a suite's element.

    Args:
        tag: Of the outcome, "" for a plain pass.
    """
    from xml.etree.ElementTree import SubElement

    case = SubElement(suite, "testcase", classname=_line(check), name=_line(name))
    if tag:
        about = {} if tag == "system-out" else {"message": _line(message)}
        SubElement(case, tag, about).text = _plain(details)


def _document(suites: Iterable[Any]) -> str:
    """Return the XML document of suites, with totals of each and of all."""
    from xml.etree.ElementTree import Element, indent, tostring

    root = Element("testsuites", name="mooncake-preflight")
    root.extend(suites)
    for element in (root, *root):
        for name, tag in (("tests", "testcase"), *_TOTALS):
            element.set(name, str(len(element.findall(f".//{tag}"))))
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _details(row: Row) -> str:
    """Return a row's text, amounts, formula, evidence, advice and commands, one a line."""
    finding = row.finding
    texts = (
        finding.text,
        f"have: {finding.have}" if finding.have else "",
        f"need: {finding.need}" if finding.need else "",
        f"formula: {finding.formula}" if finding.formula else "",
        *(f"seen: {seen.source}: {seen.value}" for seen in finding.evidence),
        row.advice,
        *row.commands,
    )
    return "\n".join(text for text in texts if text)


def _plain(text: str) -> str:
    # What XML 1.0 has no way to say, not even as a reference.
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _line(text: str) -> str:
    """Return an attribute's value on one line: a parser turns line ends into blanks anyway."""
    return _plain(" ".join(text.split()))


# Those with one answer to give, yes or no: --fail-on says from where on it is no.
YES_OR_NO = ("npd", "slurm-prolog", "k8s")
FAIL_ON = {
    "fail": (Status.FAIL,),
    "unknown": (Status.FAIL, Status.UNKNOWN),
    "warn": (Status.FAIL, Status.UNKNOWN, Status.WARN),
}
_FAIL_ON_DEFAULT = {"npd": "fail", "slurm-prolog": "fail", "k8s": "unknown"}
# What the node problem detector keeps of a plugin's output (max_output_length).
NPD_BYTES = 80
_NAGIOS = {Status.PASS: "OK", Status.WARN: "WARNING", Status.FAIL: "CRITICAL"}


def exit_code(verdict: Status, protocol: str, fail_on: str | None = None) -> int:
    """Return the process's exit code for a verdict.

    Args:
        fail_on: The mildest status that is a "no" for a protocol of YES_OR_NO, None for the
            protocol's default; other protocols do not use it.
    """
    if protocol not in YES_OR_NO:
        return EXIT_CODES[verdict]
    if verdict in FAIL_ON[fail_on or _FAIL_ON_DEFAULT[protocol]]:
        # A pod's log shows which it was; the others know one code for "no".
        return EXIT_CODES[verdict] if protocol == "k8s" else 1
    return 2 if protocol == "npd" and verdict is Status.UNKNOWN else 0


def refusal_code(code: int, protocol: str) -> int:
    """Return the exit code where there is no verdict: ``code`` as the native protocol has it."""
    return {"nagios": 3, "npd": 3, "slurm-prolog": 0}.get(protocol, code)


def protocol_line(report: Report, protocol: str) -> str | None:
    """Return the one line that a protocol reads; None for a protocol that takes the whole text."""
    if protocol == "nagios":
        text = f"{_first(report)} ({count_text(report)})".replace("|", "/")
        data = " ".join(f"{name}={number}" for name, number in report.counts.items())
        return f"MOONCAKE {_NAGIOS.get(report.verdict, 'UNKNOWN')} - {text}|{data}"
    return _plain_line(report.verdict.value, _first(report), protocol)


def refusal_line(message: str, protocol: str) -> str | None:
    """Return the one line of a protocol without a verdict; None if it takes the whole text."""
    text = clean(message)
    if protocol == "nagios":
        return f"MOONCAKE UNKNOWN - {text.replace('|', '/')}"
    return _plain_line("error", text, protocol)


def _plain_line(word: str, text: str, protocol: str) -> str | None:
    if protocol == "npd":  # ASCII: what reads it may cut a character in two
        return shortened(f"{word}: {text}".encode("ascii", "replace").decode(), NPD_BYTES)
    return f"print mooncake-preflight: {word}: {text}" if protocol == "slurm-prolog" else None


def _first(report: Report) -> str:
    """Return the first finding with the verdict's status in a few words, and how many more have
    that status.

    After a pass, or a verdict with a reason: a sentence that says so.
    """
    rows = report.of(report.verdict)
    if report.reason or report.verdict is Status.PASS or not rows:
        return report.reason or "nothing stands in the way"
    more = f" (+{len(rows) - 1})" if len(rows) > 1 else ""
    finding = rows[0].finding
    worst = f"{finding.check} {finding.subject}: {amounts(finding) or finding.text}"
    return f"{clean(worst)}{more}"
