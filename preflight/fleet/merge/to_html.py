"""A fleet as one HTML page: the findings, what differs, and a table of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from preflight.base.html_page import Cell, Html, Keyed, element, join, page, status_badge, table
from preflight.fleet.base.node_sets import fold
from preflight.fleet.base.text import grouped
from preflight.fleet.merge.answer import drift_cells, node_counts_text, pool_text, verdict_text
from preflight.fleet.merge.fleet import Fleet
from preflight.fleet.reports.rows import STATUSES, OnNodes

Rows = list[Sequence[Cell]]


def fleet_page(fleet: Fleet) -> str:
    """Return the whole HTML document."""
    drift: Rows = [drift_cells(item) for item in fleet.drift]
    unusable: Rows = [(item.where, item.trouble.value, item.reason) for item in fleet.unusable]
    body = join(
        [
            element("h1", "Fleet"),
            element("p", status_badge(fleet.verdict), " ", node_counts_text(fleet)),
            element("p", pool_text(fleet)),
            *_section("Findings", _FINDING, _findings(fleet.findings)),
            *_section("Not the same everywhere", ["fact", "most nodes", "the others"], drift),
            *_section("Nodes, the worst first", ["node", "status", "findings"], _nodes(fleet)),
            *_section("Ignored", _FINDING, _findings(fleet.waived)),
            *_section("Reports that are not used", ["report", "trouble", "why"], unusable),
        ],
        "\n",
    )
    return page(f"Fleet: {verdict_text(fleet)}", body)


_FINDING = ["check", "status", "nodes", "subject", "have", "need", "what follows"]


def _section(head: str, columns: Sequence[str], rows: Rows) -> list[Html]:
    return [element("h2", head), table(columns, rows, name=head, sortable=True)] if rows else []


def _findings(rows: Iterable[OnNodes]) -> Rows:
    """Return each finding as a row of the page's table."""
    return [
        (
            item.finding.check,
            status_badge("ignored" if item.finding.ignored is not None else item.finding.status),
            Keyed(fold(item.nodes), len(item.nodes)),
            item.finding.subject,
            item.finding.have,
            item.finding.need,
            item.finding.text,
        )
        for item in rows
    ]


def _nodes(fleet: Fleet) -> Rows:
    """Return each node as a row of the page's table, the worst first."""
    checks = grouped(
        (name, finding.finding.check) for finding in fleet.findings for name in finding.nodes
    )
    return [
        (each.name, status_badge(each.status), ", ".join(dict.fromkeys(checks.get(each.name, []))))
        for each in sorted(fleet.nodes, key=lambda each: STATUSES.index(each.status))
    ]
