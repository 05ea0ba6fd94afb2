"""What is said of a fleet in the same words everywhere: on a terminal, in HTML and in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from preflight.base.one_line import clean
from preflight.fleet.base.words import cut, cut_set, plural
from preflight.fleet.merge.fleet import nodes_text
from preflight.fleet.merge.records import Drift, Fleet
from preflight.fleet.reports.records import STATUSES, Unusable

# The whole of each list is in --json; a screen holds some forty lines.
MOST_VARIANTS = 4


def verdict_text(fleet: Fleet) -> str:
    """The verdict in words."""
    head = fleet.verdict.upper()
    if not fleet.nodes:
        return f"{head}: no node has a report ({_read(fleet)})"
    counts = [(len(fleet.of(status)), status) for status in STATUSES]
    said = ", ".join(f"{count} {status}" for count, status in counts if count)
    return f"{head}: of {plural(len(fleet.nodes), 'node')} {said} ({_read(fleet)})"


def _read(fleet: Fleet) -> str:
    parts = [f"{plural(fleet.reports, 'report')} read"]
    lost = sum(one.times for one in fleet.unusable)
    if lost:
        parts.append(f"{lost} not usable")
    if fleet.expected is not None:
        parts.append(f"{plural(fleet.expected, 'node')} expected")
    return ", ".join(parts)


def drift_cells(fleet: Fleet, one: Drift) -> tuple[str, str, str]:
    """The fact, the most common value, and the other values with their nodes."""
    most = "a tie" if one.most is None else f"{cut(one.most.value)} ({len(one.most.nodes)})"
    others = [
        f"{shortened(fleet, other.nodes)}: {cut(other.value) or 'empty'}"
        for other in sorted(one.others, key=lambda other: len(other.nodes))[:MOST_VARIANTS]
    ]
    if len(one.others) > MOST_VARIANTS:
        others.append(f"and {len(one.others) - MOST_VARIANTS} more values")
    if one.unread:
        others.append(f"{shortened(fleet, one.unread)}: not read")
    return clean(one.fact), most, "; ".join(others)


def pool_text(fleet: Fleet) -> str:
    """``pool: 4.00 TiB = 63 x 64.00 GiB + 32.00 GiB (gpu040), …``; "" without a store."""
    pool = fleet.pool
    if pool is None:
        return ""
    from checks.base.units import format_bytes

    by_count = sorted(pool.shares, key=lambda share: -len(share[1]))
    parts = [
        f"{len(places)} x {format_bytes(size)}" + (f" ({shortened(fleet, places)})" if at else "")
        for at, (size, places) in enumerate(by_count[:MOST_VARIANTS])
    ]
    if len(by_count) > MOST_VARIANTS:
        parts.append(f"{len(by_count) - MOST_VARIANTS} other sizes")
    text = f"pool: {format_bytes(pool.total_bytes)} of global segments"
    text += f" = {' + '.join(parts)}" if parts else ""
    if pool.skew is not None:
        text += f"; the largest share is {pool.skew:.2f} times the smallest"
    if pool.unread:
        text += f"; and what {shortened(fleet, pool.unread)} adds, which is not known"
    return text


def facts_text(fleet: Fleet) -> str:
    """Which nodes could not be held against the others; "" where all could."""
    places = fleet.without_facts
    if not places:
        return ""
    return (
        f"{shortened(fleet, places)}: answers of check --json, which have no facts, addresses or "
        "segments to compare"
    )


def unusable_text(one: Unusable) -> str:
    """``gpu007.json: truncated: it ends after 8000 bytes, within the report``."""
    where = f"{one.source}:{one.line}" if one.line else one.source
    more = f" (and {plural(one.times - 1, 'line')} like it)" if one.times > 1 else ""
    return f"  {clean(where)}: {one.trouble.value}: {cut(one.reason, 160)}{more}"


def shortened(fleet: Fleet, places: Sequence[int]) -> str:
    """Nodes folded, and cut with their number where they would fill the line."""
    return cut_set(nodes_text(fleet, places), len(places))


def listed(names: Iterable[str], form: str) -> str:
    """Names as a scheduler reads them: ``nodeset`` for Slurm, ``lines`` for kubectl and xargs."""
    from preflight.fleet.base.node_sets import fold

    return fold(names, slurm=True) if form == "nodeset" else "\n".join(names)
