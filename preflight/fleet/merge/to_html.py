"""A fleet as one HTML page: what fleet_text says, and the nodes in a table that sorts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.base.within import limit_seconds, save
from preflight.check.catalogue import catalogue
from preflight.fleet.base.node_sets import fold
from preflight.fleet.base.text import grouped
from preflight.fleet.merge.answer import (
    drift_cells,
    facts_text,
    pool_text,
    verdict_said,
    verdict_text,
)
from preflight.fleet.merge.fleet import FAILING, PASSING, Fleet
from preflight.fleet.reports.rows import STATUSES, NodeRow, OnNodes
from preflight.render.html_page import (
    Cell,
    Html,
    Keyed,
    element,
    join,
    page,
    status_badge,
    table,
    tick,
)

# A node has a line; who has more than these has a command line.
MOST_CHECKS = 6

Rows = list[Sequence[Cell]]


def write_html(path: str, fleet: Fleet) -> None:
    """Write the page; ``-`` prints it. Raises UsageError where it cannot be written."""
    text = fleet_page(fleet)
    if path == "-":
        from preflight.base.output import say

        say(text.rstrip("\n"))
        return
    save(f"--html {path}", path, text.encode(), 0o644, limit_seconds())


def fleet_page(fleet: Fleet) -> str:
    """Return the whole HTML document."""
    lists: Rows = [  # node sets to paste into a scheduler's command line
        (name, str(len(nodes)), fold(nodes) or "none")
        for name, nodes in (("passing", fleet.of(*PASSING)), ("failing", fleet.of(*FAILING)))
    ]
    drift: Rows = [drift_cells(one) for one in fleet.drift]
    every = catalogue().about()
    about = {one.finding.check: every.get(one.finding.check, "") for one in fleet.findings}
    body = join(
        [
            element("h1", "Fleet"),
            element("p", status_badge(fleet.verdict), " ", verdict_said(fleet)),
            element("p", tick("print-all", "print all of it"), class_="filter"),
            table(["nodes", "count", "as a node set"], lists, numeric_columns=(1,)),
            *_findings("Findings, those on few nodes first", fleet.findings, about),
            *_section("Not the same everywhere", ["fact", "most nodes", "the others"], drift),
            _on_screen(_nodes(fleet)),
            *_alike(fleet),
            *_findings("Ignored", fleet.waived),
            *_unusable(fleet),
            _on_screen([*_findings("What passes", fleet.passed), *_about(about)]),
        ],
        "\n",
    )
    return page(f"Fleet: {verdict_text(fleet)}", body)


def _on_screen(parts: Sequence[Html]) -> Html:
    """Return what is left out on paper, where it would be long; the findings name the nodes."""
    return element("section", join(parts, "\n"), class_="screen")


def _section(
    head: str, columns: Sequence[str], rows: Rows, numeric: int | None = None
) -> list[Html]:
    if not rows:
        return []
    numbers = () if numeric is None else (numeric,)
    shown = table(columns, rows, name=head, sortable=True, numeric_columns=numbers)
    return [element("h2", head), shown]


def _nodes(fleet: Fleet) -> list[Html]:
    if not fleet.nodes:
        return []
    wanting = grouped(
        (name, f"{one.finding.check} ({one.finding.status})")
        for one in fleet.findings
        for name in one.nodes
    )
    differing = grouped(
        (name, f"{drift.fact}: {other.value}")
        for drift in fleet.drift
        for other in drift.others
        for name in other.nodes
    )
    devices = {name: kind.value for kind in fleet.devices for name in kind.nodes}
    rows: Rows = [
        (
            node.name,
            status_badge(node.status),
            _some(list(dict.fromkeys(wanting.get(node.name, [])))),
            _some(differing.get(node.name, [])),
            devices.get(node.name, ""),
            _segment(node.row),
            "" if node.row is None else node.row.origin,
        )
        for node in sorted(fleet.nodes, key=lambda node: STATUSES.index(node.status))
    ]
    heads = ["node", "status", "findings", "differs in", "devices", "segment", "report"]
    every = table(heads, rows, sortable=True, numeric_columns=(5,), caption="Every node")
    return [element("h2", "Nodes, the worst first"), every]


def _segment(row: NodeRow | None) -> Cell:
    if row is None or row.launch is None:
        return ""
    size = row.launch.share.segment_bytes
    return "unknown" if isinstance(size, Unknown) else Keyed(format_bytes(size), float(size))


def _some(texts: Sequence[str]) -> Cell:
    more = len(texts) - MOST_CHECKS
    shown = "; ".join([*texts[:MOST_CHECKS], *([f"and {more} more"] if more > 0 else [])])
    return Keyed(shown, len(texts))


def _about(texts: Mapping[str, str]) -> list[Html]:
    """Return what each check that finds something is about, where its id leads to."""
    parts = [
        part
        for check, text in texts.items()
        if text
        for part in (
            element("h3", check, id=f"about-{check}"),
            *(element("p", each) for each in text.split("\n\n")),
        )
    ]
    return [element("h2", "What these checks are about"), *parts] if parts else []


def _findings(
    head: str, found: Iterable[OnNodes], about: Mapping[str, str] | None = None
) -> list[Html]:
    """Return the table of findings.

    about: by check, the text that stands below; "" for none.
    """
    linked = {check for check, text in (about or {}).items() if text}
    rows: Rows = [
        (
            element("a", one.finding.check, href=f"#about-{one.finding.check}")
            if one.finding.check in linked
            else one.finding.check,
            status_badge("ignored" if one.finding.ignored is not None else one.finding.status),
            Keyed(fold(one.nodes), len(one.nodes)),
            one.finding.subject,
            one.finding.have,
            one.finding.need,
            one.finding.text,
        )
        for one in found
    ]
    columns = ["check", "status", "nodes", "subject", "have", "need", "what follows"]
    return _section(head, columns, rows)


def _alike(fleet: Fleet) -> list[Html]:
    rows = [
        (fold(kind.nodes), f"{what}{kind.value}")
        for what, kinds in (("", fleet.devices), ("master ", fleet.masters))
        for kind in kinds
    ]
    parts = [table(["nodes", "what they have"], rows)] if rows else []
    parts += [element("p", text) for text in (pool_text(fleet), facts_text(fleet)) if text]
    return [element("h2", "Devices and pool"), join(parts, "\n")] if parts else []


def _unusable(fleet: Fleet) -> list[Html]:
    rows: Rows = [
        (one.where, one.trouble.value, one.reason, str(one.times)) for one in fleet.unusable
    ]
    rows += [
        (node, "given twice", "the same each time", str(times))
        for node, times in sorted(fleet.repeats.items())
    ]
    head = "Reports that are not used, or that are there twice"
    return _section(head, ["report", "trouble", "why", "times"], rows, 3)
