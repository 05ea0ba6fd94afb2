"""Rows of reports to a fleet: pure, whatever they were read from."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from checks.base.unknown import Unknown
from preflight.fleet.base.grouping import grouped, holders
from preflight.fleet.base.node_sets import fold, in_order
from preflight.fleet.merge.checks import fleet_findings
from preflight.fleet.merge.fleet_drift import Facts, drift, gathered
from preflight.fleet.merge.rails import grouped_devices
from preflight.fleet.merge.records import Fleet, FleetNode, Pool, Said, Variant
from preflight.fleet.reports.duplicates import Settled, settled_rows
from preflight.fleet.reports.reading import Reports
from preflight.fleet.reports.records import STATUSES, FleetFinding, NodeRow, Trouble, Unusable
from preflight.fleet.reports.tables import Tables

# Mooncake places objects at random over segments (--allocation_strategy): smaller ones fill first.
MOST_SKEW = 1.25

Blamed = tuple[FleetFinding, Sequence[int]]


def merged(reports: Reports, expected: Sequence[str] | None) -> Fleet:
    """The fleet. expected: names of its nodes; None where only the reports say which there are."""
    settled = settled_rows(reports.rows)
    # Nodes of which there are only reports that cannot be used: a file's name is taken for one
    # where another node's is like it; with an expected set, what is not in it is no node.
    patterns = {_pattern(name) for name in settled.rows} if expected is None else set()
    lost = [one.node for one in reports.unusable if one.node and _pattern(one.node) in patterns]
    names = in_order([*settled.rows, *(expected or ()), *lost])
    place_of = {name: at for at, name in enumerate(names)}
    rows = [(at, settled.rows[name]) for name, at in place_of.items() if name in settled.rows]
    whole = [(at, row) for at, row in rows if row.whole]
    facts = gathered(reports.tables.facts, ((at, row.facts) for at, row in whole))
    blamed = [
        *_absences(names, settled, reports.unusable, expected),
        *((finding, [place_of[node]]) for node, finding in settled.doubts),
        *fleet_findings(whole, facts),
    ]
    pool = _pool(whole)
    blamed += _of_pool(pool, len(whole))
    versions = any(finding.check == "fleet.mooncake-version" for finding, _ in blamed)
    drifts = drift(  # but of what a finding is about already
        {name: values for name, values in facts.items() if name != "wheel.mooncake" * versions},
        *_unknown(reports.tables, whole, facts),
    )
    said, waived, passed = _said(reports.tables, rows, blamed, len(names))
    differing = {at for one in drifts if one.most for other in one.others for at in other.nodes}
    return Fleet(
        _verdict(rows, said, bool(drifts)),
        tuple(_nodes(names, settled.rows, said, differing)),
        None if expected is None else len(expected),
        len(reports.rows),
        tuple(said),
        tuple(waived),
        tuple(passed),
        drifts,
        grouped_devices(whole, facts.get("gpu.names", {})),
        _masters(whole),
        pool,
        tuple(reports.unusable),
        settled.repeats,
    )


def _pattern(name: str) -> str:
    return "".join("0" if sign.isdecimal() else sign for sign in name)


def _absences(
    names: Sequence[str],
    settled: Settled,
    unusable: Sequence[Unusable],
    expected: Sequence[str] | None,
) -> list[Blamed]:
    found: list[Blamed] = []
    broken = {one.node: one for one in unusable}
    reasons: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        if name not in settled.rows:
            why = broken.get(name)
            said = "no report"
            if why is not None:
                unread = why.trouble is Trouble.UNREADABLE
                said += f" but one that is {'unreadable' if unread else why.trouble.value}"
            reasons.setdefault(said, []).append(at)
    for reason, places in reasons.items():
        text = "nothing is known of it, so it is not one to start on"
        finding = FleetFinding("fleet.report", "unknown", "node", reason, "", text)
        found.append((finding, places))
    if expected is not None:
        wanted = set(expected)
        more = [at for at, name in enumerate(names) if name not in wanted]
        if more:
            text = "it is not among the nodes that are expected (--expect)"
            finding = FleetFinding("fleet.unexpected", "warn", "node", "a report", "none", text)
            found.append((finding, more))
    # A text that is nobody's report could be that of a node which is missing.
    nobodys = [one for one in unusable if one.node not in settled.rows]
    complete = expected is not None and all(name in settled.rows for name in expected)
    strays = [one for one in nobodys if one.node not in names]
    if strays:
        count = sum(one.times for one in strays)
        status = "warn" if complete else "unknown"
        text = (
            "every node that is expected has a report: none of them is missing"
            if complete
            else "one of them can be the report of a node that is missing here"
        )
        have = f"{count} that cannot be used"
        found.append((FleetFinding("fleet.unusable", status, "reports", have, "", text), []))
    return found


def _said(
    tables: Tables, rows: Sequence[tuple[int, NodeRow]], blamed: Iterable[Blamed], nodes: int
) -> tuple[list[Said], list[Said], list[Said]]:
    """Findings with the nodes that say them: wanting, waived, passed; what few say first."""
    kinds: tuple[list[Said], list[Said], list[Said]] = ([], [], [])
    for number, held in holders((at, row.findings) for at, row in rows).items():
        finding = tables.findings[number]
        kind = 1 if finding.ignored is not None else 2 * (finding.status == "pass")
        kinds[kind].append(Said(finding, held))
    kinds[0].extend(Said(finding, array("I", places)) for finding, places in blamed)

    def place(one: Said) -> tuple[object, ...]:
        finding, count = one.finding, len(one.nodes)
        rank = STATUSES.index(finding.status)
        return 2 * count > nodes, rank, count, finding.check, *map(str, finding)

    said, waived, passed = (sorted(kind, key=place) for kind in kinds)
    return said, waived, passed


def _nodes(
    names: Sequence[str], rows: Mapping[str, NodeRow], said: Iterable[Said], differing: set[int]
) -> Iterable[FleetNode]:
    of_fleet: dict[int, set[str]] = {}
    for one in said:
        if one.of_fleet:
            for at in one.nodes:
                of_fleet.setdefault(at, set()).add(one.finding.status)
    for at, name in enumerate(names):
        row = rows.get(name)
        told = {"unknown" if row is None else row.status, *of_fleet.get(at, ())}
        if at in differing:
            told.add("warn")
        yield FleetNode(name, next(status for status in STATUSES if status in told), row)


def _verdict(rows: Sequence[tuple[int, NodeRow]], said: Iterable[Said], drifts: bool) -> str:
    """The worst there is; no report at all is nothing known."""
    if not rows:
        return "unknown"
    told = {row.status for _, row in rows} | {one.finding.status for one in said}
    if drifts:
        told.add("warn")
    return next(status for status in STATUSES if status in told)


def _unknown(
    tables: Tables, rows: Sequence[tuple[int, NodeRow]], facts: Facts
) -> tuple[dict[str, Sequence[int]], list[int], list[int]]:
    """Facts that nodes could not read; all that have facts; those without a whole topic."""
    unread: dict[str, Sequence[int]] = {}
    for number, places in holders((at, row.unknown_facts) for at, row in rows).items():
        name = tables.unknown_facts[number][0]
        unread[name] = [*unread.get(name, ()), *places]
    vague = {at for name, places in unread.items() if name not in facts for at in places}
    return unread, [at for at, _ in rows], sorted(vague)


def _masters(rows: Sequence[tuple[int, NodeRow]]) -> tuple[Variant, ...]:
    groups = grouped(
        (", ".join(row.launch.known_masters), at)
        for at, row in rows
        if row.launch is not None and row.launch.known_masters
    )
    by_size = sorted(groups.items(), key=lambda item: (len(item[1]), item[0]))
    return tuple(Variant(master, places) for master, places in by_size)


def _pool(rows: Sequence[tuple[int, NodeRow]]) -> Pool | None:
    """None where no launch has a store."""
    shares: dict[int, array[int]] = {}
    unread = array("I")
    stores = 0
    for at, row in rows:
        if row.launch is None:
            continue
        size = row.launch.segment_bytes
        if isinstance(size, Unknown):
            unread.append(at)
        elif size or row.launch.known_masters:
            shares.setdefault(size, array("I")).append(at)
        stores += row.launch.stores if isinstance(row.launch.stores, int) else 0
    if not shares and not unread:
        return None
    total = sum(size * len(places) for size, places in shares.items())
    return Pool(total, tuple(sorted(shares.items(), reverse=True)), unread, stores)


def _of_pool(pool: Pool | None, nodes: int) -> list[Blamed]:
    if pool is None or not pool.shares or nodes < 2:
        return []
    from checks.base.units import format_bytes

    usual, places = max(pool.shares, key=lambda share: len(share[1]))
    found: list[Blamed] = []
    for size, others in pool.shares:
        if size == usual or not usual or max(size, usual) <= MOST_SKEW * min(size, usual):
            continue
        if size == 0:  # a client that only takes is a way to run, if it is meant
            have, text = "no segment", "it uses the pool and adds nothing to it"
        else:
            have = format_bytes(size)
            text = "nodes with more hold more of the objects, and serve more of the reads"
        need = f"{format_bytes(usual)}, as {len(places)} of {nodes} nodes"
        finding = FleetFinding("fleet.segment", "warn", "global segment", have, need, text)
        found.append((finding, others))
    return found


def nodes_text(fleet: Fleet, places: Sequence[int]) -> str:
    """Nodes by their places, folded."""
    return fold(fleet.nodes[at].name for at in places)
