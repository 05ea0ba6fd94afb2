"""Objects of check's JSON to rows, or to ``Unusable`` with the reason: nothing in them raises."""

import marshal
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from checks.framework.unknown import Unknown
from preflight.fleet.base.decode import LARGEST_NUMBER, LONGEST_TEXT, WrongError, decode, short
from preflight.fleet.base.node_sets import is_name
from preflight.fleet.reports.rows import (
    NO_VERDICT,
    STATUSES,
    Fact,
    FleetFinding,
    LaunchService,
    NodeLaunch,
    NodeRow,
    Trouble,
    Unusable,
    text_place,
    trouble,
    worst,
)
from preflight.fleet.reports.sources import FoundReport, name_of
from preflight.report.machine import LaunchShare, Rail

SCHEMA = "mooncake-preflight/check/v"
VERSION = "1"  # any other is not known here
# What passed is shown by its beginning. If it has more amounts than these, as of free memory, none
# is kept: 5,000 reports that are not alike took 2.6 GB.
LONGEST_PASS = 80
MOST_AMOUNTS = 100
MOST_PARTS = 20_000  # of reports, kept to know equal ones by; a report has some hundred
# Written in place of a node's own name, so that what two nodes say of themselves is the same.
ITSELF = "the node"

Unnamed = Callable[[str], str]


class NoReportError(WrongError):
    """``args``: why, and the trouble that it is; a WrongError alone is Trouble.WRONG."""


class _Text(NamedTuple):
    text: str


class _Name(NamedTuple):
    name: str


class _Finding(NamedTuple):
    check: str
    status: str
    subjects: tuple[_Name, ...]
    text: str
    have: _Text | None = None
    need: _Text | None = None
    ignored: str | None = None


class _Machine(NamedTuple):
    name: str
    host: str
    boot: str
    read_unix_seconds: int
    facts: dict[str, Any]
    rails: tuple[Rail, ...] | Unknown
    share: LaunchShare | None = None


class _Answer(NamedTuple):
    machine: _Machine | None = None
    services: tuple[LaunchService, ...] = ()


class _Check(NamedTuple):
    """What is taken of ``check --json``."""

    version: str
    status: str
    findings: list[Any]
    reason: str | None = None
    answer: _Answer | None = None


