"""Writes what one node reports to its fleet, or the report that stands for a node without one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from checks.base.finding import Status
from checks.base.unknown import Unknown
from preflight.fleet.node.records import Json, NodeReport, empty_report

if TYPE_CHECKING:
    from preflight.check.report import Report, Row
    from preflight.judging.judge_host import JudgedHost

BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOST_NAME = "/proc/sys/kernel/hostname"
# What passed is shown by its beginning.
LONGEST_PASS = 80


def node_object(
    report: Report, seen: JudgedHost, node: str, host: str, now_unix_seconds: int
) -> Json:
    """The report of a node that was judged. ``node`` "": it goes by its own name."""
    from preflight.check.report import verdict_reason
    from preflight.fleet.node.facts import node_facts
    from preflight.fleet.node.launch import node_launch
    from preflight.fleet.node.rails import rails, routes

    ports = rails(seen.facts, seen.needs)
    shared = () if isinstance(ports, Unknown) else ports
    known, unknown = node_facts(seen.facts, shared, seen.needs, seen.host.root)
    wanting = [row for row in report.rows if row.finding.status not in (Status.PASS, Status.SKIP)]
    boot = seen.host.root.word(BOOT_ID)
    written = empty_report(node or host)._replace(
        host=host,
        boot="" if isinstance(boot, Unknown) else boot,
        made_unix_seconds=now_unix_seconds,
        status=report.verdict.value,
        exit_code=report.exit_code,
        reason=verdict_reason(report),
        counts=dict(report.counts),
        findings=[_finding(row) for row in wanting],
        passes=_passes(report.of(Status.PASS)),
        facts=known,
        unknown_facts=unknown,
        rails=ports,
        routes=routes(seen.host.root),
        launch=node_launch(seen),
    )
    return _json(written)


def _json(report: NodeReport) -> Json:
    from preflight.render.plain_data import plain

    found: Json = plain(report)
    if not isinstance(report.routes, Unknown):  # a third of its length, written as rows
        found["routes"] = [list(route) for route in report.routes]
    if report.status != "error":
        del found["error"]
    return found


def _passes(rows: Iterable[Row]) -> list[list[str]]:
    """One row for all subjects of which a check says the same: most of a report, so kept short."""
    from preflight.check.report import fold

    alike: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        alike.setdefault((row.finding.check, row.finding.have), []).append(row.finding.subject)
    return [
        [check, _short(fold(subjects)), _short(have)] for (check, have), subjects in alike.items()
    ]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_PASS else f"{text[: LONGEST_PASS - 3]}..."


def _finding(row: Row) -> Json:
    finding = row.finding
    found: Json = {
        "check": finding.check,
        "status": finding.status.value,
        "subjects": list(row.subjects),
        "have": finding.have,
        "need": finding.need,
        "text": finding.text,
    }
    return found if row.ignored is None else {**found, "ignored": row.ignored}


def absent(node: str, check: str, text: str, have: str = "", need: str = "") -> Json:
    """The report that stands for a node which gave none. text: what stood in the way."""
    from preflight.check.report import EXIT_CODES

    finding = {"check": check, "status": "unknown", "subjects": [node]}
    empty = empty_report(node)
    return _json(
        empty._replace(
            status="unknown",
            exit_code=EXIT_CODES[Status.UNKNOWN],
            reason=f"{node}: {text}",
            counts={**empty.counts, "unknown": 1},
            findings=[{**finding, "have": have, "need": need, "text": text}],
        )
    )


def error_object(node: str, exit_code: int, message: str) -> Json:
    """The report of a node on which the program ended without a verdict."""
    empty = empty_report(node)
    return _json(empty._replace(status="error", exit_code=exit_code, reason=message, error=message))


def one_line(report: Json) -> str:
    """The report as it travels: compact, ASCII, no line feed in it."""
    import json

    return json.dumps(report, separators=(",", ":"))
