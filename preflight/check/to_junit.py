"""A report as JUnit XML, for whoever collects test results of a fleet.

fail: a failure. unknown: an error. skip and an ignored finding: skipped. warn: a test that passed
and printed something.
"""

from __future__ import annotations

import re

from checks.base.finding import Status
from preflight.check.report import Report, Row

# What XML 1.0 has no way to say, not even as a reference.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def report_junit(report: Report) -> str:
    """One suite per topic, one case per row."""
    topics: dict[str, list[Row]] = {}
    for row in report.rows:
        topics.setdefault(row.finding.check.partition(".")[0], []).append(row)
    suites = [_suite(topic, rows) for topic, rows in topics.items()]
    totals = _totals(list(report.rows))
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<testsuites name="mooncake-preflight" {totals}>',
            *suites,
            "</testsuites>",
            "",
        ]
    )


def error_junit(message: str) -> str:
    """A suite for a command that gave no answer."""
    case = f'    <testcase classname="mooncake-preflight" name="check">{_problem("error", message)}'
    totals = 'tests="1" failures="0" errors="1" skipped="0"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites name="mooncake-preflight" {totals}>\n'
        f'  <testsuite name="mooncake-preflight" {totals}>\n{case}</testcase>\n  </testsuite>\n'
        "</testsuites>\n"
    )


def _suite(topic: str, rows: list[Row]) -> str:
    cases = [_case(row) for row in rows]
    head = f"  <testsuite name={_quoted(topic)} {_totals(rows)}>"
    return "\n".join([head, *cases, "  </testsuite>"])


def _totals(rows: list[Row]) -> str:
    kinds = [_kind(row) for row in rows]
    return (
        f'tests="{len(rows)}" failures="{kinds.count("failure")}" errors="{kinds.count("error")}" '
        f'skipped="{kinds.count("skipped")}"'
    )


def _kind(row: Row) -> str:
    if row.ignored is not None:
        return "skipped"
    kinds = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped"}
    return kinds.get(row.finding.status, "")


def _case(row: Row) -> str:
    finding = row.finding
    name = f"{finding.check}: {finding.subject}"
    head = f"    <testcase classname={_quoted(finding.check)} name={_quoted(name)}>"
    return f"{head}{_inner(row)}</testcase>"


def _inner(row: Row) -> str:
    finding, kind = row.finding, _kind(row)
    if row.ignored is not None:
        return _problem("skipped", f"was {finding.status.value}; ignored: {row.ignored}")
    if kind == "skipped":
        return _problem("skipped", finding.text)
    details = _details(row)
    if kind:
        return _problem(kind, finding.text or finding.advice or finding.check, details)
    if finding.status is Status.WARN:
        return f"<system-out>{_escaped(f'warn: {details}')}</system-out>"
    return ""


def _problem(kind: str, message: str, details: str = "") -> str:
    return f"<{kind} message={_quoted(message)}>{_escaped(details)}</{kind}>"


def _details(row: Row) -> str:
    finding = row.finding
    said = (
        finding.text,
        f"have: {finding.have}" if finding.have else "",
        f"need: {finding.need}" if finding.need else "",
        f"formula: {finding.formula}" if finding.formula else "",
        *(f"seen: {seen.source}: {seen.value}" for seen in finding.evidence),
        finding.advice,
        *row.commands,
    )
    return "\n".join(text for text in said if text)


def _escaped(text: str) -> str:
    text = _FORBIDDEN.sub("\ufffd", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(text: str) -> str:
    """An attribute's value, on one line: a parser would turn line ends into blanks anyway."""
    return '"' + _escaped(" ".join(text.split())).replace('"', "&quot;") + '"'
