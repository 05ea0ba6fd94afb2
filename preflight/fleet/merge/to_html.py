"""A fleet as one HTML page: what fleet_text says, and the nodes in a table that sorts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.fleet.merge.fleet import nodes_text
from preflight.fleet.merge.records import FAILING, PASSING, Fleet, Said
from preflight.fleet.merge.words import drift_cells, facts_text, pool_text, verdict_text
from preflight.fleet.reports.records import STATUSES
from preflight.render.html_page import Cell, Html, Keyed, element, join, page, status_badge, table

# A node has a line; who has more than these has a command line.
MOST_CHECKS = 6


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
    body = join(
        [
            element("h1", "Fleet"),
            element("p", status_badge(fleet.verdict), " ", verdict.partition(": ")[2]),
            _lists(fleet),
            *_section("What few nodes say comes first", _findings(fleet, fleet.said)),
            *_section("Not the same everywhere", _drift(fleet)),
            *_section("Nodes, the worst first", _nodes(fleet)),
            *_section("Devices and pool", _alike(fleet)),
            *_section("Ignored", _findings(fleet, fleet.waived)),
            *_section("Reports that are not used, or not twice", _unusable(fleet)),
            *_section("What passes", _findings(fleet, fleet.passed)),
        ],
        "\n",
    )
    return page(f"Fleet: {verdict}", body)


def _section(head: str, content: Html | None) -> list[Html]:
    return [] if content is None else [element("h2", head), content]


def _lists(fleet: Fleet) -> Html:
    """Node sets to paste into a scheduler's command line."""
    rows: list[Sequence[Cell]] = [
        (name, str(len(places)), nodes_text(fleet, places) or "none")
        for name, places in (
            ("passing", fleet.of(*PASSING)),
            ("failing", fleet.of(*FAILING)),
        )
    ]
    return table(["nodes", "count", "as a node set"], rows, numeric_columns=(1,))


def _nodes(fleet: Fleet) -> Html | None:
    if not fleet.nodes:
        return None
    wanting: dict[int, list[str]] = {}
    for one in fleet.said:
        for at in one.nodes:
            wanting.setdefault(at, []).append(f"{one.finding.check} ({one.finding.status})")
    differing: dict[int, list[str]] = {}
    for drift in fleet.drift:
        for other in drift.others:
            for at in other.nodes:
                differing.setdefault(at, []).append(f"{drift.fact}: {other.value}")
    devices = {at: kind.value for kind in fleet.devices for at in kind.nodes}
    rows: list[Sequence[Cell]] = []
    for at in sorted(range(len(fleet.nodes)), key=lambda at: _badness(fleet, at)):
        node, segment = fleet.nodes[at], _segment(fleet, at)
        checks = list(dict.fromkeys(wanting.get(at, [])))
        rows.append(
            (
                node.name,
                status_badge(node.status),
                Keyed(_some(checks), len(checks)),
                Keyed(_some(differing.get(at, [])), len(differing.get(at, []))),
                devices.get(at, ""),
                segment,
                "" if node.row is None else node.row.origin,
            )
        )
    heads = ["node", "status", "findings", "differs in", "devices", "segment", "report"]
    return table(heads, rows, sortable=True, numeric_columns=(5,), caption="Every node")


def _badness(fleet: Fleet, at: int) -> tuple[int, int]:
    return STATUSES.index(fleet.nodes[at].status), at


def _segment(fleet: Fleet, at: int) -> Cell:
    row = fleet.nodes[at].row
    if row is None or row.launch is None:
        return ""
    size = row.launch.segment_bytes
    if isinstance(size, Unknown):
        return "unknown"
    from checks.base.units import format_bytes

    return Keyed(format_bytes(size), float(size))


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_CHECKS
    return "; ".join([*texts[:MOST_CHECKS], *([f"and {more} more"] if more > 0 else [])])


def _findings(fleet: Fleet, said: Iterable[Said]) -> Html | None:
    rows: list[Sequence[Cell]] = [
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
    if not rows:
        return None
    heads = ["check", "status", "nodes", "subject", "have", "need", "what follows"]
    return table(heads, rows, sortable=True)


def _drift(fleet: Fleet) -> Html | None:
    if not fleet.drift:
        return None
    rows = [drift_cells(fleet, one) for one in fleet.drift]
    return table(["fact", "most nodes", "the others"], rows, sortable=True)


def _alike(fleet: Fleet) -> Html | None:
    rows = [
        (nodes_text(fleet, kind.nodes), f"{what}{kind.value}")
        for what, kinds in (("", fleet.devices), ("master ", fleet.masters))
        for kind in kinds
    ]
    parts = [table(["nodes", "what they have"], rows)] if rows else []
    parts += [element("p", text) for text in (pool_text(fleet), facts_text(fleet)) if text]
    return join(parts, "\n") if parts else None


def _unusable(fleet: Fleet) -> Html | None:
    rows: list[Sequence[Cell]] = [
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
    if not rows:
        return None
    return table(["report", "trouble", "why", "times"], rows, sortable=True, numeric_columns=(3,))
