"""A fleet as one HTML page: what fleet_text says, and the nodes in a table that sorts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.fleet.base.grouping import grouped
from preflight.fleet.merge.fleet import nodes_text
from preflight.fleet.merge.records import FAILING, PASSING, Fleet, Said
from preflight.fleet.merge.words import drift_cells, facts_text, pool_text, verdict_text
from preflight.fleet.reports.records import STATUSES, NodeRow
from preflight.render.html_page import Cell, Html, Keyed, element, join, page, status_badge, table

# A node has a line; who has more than these has a command line.
MOST_CHECKS = 6

Rows = list[Sequence[Cell]]


def write_html(path: str, fleet: Fleet) -> None:
    """``-`` prints it. Raises UsageError where it cannot be written."""
    text = fleet_page(fleet)
    if path == "-":
        from preflight.base.output import say

        say(text.rstrip("\n"))
        return
    from checks.base.archive import write_whole

    try:
        write_whole(path, text.encode(), mode=0o644)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--html {path}: {reason}") from None


def fleet_page(fleet: Fleet) -> str:
    """The whole document."""
    verdict = verdict_text(fleet)
    lists: Rows = [  # node sets to paste into a scheduler's command line
        (name, str(len(places)), nodes_text(fleet, places) or "none")
        for name, places in (("passing", fleet.of(*PASSING)), ("failing", fleet.of(*FAILING)))
    ]
    drift: Rows = [drift_cells(fleet, one) for one in fleet.drift]
    body = join(
        [
            element("h1", "Fleet"),
            element("p", status_badge(fleet.verdict), " ", verdict.partition(": ")[2]),
            table(["nodes", "count", "as a node set"], lists, numeric_columns=(1,)),
            *_findings(fleet, "What few nodes say comes first", fleet.said),
            *_section("Not the same everywhere", ["fact", "most nodes", "the others"], drift),
            *_nodes(fleet),
            *_alike(fleet),
            *_findings(fleet, "Ignored", fleet.waived),
            *_unusable(fleet),
            *_findings(fleet, "What passes", fleet.passed),
        ],
        "\n",
    )
    return page(f"Fleet: {verdict}", body)


def _section(
    head: str, columns: Sequence[str], rows: Rows, numeric: int | None = None
) -> list[Html]:
    if not rows:
        return []
    numbers = () if numeric is None else (numeric,)
    return [element("h2", head), table(columns, rows, sortable=True, numeric_columns=numbers)]


def _nodes(fleet: Fleet) -> list[Html]:
    if not fleet.nodes:
        return []
    wanting = grouped(
        (at, f"{one.finding.check} ({one.finding.status})")
        for one in fleet.said
        for at in one.nodes
    )
    differing = grouped(
        (at, f"{drift.fact}: {other.value}")
        for drift in fleet.drift
        for other in drift.others
        for at in other.nodes
    )
    devices = {at: kind.value for kind in fleet.devices for at in kind.nodes}
    rows: Rows = []
    ranked = sorted((STATUSES.index(node.status), at) for at, node in enumerate(fleet.nodes))
    for _, at in ranked:
        node = fleet.nodes[at]
        rows.append(
            (
                node.name,
                status_badge(node.status),
                _some(list(dict.fromkeys(wanting.get(at, [])))),
                _some(differing.get(at, [])),
                devices.get(at, ""),
                _segment(node.row),
                "" if node.row is None else node.row.origin,
            )
        )
    heads = ["node", "status", "findings", "differs in", "devices", "segment", "report"]
    every = table(heads, rows, sortable=True, numeric_columns=(5,), caption="Every node")
    return [element("h2", "Nodes, the worst first"), every]


def _segment(row: NodeRow | None) -> Cell:
    if row is None or row.launch is None:
        return ""
    size = row.launch.segment_bytes
    return "unknown" if isinstance(size, Unknown) else Keyed(format_bytes(size), float(size))


def _some(texts: Sequence[str]) -> Cell:
    more = len(texts) - MOST_CHECKS
    shown = "; ".join([*texts[:MOST_CHECKS], *([f"and {more} more"] if more > 0 else [])])
    return Keyed(shown, len(texts))


def _findings(fleet: Fleet, head: str, said: Iterable[Said]) -> list[Html]:
    rows: Rows = [
        (
            one.finding.check,
            status_badge("ignored" if one.finding.ignored is not None else one.finding.status),
            Keyed(nodes_text(fleet, one.nodes), len(one.nodes)),
            one.finding.subject,
            one.finding.have,
            one.finding.need,
            one.finding.text,
        )
        for one in said
    ]
    columns = ["check", "status", "nodes", "subject", "have", "need", "what follows"]
    return _section(head, columns, rows)


def _alike(fleet: Fleet) -> list[Html]:
    rows = [
        (nodes_text(fleet, kind.nodes), f"{what}{kind.value}")
        for what, kinds in (("", fleet.devices), ("master ", fleet.masters))
        for kind in kinds
    ]
    parts = [table(["nodes", "what they have"], rows)] if rows else []
    parts += [element("p", text) for text in (pool_text(fleet), facts_text(fleet)) if text]
    return [element("h2", "Devices and pool"), join(parts, "\n")] if parts else []


def _unusable(fleet: Fleet) -> list[Html]:
    rows: Rows = [
        (
            f"{one.source}:{one.line}" if one.line else one.source,
            one.trouble.value,
            one.reason,
            str(one.times),
        )
        for one in fleet.unusable
    ]
    rows += [
        (node, "given twice", "the same each time", str(times))
        for node, times in sorted(fleet.repeats.items())
    ]
    head = "Reports that are not used, or not twice"
    return _section(head, ["report", "trouble", "why", "times"], rows, 3)
