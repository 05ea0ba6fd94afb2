"""Reads the text of one report into one row; what other reports say too is kept once.

Whatever is no report is an ``Unusable`` with the reason; nothing that a text holds raises.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from preflight.fleet.base.decode import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    Json,
    WrongError,
    decoder,
    kind_of,
    no_constant,
    short,
)
from preflight.fleet.base.node_sets import is_name
from preflight.fleet.node.records import SCHEMA as NODE_SCHEMA
from preflight.fleet.node.records import NodeFinding, NodeLaunch, NodeReport
from preflight.fleet.reports.rows import (
    STATUSES,
    Fact,
    FleetFinding,
    NodeRow,
    Trouble,
    Unusable,
    text_place,
    worst,
)
from preflight.fleet.reports.sources import Text

CHECK_SCHEMA = "mooncake-preflight/check/v1"
_OWN_SCHEMA = "mooncake-preflight/"
_ENDINGS = re.compile(r"(\.(json|jsonl|ndjson|log|out|txt|gz))+$", re.IGNORECASE)
# A report names its node after its schema and version.
_NODE = re.compile(rb'"node"\s*:\s*"([^"\\]*)"')
_HEAD_BYTES = 300
_LARGEST_PORT = 65535
# Written in place of a node's own name, so that what two nodes say of themselves is the same.
ITSELF = "the node"

Unnamed = Callable[[str], str]


class NoReportError(WrongError):
    """``args``: why, and the trouble that it is; a WrongError alone is Trouble.WRONG."""


class CheckAnswer(NamedTuple):
    """What is taken of ``check --json``."""

    status: str
    reason: str
    findings: list[Any]


class ReportReader:
    """Texts to rows. Ten thousand nodes say the same: what is equal is kept once."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._decoder = json.JSONDecoder(parse_constant=no_constant)

    def read(self, text: Text) -> Iterator[NodeRow | Unusable]:
        """Yield what a text says; several rows where it is a list of reports."""
        try:
            document = self._document(text)
        except WrongError as error:
            yield _unusable(text, error)
            return
        several = isinstance(document, list)
        for one in document if isinstance(document, list) else [document]:
            try:
                yield self._row(text, one, several or text.line > 0)
            except WrongError as error:  # noqa: PERF203 - one report each
                node = one.get("node") if isinstance(one, dict) else None
                named = isinstance(node, str) and is_name(node)
                yield _unusable(text, error, str(node) if named else "")

    def _document(self, text: Text) -> Any:
        try:
            written = text.content.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            kind = "NUL bytes" if b"\0" in text.content[:4096] else "bytes that are no UTF-8"
            raise NoReportError(f"{kind}, at byte {error.start}", Trouble.BINARY) from None
        if "\0" in written:
            at = written.index("\0")
            raise NoReportError(f"a NUL byte, at character {at}", Trouble.BINARY)
        seen = f"it begins with {short(written[:40])}"
        if len(text.content) > 2 * LONGEST_TEXT and not written.startswith(("{", "[")):
            raise NoReportError(seen, Trouble.NOT_JSON)
        try:
            return self._decoder.decode(written)
        except json.JSONDecodeError as error:
            inside = not written.endswith("}") or error.pos >= len(written)
            if written.startswith("{") and inside and error.msg != "Extra data":
                reason = f"it ends after {len(text.content)} bytes, within the report"
                raise NoReportError(reason, Trouble.TRUNCATED) from None
            raise NoReportError(f"{error.msg}: {seen}", Trouble.NOT_JSON) from None
        except RecursionError:
            raise NoReportError("more levels than any report has", Trouble.TOO_DEEP) from None
        except ValueError as error:  # NaN, or a number of thousands of digits
            raise NoReportError(str(error)[:80], Trouble.NOT_JSON) from None

    def _row(self, text: Text, document: Any, among_others: bool) -> NodeRow:
        if not isinstance(document, dict):
            raise NoReportError(f"JSON, {kind_of(document)} and no object", Trouble.FOREIGN)
        # The file's name says where, if it holds nothing else.
        named = "" if among_others else _node_of(text.source)
        schema = document.get("schema")
        if schema == NODE_SCHEMA:
            return self._of_node(text, document, named)
        if schema == CHECK_SCHEMA:
            return self._of_check(text, document, named)
        if not isinstance(schema, str) or not schema.startswith(_OWN_SCHEMA):
            said = f"schema {short(schema)}" if "schema" in document else "no schema"
            raise NoReportError(f"JSON with {said}", Trouble.FOREIGN)
        if schema.startswith((NODE_SCHEMA.rpartition("/")[0], CHECK_SCHEMA.rpartition("/")[0])):
            reason = f"{short(schema)}; this program reads {NODE_SCHEMA} and {CHECK_SCHEMA}"
            raise NoReportError(reason, Trouble.OTHER_SCHEMA)
        raise NoReportError(f"{short(schema)}: the answer of another command", Trouble.FOREIGN)

    def _of_node(self, text: Text, document: Json, named: str) -> NodeRow:
        report: NodeReport = decoder(NodeReport)(document, "")
        # One that ended before it knew its own name has none.
        node, host, status = report.node or named, report.host, report.status
        if not is_name(node):
            raise NoReportError(f"node is {short(node)}, which names no host", Trouble.NO_NAME)
        unnamed = _unnamed(node, host)
        findings = [self._finding(one, at, unnamed) for at, one in enumerate(report.findings)]
        passes = [
            self._kept_finding(FleetFinding(check, "pass", unnamed(subject), unnamed(have)))
            for check, subject, have in report.passes
        ]
        if status == "error":
            findings.append(_no_verdict(unnamed(report.error)))
            status = "unknown"
        elif status == "pass" and not passes:
            findings.append(_no_verdict("it passes, and names no check that did"))
        facts = {**report.facts, "mooncake-preflight": report.version}
        return NodeRow(
            node,
            text_place(text.source, text.line),
            report.made_unix_seconds,
            _verdict(status, findings),
            self._keep(host),
            self._keep(report.boot),
            self._keep(tuple(dict.fromkeys([*findings, *passes]))),
            self._keep(tuple(self._fact(*one) for one in facts.items())),
            self._keep(tuple(_unknown_names(report.unknown_facts))),
            report.rails,
            self._keep(report.routes),
            None if report.launch is None else self._keep(_checked(report.launch)),
            report.made_unix_seconds > 0,  # else nobody was there to read anything: see ``absent``
        )

    def _of_check(self, text: Text, document: Json, node: str) -> NodeRow:
        """Read what ``check --json`` printed; only the file's name tells the node."""
        if not node:
            reason = "a check's answer does not name its host: give it a file NODE.json of its own"
            raise NoReportError(reason, Trouble.NO_NAME)
        failed = document.get("status") == "error"
        if failed:  # there is no more to it
            document = {"status": "unknown", "reason": document.get("reason"), "findings": []}
        status, reason, rows = decoder(CheckAnswer)(document, "")
        said = [
            _as_said(row)
            for row in rows
            if not isinstance(row, dict) or row.get("status") != "skip"
        ]
        read: Sequence[NodeFinding] = decoder(tuple[NodeFinding, ...])(said, "findings")
        unnamed = _unnamed(node, "")
        findings = [self._finding(one, at, unnamed) for at, one in enumerate(read)]
        findings += [_no_verdict(reason)] * failed
        found = NodeRow(node, text_place(text.source, text.line), 0, _verdict(status, findings))
        return found._replace(findings=self._keep(tuple(dict.fromkeys(findings))))

    def _finding(self, one: NodeFinding, at: int, unnamed: Unnamed) -> FleetFinding:
        from preflight.check.report import fold

        if not one.subjects:
            raise WrongError(f"findings[{at}]: subjects is empty")
        if one.status not in STATUSES:
            raise WrongError(f"findings[{at}]: status is {short(one.status)}")
        subject = fold([unnamed(subject) for subject in one.subjects])
        said = (unnamed(one.have), unnamed(one.need), unnamed(one.text))
        return self._kept_finding(FleetFinding(one.check, one.status, subject, *said, one.ignored))

    def _kept_finding(self, finding: FleetFinding) -> FleetFinding:
        found = self._kept.get(finding)
        if found is None:
            clean = [None if text is None else _written(text) for text in finding]
            found = self._kept[finding] = self._keep(FleetFinding._make(clean))
        return found  # type: ignore[no-any-return]

    def _fact(self, name: str, value: Any) -> Fact:
        if not isinstance(value, str | int):
            raise WrongError(f"facts: {short(name)} is {kind_of(value)}")
        if type(value) is int and abs(value) > LARGEST_NUMBER:
            raise WrongError(f"facts: {short(name)} is {short(value)}")
        clean = _written(value) if isinstance(value, str) else value
        found: Fact = self._keep(Fact(_written(name), clean, _shown(name, clean)))
        return found

    def _keep(self, value: Any) -> Any:
        return self._kept.setdefault(value, value)


