"""One text to one row: what it says, with all that other nodes say too kept once.

Whatever is no report is an ``Unusable`` with the reason; nothing that a text holds raises.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from preflight.fleet.base.node_sets import is_name
from preflight.fleet.merge.fields import (
    LONGEST_TEXT,
    WrongError,
    kind_of,
    list_field,
    number_field,
    short,
    text_field,
)
from preflight.fleet.merge.names import itself_in, unnamed
from preflight.fleet.merge.parts import launch_of, rails, routes
from preflight.fleet.merge.records import (
    OF_CHECK,
    STATUSES,
    FleetFinding,
    NodeRow,
    Trouble,
    Unread,
    Unusable,
)
from preflight.fleet.merge.sources import Text
from preflight.fleet.merge.tables import Tables

NODE_SCHEMA = "mooncake-preflight/node/v1"
CHECK_SCHEMA = "mooncake-preflight/check/v1"
_OWN_SCHEMA = "mooncake-preflight/"
_ENDINGS = re.compile(r"(\.(json|jsonl|ndjson|log|out|txt|gz))+$", re.IGNORECASE)
# A report names its node after its schema and version.
_NODE = re.compile(rb'"node"\s*:\s*"([^"\\]*)"')
_HEAD_BYTES = 300
_NO_VERDICT = "fleet.no-verdict"


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
            yield self._row_or_why(text, one, several)

    def _row_or_why(self, text: Text, document: Any, several: bool) -> NodeRow | Unusable:
        try:
            return self._row(text, document, several)
        except WrongError as error:
            node = document.get("node") if isinstance(document, dict) else None
            return _unusable(text, error, node if isinstance(node, str) and is_name(node) else "")

    def _document(self, text: Text) -> Any:
        try:
            written = text.content.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            kind = "NUL bytes" if b"\0" in text.content[:4096] else "bytes that are no UTF-8"
            raise WrongError(Trouble.BINARY, f"{kind}, at byte {error.start}") from None
        if "\0" in written:
            raise WrongError(Trouble.BINARY, f"a NUL byte, at character {written.index(chr(0))}")
        if len(text.content) > 2 * LONGEST_TEXT and not written.startswith(("{", "[")):
            raise WrongError(Trouble.NOT_JSON, _seen(written))
        try:
            return self._decoder.decode(written)
        except json.JSONDecodeError as error:
            if written.startswith("{") and _ends_early(written, error):
                reason = f"it ends after {len(text.content)} bytes, within the report"
                raise WrongError(Trouble.TRUNCATED, reason) from None
            raise WrongError(Trouble.NOT_JSON, f"{error.msg}: {_seen(written)}") from None
        except RecursionError:
            raise WrongError(Trouble.TOO_DEEP, "more levels than any report has") from None
        except ValueError as error:  # NaN, or a number of thousands of digits
            raise WrongError(Trouble.NOT_JSON, str(error)[:80]) from None

    def _row(self, text: Text, document: Any, several: bool) -> NodeRow:
        if not isinstance(document, dict):
            raise WrongError(Trouble.FOREIGN, f"JSON, {kind_of(document)} and no object")
        schema = document.get("schema")
        if schema == NODE_SCHEMA:
            return self._of_node(text, document, several)
        if schema == CHECK_SCHEMA:
            return self._of_check(text, document, several)
        if not isinstance(schema, str) or not schema.startswith(_OWN_SCHEMA):
            named = f"schema {short(schema)}" if "schema" in document else "no schema"
            raise WrongError(Trouble.FOREIGN, f"JSON with {named}")
        if schema.startswith((NODE_SCHEMA.rpartition("/")[0], CHECK_SCHEMA.rpartition("/")[0])):
            reason = f"{short(schema)}; this program reads {NODE_SCHEMA} and {CHECK_SCHEMA}"
            raise WrongError(Trouble.OTHER_SCHEMA, reason)
        raise WrongError(Trouble.FOREIGN, f"{short(schema)}: the answer of another command")

    def _of_node(self, text: Text, document: dict[str, Any], several: bool) -> NodeRow:
        node = text_field(document, "node")
        if not node and not several and not text.line:  # it ended before it knew its own name
            node = _node_of(text.source)
        if not is_name(node):
            raise WrongError(Trouble.NO_NAME, f"node is {short(node)}, which names no host")
        host, status = text_field(document, "host"), text_field(document, "status")
        made = number_field(document, "made_unix_seconds")
        reason = self.tables.sentence(text_field(document, "reason"))
        itself = itself_in(text.content, node, host)
        findings = self.tables.numbers_of_findings(list_field(document, "findings"), itself)
        passes = self.tables.numbers_of_passes(list_field(document, "passes"), itself)
        if status == "error":
            message = text_field(document, "error")
            findings.append(self._no_verdict(unnamed(itself, message)))
            status = "unknown"
        elif status not in STATUSES:
            raise WrongError(Trouble.WRONG, f"status is {short(status)}, which is no verdict")
        elif status == "pass" and not passes:
            findings.append(self._no_verdict("it passes, and names no check that did"))
        status = self._worse(status, findings)
        launch = document.get("launch")
        return NodeRow(
            node,
            _origin(text),
            made,
            status,
            self.tables.keep(reason),
            self.tables.keep(host),
            self.tables.keep(text_field(document, "boot")),
            self.tables.keep_numbers(sorted({*findings, *passes})),
            self.tables.keep_numbers(self.tables.numbers_of_facts(document)),
            self.tables.keep_numbers(self.tables.numbers_of_unknown_facts(document)),
            rails(document.get("rails"), self.tables.keep),
            self.tables.keep(routes(document.get("routes"))),
            None if launch is None else self.tables.keep(launch_of(launch)),
            made > 0,  # else nobody was there to read anything: see node_report
        )

    def _of_check(self, text: Text, document: dict[str, Any], several: bool) -> NodeRow:
        """What ``check --json`` printed; the file's name is all that says where."""
        node = "" if several or text.line else _node_of(text.source)
        if not node:
            reason = "a check's answer does not name its host: give it a file NODE.json of its own"
            raise WrongError(Trouble.NO_NAME, reason)
        status = text_field(document, "status")
        if status == "error":
            message = text_field(document, "error")
            findings = [self._no_verdict(message)]
            status, reason = "unknown", message
        else:
            if status not in STATUSES:
                raise WrongError(Trouble.WRONG, f"status is {short(status)}, which is no verdict")
            reason = text_field(document, "reason")
            rows = [
                {**row, "check": row.get("id")} if isinstance(row, dict) else row
                for row in list_field(document, "findings")
                if not isinstance(row, dict) or row.get("status") != "skip"
            ]
            findings = self.tables.numbers_of_findings(rows, itself_in(text.content, node, ""))
        return NodeRow(
            node,
            _origin(text),
            0,
            self._worse(status, findings),
            self.tables.sentence(reason),
            "",
            "",
            self.tables.keep_numbers(sorted(set(findings))),
            array("I"),
            array("I"),
            OF_CHECK,
            Unread("a check's answer has no routes"),
            None,
            False,
        )

    def _worse(self, status: str, findings: Iterable[int]) -> str:
        """A verdict is not better than what it rests on, whatever it says."""
        told = {
            self.tables.findings[number].status
            for number in findings
            if self.tables.findings[number].ignored is None
        }
        return next(worst for worst in STATUSES if worst == status or worst in told)

    def _no_verdict(self, text: str) -> int:
        return self.tables.number_of(
            FleetFinding(_NO_VERDICT, "unknown", "node", text=self.tables.sentence(text))
        )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _ends_early(written: str, error: json.JSONDecodeError) -> bool:
    if error.msg == "Extra data":
        return False
    return not written.endswith("}") or error.pos >= len(written)


def _unusable(text: Text, error: WrongError, node: str = "") -> Unusable:
    trouble, reason = error.args
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


def _seen(written: str) -> str:
    return f"it begins with {short(written[:40])}"
