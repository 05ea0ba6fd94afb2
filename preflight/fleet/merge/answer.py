"""A fleet as JSON, and for a person: the verdict, what few nodes say, then what differs."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.base.one_line import clean, shortened
from preflight.base.plain_data import fields
from preflight.base.text import filled, headed, table
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import COLOURS, Paint, cut, grouped, nodes_text, plural, rest_of
from preflight.fleet.merge.fleet import FAILING, PASSING, Drift, Fleet, Variant
from preflight.fleet.reports.answers import finding_lines
from preflight.fleet.reports.rows import (
    NO_REPORT,
    NOT_REACHED,
    SSH,
    STATUSES,
    TIMEOUT,
    OnNodes,
    nodes_object,
)

MOST_OF_ONE_CHECK = 3
# A node without a report has but one finding, and its words are all that there is to go by.
MOST_OF_ABSENCE = 8
ABSENCE = (SSH, TIMEOUT, *NO_REPORT)
# The whole of each list is in --json; a screen holds some forty lines.
MOST_ROWS = 30
MOST_VARIANTS = 4


def verdict_text(fleet: Fleet) -> str:
    """Return verdict and counts, as ``FAIL: of 64 nodes 2 fail, 62 pass (...)``."""
    return f"{fleet.verdict.upper()}: {node_counts_text(fleet)}"


def node_counts_text(fleet: Fleet) -> str:
    """Return the counts of nodes and reports: ``of 64 nodes 2 fail, 62 pass (63 reports ...)``."""
    away, empty = lacking(fleet, NOT_REACHED), lacking(fleet, NO_REPORT)
    lost, expected = sum(text.times for text in fleet.unusable), fleet.expected
    read = [
        f"{plural(fleet.reports, 'report')} read",
        *([f"{plural(away, 'node')} not reached"] if away else []),
        *([f"{plural(empty, 'node')} without a report"] if empty else []),
        *([f"{lost} not usable"] if lost else []),
        *([] if expected is None else [f"{plural(expected, 'node')} expected"]),
    ]
    if not fleet.nodes:
        return f"no node has a report ({', '.join(read)})"
    counts = [(len(fleet.of(status)), status) for status in STATUSES]
    by_status = ", ".join(f"{count} {status}" for count, status in counts if count)
    return f"of {plural(len(fleet.nodes), 'node')} {by_status} ({', '.join(read)})"


def lacking(fleet: Fleet, checks: Sequence[str]) -> int:
    """Count the nodes whose row has a finding of ``checks`` in place of a report.

    A node without any row is not counted.
    """
    wanting = (finding for finding in fleet.findings if finding.finding.check in checks)
    named = {name for on_nodes in wanting for name in on_nodes.nodes}
    return sum(each.name in named and each.row is not None for each in fleet.nodes)


def drift_cells(drifting: Drift) -> tuple[str, str, str]:
    """Return a fact, its most common value (or "a tie"), and its other values with their nodes: the
    rarest MOST_VARIANTS, and "not read".
    """
    usual = drifting.most
    most = "a tie" if usual is None else f"{cut(usual.value)} ({len(usual.nodes)})"
    rare_first = sorted(drifting.others, key=lambda other: len(other.nodes))[:MOST_VARIANTS]
    others = [f"{nodes_text(each.nodes)}: {cut(each.value) or 'empty'}" for each in rare_first]
    if len(drifting.others) > MOST_VARIANTS:
        others.append(f"and {len(drifting.others) - MOST_VARIANTS} more values")
    if drifting.unread:
        others.append(f"{nodes_text(drifting.unread)}: not read")
    return clean(drifting.fact), most, "; ".join(others)


def pool_text(fleet: Fleet) -> str:
    """Return ``pool: 4.00 TiB of global segments = 63 x 64.00 GiB + ...``; "" without a store."""
    segments = fleet.segments
    if segments is None:
        return ""
    from checks.framework.units import format_bytes

    by_count = sorted(segments.shares, key=lambda share: -len(share[1]))
    parts = [
        f"{len(names)} x {format_bytes(size)}" + f" ({nodes_text(names)})" * (at > 0)
        for at, (size, names) in enumerate(by_count[:MOST_VARIANTS])
    ]
    if len(by_count) > MOST_VARIANTS:
        parts.append(f"{len(by_count) - MOST_VARIANTS} other sizes")
    text = f"pool: {format_bytes(segments.total_bytes)} of global segments"
    text += f" = {' + '.join(parts)}" if parts else ""
    if segments.unread:
        text += f"; and what {nodes_text(segments.unread)} adds, which is unknown"
    return text


def fleet_text(fleet: Fleet, paint: Paint, width: int, verbosity: int) -> str:
    """Return the answer as text.

    Args:
        verbosity: Below 0 only the verdict, above 0 also what passed.
    """
    word = fleet.verdict.upper()
    parts = [headed(word, node_counts_text(fleet), width, paint(word, COLOURS[fleet.verdict]))]
    if verbosity >= 0:
        of_most = ((2 * len(each.nodes) > len(fleet.nodes) > 1, each) for each in fleet.findings)
        by_count = grouped(of_most)
        few, many = by_count.get(False, []), by_count.get(True, [])
        # A scheduler is given the lists of nodes.
        named = ((status, fleet.of(status)) for status in STATUSES)
        statuses = [
            f"  {paint(status, COLOURS[status])}{' ' * (9 - len(status))}{nodes_text(names)}"
            for status, names in named
            if names
        ]
        few_head = "Findings on few nodes" if many else "Findings"
        ignored = [
            f"{clean(finding.check)} on {nodes_text(nodes)}: {cut(finding.ignored or '')}"
            for finding, nodes in fleet.waived[:MOST_ROWS]
        ]
        parts += [
            "\n".join(statuses),
            _findings(few_head, few, paint, width),
            _findings("Findings on most nodes", many, paint, width),
            "\n".join(filled(f"ignored: {text}", width) for text in ignored),
            _drift(fleet, width),
            filled(pool_text(fleet), width),
            _not_used(fleet, width),
            _passed(fleet, width, verbosity),
        ]
    return "\n\n".join(part for part in parts if part)


def _findings(head: str, wanting: Sequence[OnNodes], paint: Paint, width: int) -> str:
    """Write findings below ``head``: the first few of each check and status, at most MOST_ROWS.

    The findings left out are counted, with their nodes.

    Returns:
        "" without findings.
    """
    lines: list[str] = []
    more: list[OnNodes] = []
    shown: dict[tuple[str, str], int] = {}
    for on_nodes in wanting:
        key = (on_nodes.finding.check, on_nodes.finding.status)
        most = MOST_OF_ABSENCE if on_nodes.finding.check in ABSENCE else MOST_OF_ONE_CHECK
        if shown.get(key, 0) >= most or sum(shown.values()) >= MOST_ROWS:
            more.append(on_nodes)
            continue
        shown[key] = shown.get(key, 0) + 1
        lines.append(_finding(on_nodes, paint, width))
    alike = grouped(((other.finding.check, other.finding.status), other) for other in more)
    for (check, status), others in alike.items():
        text = f"  {status}: {clean(check)}{_on([name for each in others for name in each.nodes])}"
        lines.append(filled(f"{text}: {len(others)} more, which --json has", width, 2))
    return "\n".join([head, *lines] if lines else [])


def _on(names: Sequence[str]) -> str:
    return f" on {nodes_text(in_order(names))}" if names else ""


def _finding(on_nodes: OnNodes, paint: Paint, width: int) -> str:
    """Return ``fail: memlock.limit on gpu017: rank 0-7``, then its amounts and text as lines."""
    finding = on_nodes.finding
    about = f": {clean(finding.subject)}" * (finding.subject not in ("node", "reports", "report"))
    message = f"{clean(finding.check)}{_on(on_nodes.nodes)}{about}"
    painted = paint(finding.status, COLOURS[finding.status])
    head = headed(finding.status, message, width, painted, "  ")
    return "\n".join([head, *finding_lines(finding, width)])


def _drift(fleet: Fleet, width: int) -> str:
    """Return the table of the facts that are not the same everywhere; "" without such facts."""
    if not fleet.drift:
        return ""
    rows = [drift_cells(drifting) for drifting in fleet.drift[:MOST_ROWS]]
    first = max(23, min(36, max(len(row[0]) for row in rows)))
    second = min(28, max(12, *(len(row[1]) for row in rows)))
    heads = ["not the same everywhere", "most nodes", "the others"]
    shown = table(rows, heads, widths=[first, second, max(20, width - first - second - 4)])
    return "\n".join([shown, *rest_of(MOST_ROWS, fleet.drift)])


def _not_used(fleet: Fleet, width: int) -> str:
    """List the first MOST_ROWS unusable reports, each with the reason, and count the reports that
    say the same as another one of their node.

    Returns:
        "" if there are neither.
    """
    lines = []
    for unusable in fleet.unusable[:MOST_ROWS]:
        reason = shortened(unusable.reason, 160)
        text = f"  {clean(unusable.where)}: {unusable.trouble.value}: {reason}"
        if unusable.times > 1:
            text += f" (and {plural(unusable.times - 1, 'line')} like it)"
        lines.append(filled(text, width, 2))
    lines += rest_of(MOST_ROWS, fleet.unusable)
    repeats = sum(fleet.repeats.values())
    if repeats:
        nodes = nodes_text(sorted(fleet.repeats))
        lines.append(filled(f"  {repeats} more of {nodes}, the same again", width))
    head = ["Reports that are not used, or that are there twice"] if lines else []
    return "\n".join(head + lines)


def _passed(fleet: Fleet, width: int, verbosity: int) -> str:
    """Return the checks that pass, grouped by the nodes on which they pass.

    Without -v only their number; "" if no check passes.
    """
    checks: dict[str, set[str]] = {}
    for on_nodes in fleet.passed:
        checks.setdefault(on_nodes.finding.check, set()).update(on_nodes.nodes)
    if not checks:
        return ""
    if verbosity <= 0:
        return f"pass: {plural(len(checks), 'check')} (which, and where: -v)"
    groups = grouped((tuple(in_order(names)), check) for check, names in checks.items())
    rows = (
        f"pass on {nodes_text(names)}: {', '.join(map(clean, sorted(passed)))}"
        for names, passed in sorted(groups.items(), key=lambda item: len(item[0]))
    )
    return "\n".join(filled(row, width) for row in rows)


def fleet_object(fleet: Fleet) -> Json:
    """Return the answer of ``schemas/fleet-v1.schema.json``: lists of nodes are node sets."""
    segments = fleet.segments
    shares = () if segments is None else segments.shares
    return {
        "nodes": len(fleet.nodes),
        "expected": fleet.expected,
        "reports": {
            "read": fleet.reports,
            "not_reached": lacking(fleet, NOT_REACHED),
            "not_usable": sum(item.times for item in fleet.unusable),
            "repeated": sum(fleet.repeats.values()),
        },
        "by_status": {status: nodes_object(fleet.of(status)) for status in STATUSES},
        "passing": nodes_object(fleet.of(*PASSING)),
        "failing": nodes_object(fleet.of(*FAILING)),
        "findings": [
            {**item.as_object(), "ignored": item.finding.ignored, "of_fleet": item.of_fleet}
            for item in (*fleet.findings, *fleet.waived, *fleet.passed)
        ],
        "drift": [
            {
                "fact": item.fact,
                "facts": list(item.facts),
                "most": None if item.most is None else _variant(item.most),
                "others": [_variant(other) for other in item.others],
                "unread": nodes_object(item.unread),
            }
            for item in fleet.drift
        ],
        "pool": None
        if segments is None
        else {
            "total_bytes": segments.total_bytes,
            "stores": segments.stores,
            "shares": [{"size_bytes": size, "nodes": nodes_object(n)} for size, n in shares],
            "unread": nodes_object(segments.unread),
        },
        "unusable": [
            {
                **fields(text, "source", "line", "trouble", "reason"),
                "node": text.name,
                "count": text.times,
            }
            for text in fleet.unusable
        ],
        "repeats": dict(fleet.repeats),
    }


def _variant(variant: Variant) -> Json:
    return {"value": variant.value, "nodes": nodes_object(variant.nodes)}