class Reports(NamedTuple):
    """Everything that was read."""

    rows: Sequence[NodeRow]
    unusable: Sequence[Unusable]


def read_reports(found_texts: Iterable[Text | Unusable]) -> Reports:
    """Read every text, one at a time; what is no report is counted by its source."""
    reading = ReportReader()
    rows: list[NodeRow] = []
    unusable: dict[tuple[str, Trouble, str], Unusable] = {}
    for text in found_texts:
        for found in (text,) if isinstance(text, Unusable) else reading.read(text):
            if isinstance(found, NodeRow):
                rows.append(found)
                continue
            # Ten thousand lines of a log are one thing to be told.
            key = (found.source, found.trouble, found.node)
            first = unusable.setdefault(key, found)
            if first is not found:
                unusable[key] = first._replace(times=first.times + 1)
    return Reports(rows, tuple(unusable.values()))


def _as_said(row: Any) -> Any:
    """Return a finding of a check with the texts alone of its amounts and subjects."""
    if not isinstance(row, dict):
        return row
    amounts = {key: row.get(key) for key in ("have", "need")}
    said = {
        key: amount.get("text") if isinstance(amount, dict) else amount or ""
        for key, amount in amounts.items()
    }
    subjects = row.get("subjects")
    if isinstance(subjects, list):
        subjects = [one.get("name") if isinstance(one, dict) else one for one in subjects]
    return {**row, **said, "subjects": subjects}


