"""Several reports of one node: equal ones are one; of others the newest counts, or the worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from preflight.fleet.base.grouping import grouped
from preflight.fleet.reports.records import STATUSES, FleetFinding, NodeRow


class Settled(NamedTuple):
    """One row per node. doubts: (node, what to say of its other reports)."""

    rows: dict[str, NodeRow]
    repeats: dict[str, int]
    doubts: list[tuple[str, FleetFinding]]


def settled_rows(rows: Sequence[NodeRow]) -> Settled:
    settled = Settled({}, {}, [])
    for node, group in grouped((row.node, row) for row in rows).items():
        if len(group) == 1:
            settled.rows[node] = group[0]
            continue
        newest_first = sorted(group, key=lambda row: (-row.made_unix_seconds, row.origin))
        different: dict[NodeRow, NodeRow] = {}
        for row in newest_first:
            key = row._replace(
                origin="",
                made_unix_seconds=0,
                findings=tuple(row.findings),
                facts=tuple(row.facts),
                unknown_facts=tuple(row.unknown_facts),
            )
            different.setdefault(key, row)
        if len(different) < len(group):
            settled.repeats[node] = len(group) - len(different)
        chosen, finding = _chosen(list(different.values()))
        settled.rows[node] = chosen
        if finding is not None:
            settled.doubts.append((node, finding))
    return settled


def _chosen(rows: Sequence[NodeRow]) -> tuple[NodeRow, FleetFinding | None]:
    """Of reports that say different things, newest first: the newest, or the worst. Never both."""
    newest = rows[0]
    if len(rows) == 1:
        return newest, None
    have = f"{len(rows)} reports that differ: {', '.join(sorted(row.origin for row in rows)[:4])}"
    dated = all(row.made_unix_seconds for row in rows)
    if dated and newest.made_unix_seconds > rows[1].made_unix_seconds:
        later = newest.made_unix_seconds - rows[1].made_unix_seconds
        text = f"the newest counts, {newest.origin}, made {later} s after the one before it"
        finding = FleetFinding("fleet.several-reports", "warn", "report", have, "one report", text)
        return newest, finding
    worst = min(rows, key=lambda row: STATUSES.index(row.status))
    text = f"which is the newest is not known; the worst is shown, {worst.origin}: keep one"
    finding = FleetFinding("fleet.several-reports", "unknown", "report", have, "one report", text)
    return worst, finding
