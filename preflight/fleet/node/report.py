"""What one node reports to its fleet, or the report that stands for a node without one."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from checks.base.finding import Status
from checks.base.unknown import Unknown
from checks.capture.secrets import public
from preflight.base import exit_codes
from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.base.decode import Json
from preflight.fleet.base.grouping import grouped
from preflight.fleet.base.text import cut
from preflight.fleet.node.records import NodeFinding, NodeReport, empty_report
from preflight.inputs.launch_words import ALL_CHECKS, Chosen, LaunchWords

if TYPE_CHECKING:
    from preflight.check.report import Report, Row
    from preflight.inputs.host_source import Host
    from preflight.judging.judge_host import JudgedHost

BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOST_NAME = "/proc/sys/kernel/hostname"
# What passed is shown by its beginning.
LONGEST_PASS = 80


def run_node(
    launch: LaunchWords, root: str, timeout_seconds: float, node: str, chosen: Chosen
) -> int:
    """Print the report; returns the exit code of its verdict. Raises UsageError."""
    try:
        found = node_report(launch, root, timeout_seconds, node, chosen)
    except UsageError as error:
        say(one_line(error_object(node, exit_codes.USAGE, str(error))))
        raise
    say(one_line(public(found)))
    return int(found["exit_code"])


def node_report(
    launch: LaunchWords, root: str, timeout_seconds: float, node: str, chosen: Chosen = ALL_CHECKS
) -> Json:
    """Return the report as data; ``node`` is the name it goes by, "" for its own.

    Raises UsageError for what is no launch or no host.
    """
    from checks.run.runner import every_check
    from preflight.check.answer import known_problems, selection_of, waiver_findings
    from preflight.check.report import Findings, consequences, report
    from preflight.judging.judge_host import judge_host
    from preflight.judging.pages import LAUNCH_CHECKS

    checks = list(every_check())
    selection = selection_of(chosen)
    made = [pair for pair in checks if selection.takes(pair[0].id)]
    # What nodes are held against each other by is read, whatever is checked.
    seen = judge_host(launch, root, timeout_seconds, made)
    unread = isinstance(seen.launch, Unknown)
    of_launch = [*seen.of_launch, *known_problems(seen)]
    of_launch = [one for one in of_launch if unread or selection.takes(one.check)]
    findings = [*waiver_findings(selection), *seen.of_host, *of_launch]
    declared = [*(check for check, _ in checks), *LAUNCH_CHECKS]
    # What mends a finding is for the one node that somebody looks at: check says it there.
    found = Findings(findings, consequences(declared), lambda _: ())
    judged = report(found, selection.ignore, seen.needs, seen.host.name)
    return _object(_report(judged, seen, node))


def _report(report: Report, seen: JudgedHost, node: str) -> NodeReport:
    """Return the report of a node that was judged. ``node`` "": it goes by its own name."""
    from preflight.check.report import verdict_reason
    from preflight.fleet.node.facts import node_facts
    from preflight.fleet.node.launch import node_launch
    from preflight.fleet.node.rails import rails, routes

    ports = rails(seen.facts, seen.needs)
    shared = () if isinstance(ports, Unknown) else ports
    known, unknown = node_facts(seen.facts, shared, seen.needs, seen.host.root)
    wanting = [row for row in report.rows if row.finding.status not in (Status.PASS, Status.SKIP)]
    host, boot = _host_name(seen.host), seen.host.root.word(BOOT_ID)
    return empty_report(node or host)._replace(
        host=host,
        boot="" if isinstance(boot, Unknown) else boot,
        made_unix_seconds=int(time.time()),
        status=report.verdict.value,
        exit_code=report.exit_code,
        reason=verdict_reason(report),
        counts=dict(report.counts),
        findings=tuple(map(_finding, wanting)),
        passes=tuple(_passes(report.of(Status.PASS))),
        facts=known,
        unknown_facts=unknown,
        rails=ports,
        routes=routes(seen.host.root),
        launch=node_launch(seen),
    )


def _host_name(host: Host) -> str:
    """Return what the node calls itself; a folder or capture that does not say has its own name."""
    name = host.root.word(HOST_NAME)
    if not isinstance(name, Unknown) and name:
        return name
    file = host.name.rstrip("/").rpartition("/")[2]
    return file.partition(".tar")[0]


def _passes(rows: Iterable[Row]) -> Iterable[tuple[str, str, str]]:
    """Yield one row for all subjects of which a check says the same: most of a report."""
    from preflight.check.report import fold

    alike = grouped(((row.finding.check, row.finding.have), row.finding.subject) for row in rows)
    for (check, have), subjects in alike.items():
        yield check, cut(fold(subjects), LONGEST_PASS), cut(have, LONGEST_PASS)


def _finding(row: Row) -> NodeFinding:
    finding = row.finding
    said = (finding.have, finding.need, finding.text)
    return NodeFinding(finding.check, finding.status.value, row.subjects, *said, row.ignored)


def _object(report: NodeReport) -> Json:
    """Return the report as ``schemas/node-v1.schema.json`` has it."""
    from preflight.render.plain_data import plain

    found: Json = plain(report)
    if not isinstance(report.routes, Unknown):  # a third of its length, written as rows
        found["routes"] = [list(route) for route in report.routes]
    for row in found["findings"]:
        if row["ignored"] is None:
            del row["ignored"]
    if report.status != "error":
        del found["error"]
    return found


def absent(node: str, check: str, text: str, have: str = "", need: str = "") -> Json:
    """Return the report of a node which gave none. text: what stood in the way."""
    from preflight.check.report import EXIT_CODES

    empty = empty_report(node)
    return _object(
        empty._replace(
            status="unknown",
            exit_code=EXIT_CODES[Status.UNKNOWN],
            reason=f"{node}: {text}",
            counts={**empty.counts, "unknown": 1},
            findings=(NodeFinding(check, "unknown", (node,), have, need, text),),
        )
    )


def error_object(node: str, exit_code: int, message: str) -> Json:
    """Return the report of a node on which the program ended without a verdict."""
    empty = empty_report(node)
    return _object(
        empty._replace(status="error", exit_code=exit_code, reason=message, error=message)
    )


def one_line(report: Json) -> str:
    """Return the report as it travels: compact, ASCII, no line feed in it."""
    import json

    return json.dumps(report, separators=(",", ":"))