def _unnamed(*names: str) -> Unnamed:
    """Return a function that writes ``ITSELF`` in place of a node's names."""
    own = sorted({name for name in names if len(name) > 1}, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, own))})(?![\w-]|\.\w)")

    def unnamed(text: str) -> str:
        return pattern.sub(ITSELF, text) if any(name in text for name in own) else text

    return unnamed


def _written(text: str) -> str:
    """Return a text that is not too long, with nothing that cannot be written."""
    clean = text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= LONGEST_TEXT else f"{clean[: LONGEST_TEXT - 3]}..."


def _shown(name: str, value: str | int) -> str:
    """Return a value as a person reads it: sizes with their unit, switches as words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("mtu_bytes"):
        return f"{value} B"
    if isinstance(value, int) and (name.endswith("_bytes") or name == "limit.memlock"):
        from checks.base.units import format_bytes

        return format_bytes(value)
    if isinstance(value, int) and name == "limit.nproc":  # the kernel takes it from the memory
        return f"about {float(f'{value:.3g}'):.0f}"
    return str(value)


def _unknown_names(reasons: Mapping[str, Any]) -> Iterator[str]:
    for name, reason in reasons.items():
        if not isinstance(reason, str):
            raise WrongError(f"unknown_facts: {short(name)} is {kind_of(reason)}, not a text")
        yield _written(name)


def _verdict(status: str, findings: Iterable[FleetFinding]) -> str:
    """Return the worse of a report's verdict and its findings, whatever the report says."""
    if status not in STATUSES:
        raise WrongError(f"status is {short(status)}, which is no verdict")
    return worst({status, *(one.status for one in findings if one.ignored is None)})


def _no_verdict(text: str) -> FleetFinding:
    return FleetFinding("fleet.no-verdict", "unknown", "node", text=_written(text))


def _checked(launch: NodeLaunch) -> NodeLaunch:
    for at, (_, port) in enumerate(launch.ports):
        if isinstance(port, int) and port > _LARGEST_PORT:
            raise WrongError(f"launch: ports[{at}] is {port}: not a port")
    return launch


def _unusable(text: Text, error: WrongError, node: str = "") -> Unusable:
    reason, trouble, *_ = (*error.args, Trouble.WRONG)
    clean = str(reason).encode("utf-8", "backslashreplace").decode()
    if trouble is Trouble.TRUNCATED:
        named_early = _NODE.search(text.content[:_HEAD_BYTES])
        told = "" if named_early is None else named_early[1].decode("ascii", "replace")
        node = told if is_name(told) else ""
    named = node or ("" if text.line else _node_of(text.source))
    return Unusable(text.source, text.line, trouble, clean, named)


def _node_of(source: str) -> str:
    """Return the node of a file's name: ``reports/gpu001.json.gz`` is of gpu001."""
    name = _ENDINGS.sub("", os.path.basename(source))
    return name if is_name(name) else ""