class ReportReader:
    """Makes rows of reports.

    Ten thousand nodes say the same: equal values are kept once.
    """

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._read: dict[bytes, Any] = {}  # what was made of a part of a report
        self._amounts: dict[tuple[str, str], set[str]] = {}  # of what passed

    def read(self, report: FoundReport, asked_name: str = "") -> NodeRow | Unusable:
        """Return the row of a report, or why it cannot be used.

        Args:
            asked_name: The name by which the node was asked; "" takes the name in the report, or
                that of the file.
        """
        try:
            return self._make_row(report, asked_name)
        except WrongError as error:
            reason, trouble, *_ = (*error.args, Trouble.WRONG)
            clean = str(reason).encode("utf-8", "backslashreplace").decode()
            stated: Any = report.document  # what its machine is called, if that is there
            for key in ("answer", "machine", "name"):
                stated = stated.get(key) if isinstance(stated, dict) else None
            stated = stated if isinstance(stated, str) and is_name(stated) else ""
            named = asked_name or stated or _name_of_file(report)
            return Unusable(report.source, report.line, trouble, clean, named)

    def _make_row(self, report: FoundReport, asked_name: str) -> NodeRow:
        """Return the row of a report.

        Args:
            asked_name: The name by which the node was asked; "" takes the name in the report, or
                that of the file.

        Raises:
            WrongError: If the report is not as its schema says, or names no node.
        """
        document = report.document
        schema = str(document.get("schema"))
        if not schema.startswith(SCHEMA):
            raise NoReportError(f"{short(schema)}: of another command", Trouble.FOREIGN)
        if schema != SCHEMA + VERSION or "answer" not in document:  # as the first version had it
            reason = (
                f"{short(schema)}: this program's own version is {SCHEMA}{VERSION}, with answer"
            )
            raise NoReportError(reason, Trouble.OTHER_SCHEMA)
        check: _Check = decode(_Check, document)
        answer = check.answer or _Answer()
        machine = answer.machine
        name = asked_name or (machine.name if machine is not None else "") or _name_of_file(report)
        if not is_name(name):
            reason = f"it is of {short(name)}, which names no host" if name else "it names no node"
            raise NoReportError(f"{reason}: give it a file NODE.json of its own", Trouble.NO_NAME)
        names = {name, *(() if machine is None else (machine.name, machine.host))}
        unnamed = _unnamed(*names)
        own_names = tuple(each.encode("utf-8", "surrogatepass") for each in names if len(each) > 1)
        findings = [
            finding
            for at, stated in enumerate(check.findings)
            if (finding := self._once(stated, own_names, self._finding, at, unnamed)) is not None
        ]
        status = check.status
        if status == "error":  # there is no more to it
            why = _written(unnamed(check.reason or "it gives no reason"))
            findings.append(trouble(NO_VERDICT, why))
            status = "unknown"
        elif status == "pass" and not any(finding.status == "pass" for finding in findings):
            findings.append(trouble(NO_VERDICT, "it passes, and names no check that did"))
        elif status not in STATUSES:
            raise WrongError(f"status is {short(status)}, which is no verdict")
        counting = {finding.status for finding in findings if finding.ignored is None}
        row = NodeRow(
            name,
            text_place(report.source, report.line),
            0,
            worst({status, *counting}),  # whatever the report says of itself
            findings=self._keep(tuple(dict.fromkeys(findings))),
        )
        return row if machine is None else self._with_machine(row, check.version, answer, machine)

    def _with_machine(
        self, row: NodeRow, version: str, answer: _Answer, machine: _Machine
    ) -> NodeRow:
        """Return the row with the facts of machine and launch, and this program's version."""
        facts, unread = self._once(
            {**machine.facts, "mooncake-preflight": version}, (), self._facts
        )
        launch = None if machine.share is None else NodeLaunch(machine.share, answer.services)
        return row._replace(
            made_unix_seconds=machine.read_unix_seconds,
            host=self._keep(machine.host),
            boot=self._keep(machine.boot),
            facts=facts,
            unread=unread,
            rails=machine.rails,
            launch=None if launch is None else self._keep(launch),
            whole=True,
        )

    def _once(self, stated: Any, own_names: Sequence[bytes], make: Any, *more: Any) -> Any:
        """Return ``make(stated, *more)``, of equal parts of reports once.

        Raises WrongError.

        Args:
            own_names: Of the node; a part that contains one is read anew.
        """
        try:
            text = marshal.dumps(stated, 2)
        except ValueError:
            raise WrongError("it is nested too deeply") from None
        if any(name in text for name in own_names):
            return make(stated, *more)
        if text not in self._read:
            made = make(stated, *more)
            if len(self._read) >= MOST_PARTS:
                return made
            self._read[text] = made
        return self._read[text]

    def _facts(self, stated: dict[str, Any]) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
        """Return the facts that were read, and the names of the others.

        Raises WrongError.
        """
        unread = tuple(_written(name) for name, value in stated.items() if type(value) is dict)
        read = (item for item in stated.items() if type(item[1]) is not dict)
        return self._keep(tuple(self._fact(*item) for item in read)), self._keep(unread)

    def _finding(self, stated: Any, at: int, unnamed: Unnamed) -> FleetFinding | None:
        """Return one finding without its node's name (by ``unnamed``), None for a skip; equal ones
        are one object.

        Raises WrongError.

        Args:
            at: The index in the report, for the message.
        """
        from preflight.verdict.report import fold

        finding: _Finding = decode(_Finding, stated, f"findings[{at}]")
        if finding.status == "skip":
            return None
        if not finding.subjects:
            raise WrongError(f"findings[{at}]: subjects is empty")
        if finding.status not in STATUSES:
            raise WrongError(f"findings[{at}]: status is {short(finding.status)}")
        subject = fold([unnamed(subject.name) for subject in finding.subjects])
        have, need = ("" if it is None else unnamed(it.text) for it in (finding.have, finding.need))
        parts = (subject, have, need, unnamed(finding.text), finding.ignored)
        if finding.status == "pass":
            amounts = self._amounts.setdefault((finding.check, subject), set())
            if len(amounts) <= MOST_AMOUNTS:
                amounts.add(have)
            have = have[:LONGEST_PASS] if len(amounts) <= MOST_AMOUNTS else ""
            parts = (subject[:LONGEST_PASS], have, "", "", None)
        fleet_finding = FleetFinding(finding.check, finding.status, *parts)
        kept = self._kept.get(fleet_finding)
        if kept is None:
            clean = [None if text is None else _written(text) for text in fleet_finding]
            kept = self._kept[fleet_finding] = self._keep(FleetFinding._make(clean))
        return kept  # type: ignore[no-any-return]

    def _fact(self, name: str, value: Any) -> Fact:
        """Return one fact of a machine.

        Raises:
            WrongError: For no text or 64-bit number.
        """
        large = type(value) is int and abs(value) > LARGEST_NUMBER
        if large or not isinstance(value, str | int):
            raise WrongError(f"facts: {short(name)} is {short(value)}")
        clean = _written(value) if isinstance(value, str) else value
        return self._keep(Fact(_written(name), clean, _fact_text(name, clean)))  # type: ignore[no-any-return]

    def _keep(self, value: Any) -> Any:
        return self._kept.setdefault(value, value)


