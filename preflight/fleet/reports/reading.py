"""One text to one row: what it says, with all that other nodes say too kept once.

Whatever is no report is an ``Unusable`` with the reason; nothing that a text holds raises.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from preflight.fleet.base.decode import LONGEST_TEXT, WrongError, decoder, kind_of, short
from preflight.fleet.base.node_sets import is_name
from preflight.fleet.node.records import SCHEMA as NODE_SCHEMA
from preflight.fleet.node.records import NodeLaunch, NodeReport
from preflight.fleet.reports.records import STATUSES, FleetFinding, NodeRow, Trouble, Unusable
from preflight.fleet.reports.sources import Text, texts
from preflight.fleet.reports.tables import Itself, Tables

CHECK_SCHEMA = "mooncake-preflight/check/v1"
_OWN_SCHEMA = "mooncake-preflight/"
_ENDINGS = re.compile(r"(\.(json|jsonl|ndjson|log|out|txt|gz))+$", re.IGNORECASE)
# A report names its node after its schema and version.
_NODE = re.compile(rb'"node"\s*:\s*"([^"\\]*)"')
_HEAD_BYTES = 300
_LARGEST_PORT = 65535


class NoReportError(WrongError):
    """``args``: why, and the trouble that it is; a WrongError alone is Trouble.WRONG."""


class CheckAnswer(NamedTuple):
    """What is taken of ``check --json``."""

    status: str
    reason: str
    findings: list[Any]


class Reading:
    """Texts to rows, and the tables that the rows refer to."""

    def __init__(self) -> None:
        self.tables = Tables()
        self._decoder = json.JSONDecoder(parse_constant=_no_constant)

    def read(self, text: Text) -> Iterator[NodeRow | Unusable]:
        """What a text says; several where it is a list of reports."""
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

    def _of_node(self, text: Text, document: dict[str, Any], named: str) -> NodeRow:
        report: NodeReport = decoder(NodeReport)(document, "")
        tables = self.tables
        # One that ended before it knew its own name has none.
        node, host, status = report.node or named, report.host, report.status
        if not is_name(node):
            raise NoReportError(f"node is {short(node)}, which names no host", Trouble.NO_NAME)
        itself = Itself.of(text.content, node, host)
        findings = tables.numbers_of_findings(report.findings, itself)
        passes = tables.numbers_of_passes(report.passes, itself)
        if status == "error":
            findings.append(self._no_verdict(itself.unnamed(report.error)))
            status = "unknown"
        elif status == "pass" and not passes:
            findings.append(self._no_verdict("it passes, and names no check that did"))
        return NodeRow(
            node,
            _origin(text),
            report.made_unix_seconds,
            self._worse(status, findings),
            tables.keep(tables.sentence(report.reason)),
            tables.keep(host),
            tables.keep(report.boot),
            tables.keep_numbers({*findings, *passes}),
            tables.keep_numbers(
                tables.numbers_of_facts({**report.facts, "mooncake-preflight": report.version})
            ),
            tables.keep_numbers(tables.numbers_of_unknown_facts(report.unknown_facts)),
            report.rails,
            tables.keep(report.routes),
            None if report.launch is None else tables.keep(_checked(report.launch)),
            report.made_unix_seconds > 0,  # else nobody was there to read anything: see ``absent``
        )

    def _of_check(self, text: Text, document: dict[str, Any], node: str) -> NodeRow:
        """What ``check --json`` printed; the file's name is all that says where."""
        if not node:
            reason = "a check's answer does not name its host: give it a file NODE.json of its own"
            raise NoReportError(reason, Trouble.NO_NAME)
        failed = document.get("status") == "error"
        if failed:  # there is no more to it
            document = {"status": "unknown", "reason": document.get("error"), "findings": []}
        status, reason, findings = decoder(CheckAnswer)(document, "")
        rows = [
            {**row, "check": row.get("id")} if isinstance(row, dict) else row
            for row in findings
            if not isinstance(row, dict) or row.get("status") != "skip"
        ]
        itself = Itself.of(text.content, node, "")
        numbers = self.tables.numbers_of_findings(rows, itself)
        numbers += [self._no_verdict(reason)] * failed
        return NodeRow(
            node,
            _origin(text),
            0,
            self._worse(status, numbers),
            self.tables.sentence(reason),
            findings=self.tables.keep_numbers(numbers),
        )

    def _worse(self, status: str, findings: Iterable[int]) -> str:
        """A verdict is not better than what it rests on, whatever it says."""
        if status not in STATUSES:
            raise WrongError(f"status is {short(status)}, which is no verdict")
        found = [self.tables.findings[number] for number in findings]
        told = {status, *(one.status for one in found if one.ignored is None)}
        return next(worst for worst in STATUSES if worst in told)

    def _no_verdict(self, text: str) -> int:
        said = self.tables.sentence(text)
        return self.tables.number_of(FleetFinding("fleet.no-verdict", "unknown", "node", text=said))


class Reports(NamedTuple):
    """Everything that was read."""

    tables: Tables
    rows: Sequence[NodeRow]
    unusable: Sequence[Unusable]


def read_reports(paths: Sequence[str]) -> Reports:
    """Every text of ``paths``, one at a time; what is no report is counted by its source."""
    reading = Reading()
    rows: list[NodeRow] = []
    unusable: dict[tuple[str, Trouble, str], Unusable] = {}
    for text in texts(paths):
        for found in (text,) if isinstance(text, Unusable) else reading.read(text):
            if isinstance(found, NodeRow):
                rows.append(found)
                continue
            # Ten thousand lines of a log are one thing to be told.
            key = (found.source, found.trouble, found.node)
            first = unusable.setdefault(key, found)
            if first is not found:
                unusable[key] = first._replace(times=first.times + 1)
    return Reports(reading.tables, rows, tuple(unusable.values()))


def _checked(launch: NodeLaunch) -> NodeLaunch:
    for at, (_, port) in enumerate(launch.ports):
        if isinstance(port, int) and port > _LARGEST_PORT:
            raise WrongError(f"launch: ports[{at}] is {port}: not a port")
    return launch


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


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
    """``reports/gpu001.json.gz`` is of gpu001."""
    name = _ENDINGS.sub("", os.path.basename(source))
    return name if is_name(name) else ""


def _origin(text: Text) -> str:
    return f"{text.source}:{text.line}" if text.line else text.source