class Reports(NamedTuple):
    """Everything that was read."""

    rows: Sequence[NodeRow]
    unusable: Sequence[Unusable]


def read_reports(texts: Iterable[FoundReport | Unusable]) -> Reports:
    """Read every report, one at a time.

    Unusable texts of one source, trouble and node are one entry with a count.
    """
    reading = ReportReader()
    rows: list[NodeRow] = []
    unusable: dict[tuple[str, Trouble, str], Unusable] = {}
    for report in texts:
        row = report if isinstance(report, Unusable) else reading.read(report)
        if isinstance(row, NodeRow):
            rows.append(row)
            continue
        # Ten thousand lines of a log are one thing to be told.
        key = (row.source, row.trouble, row.name)
        first = unusable.setdefault(key, row)
        if first is not row:
            unusable[key] = first._replace(times=first.times + 1)
    return Reports(rows, tuple(unusable.values()))


def _unnamed(*names: str) -> Unnamed:
    """Return a function that writes ITSELF for each name of a node that is longer than a letter."""
    names_known = sorted({name for name in names if len(name) > 1}, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, names_known))})(?![\w-]|\.\w)")

    def unnamed(text: str) -> str:
        return pattern.sub(ITSELF, text) if any(name in text for name in names_known) else text

    return unnamed


def _written(text: str) -> str:
    """Return a text cut to LONGEST_TEXT; characters that UTF-8 cannot write become codes."""
    clean = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= LONGEST_TEXT else f"{clean[: LONGEST_TEXT - 3]}..."


def _fact_text(name: str, value: str | int) -> str:
    """Return a fact's value as a person reads it: sizes with their unit, switches as yes or no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if name.endswith("mtu_bytes"):
        return f"{value} B"
    if name.endswith("_bytes") or name == "limit.memlock":
        from checks.framework.units import format_bytes

        return format_bytes(value)
    if name == "limit.nproc":  # the kernel takes it from the memory
        return f"about {float(f'{value:.3g}'):.0f}"
    return str(value)


def _name_of_file(report: FoundReport) -> str:
    """Return the node that a file is named after; "" if it holds more than one report."""
    return "" if report.line else name_of(report.source)
