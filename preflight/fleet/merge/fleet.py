"""Rows of reports to a fleet: pure, whatever they were read from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import grouped
from preflight.fleet.merge.checks import fleet_findings
from preflight.fleet.merge.drift import Drift, drift, gathered, nodes_of_each
from preflight.fleet.reports.reading import Reports
from preflight.fleet.reports.rows import (
    EXIT_CODES,
    NO_REPORT,
    NOT_REACHED,
    STATUSES,
    FleetFinding,
    NodeRow,
    OnNodes,
    Rows,
    Settled,
    Trouble,
    Unusable,
    settled,
    worst,
)

# Unknown never passes: a node that did not answer is not one to start on.
PASSING = ("pass", "warn")
FAILING = ("fail", "unknown")


class FleetNode(NamedTuple):
    """A node: the worse of its own status and the fleet's; row: None without a usable report."""

    name: str
    status: str
    row: NodeRow | None


class SegmentPool(NamedTuple):
    """Σ segments, of the nodes where they are known. shares: bytes -> nodes, the largest first."""

    total_bytes: int
    shares: tuple[tuple[int, Sequence[str]], ...]
    unread: Sequence[str]
    stores: int


class Fleet(NamedTuple):
    """nodes: in the order of their numbers, those that are expected and silent included.

    reports: how many texts were a node's own. findings: what is wanting and not waived, in the
    order in which it is shown. passed, waived: the rest. repeats: reports that say the same again.
    """

    verdict: str
    nodes: tuple[FleetNode, ...]
    expected: int | None
    reports: int
    findings: tuple[OnNodes, ...]
    waived: tuple[OnNodes, ...]
    passed: tuple[OnNodes, ...]
    drift: tuple[Drift, ...]
    pool: SegmentPool | None
    unusable: tuple[Unusable, ...]
    repeats: Mapping[str, int]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def of(self, *statuses: str) -> list[str]:
        """Return the nodes with one of these statuses."""
        return [node.name for node in self.nodes if node.status in statuses]


def merged(reports: Reports, expected: Sequence[str] | None) -> Fleet:
    """Return the fleet of the ``expected`` nodes, or of whoever reports if that is None."""
    rows_read = reports.rows
    nodes_settled = settled(rows_read)
    # Nodes of which there are only reports that cannot be used: a file's name is taken for one
    # where another node's is like it; with an expected set, what is not in it is no node.
    patterns = {_pattern(name) for name in nodes_settled.rows} if expected is None else set()
    lost = [text.node for text in reports.unusable if text.node and _pattern(text.node) in patterns]
    names = in_order([*nodes_settled.rows, *(expected or ()), *lost])
    rows = {name: nodes_settled.rows[name] for name in names if name in nodes_settled.rows}
    whole = {name: row for name, row in rows.items() if row.whole}
    facts = gathered(whole)
    absences = _absences(names, nodes_settled, reports.unusable, expected)
    of_fleet = [*absences, *nodes_settled.doubts, *fleet_findings(whole, facts)]
    # Of what a finding is about already, no drift is told.
    if any(item.finding.check == "fleet.mooncake-version" for item in of_fleet):
        facts.pop("wheel.mooncake", None)
    drifts = drift(facts, whole)
    wanting, waived, passed = _findings(rows, of_fleet, len(names))
    return Fleet(
        _verdict(rows, wanting, bool(drifts)),
        tuple(_nodes(names, rows, wanting, drifts)),
        None if expected is None else len(expected),
        # A report may stand in place of one that the node did not give.
        sum(
            not {*NOT_REACHED, *NO_REPORT} & {finding.check for finding in row.findings}
            for row in rows_read
        ),
        tuple(wanting),
        tuple(waived),
        tuple(passed),
        drifts,
        _pool(whole),
        tuple(reports.unusable),
        nodes_settled.repeats,
    )


def _pattern(name: str) -> str:
    return "".join("0" if sign.isdecimal() else sign for sign in name)


def _absences(
    names: Sequence[str],
    nodes_settled: Settled,
    unusable: Sequence[Unusable],
    expected: Sequence[str] | None,
) -> Iterable[OnNodes]:
    """Yield the findings on nodes without a report, unexpected nodes and unusable texts."""
    words = {Trouble.UNREADABLE: "unreadable"}
    broken = {
        report.node: f"no report but one that is {words.get(report.trouble, report.trouble.value)}"
        for report in unusable
    }
    absent = [name for name in names if name not in nodes_settled.rows]
    reasons = grouped((broken.get(name, "no report"), name) for name in absent)
    for reason, nodes in reasons.items():
        text = "nothing is known of it: start nothing on it"
        yield OnNodes(FleetFinding("fleet.report", "unknown", "node", reason, "", text), nodes)
    wanted = set(names if expected is None else expected)
    more = [name for name in names if name not in wanted]
    if more:
        text = "it is not among the nodes that are expected (--expect)"
        finding = FleetFinding("fleet.unexpected", "warn", "node", "a report", "none", text)
        yield OnNodes(finding, more)
    # A text that is nobody's report could be that of a node which is missing.
    complete = expected is not None and all(name in nodes_settled.rows for name in expected)
    strays = [report for report in unusable if report.node not in names]
    if strays:
        status = "warn" if complete else "unknown"
        text = "one of them can be the report of a node that is missing here"
        if complete:
            text = "every node that is expected has a report: none of them is missing"
        have = f"{sum(stray.times for stray in strays)} that cannot be used"
        yield OnNodes(FleetFinding("fleet.unusable", status, "reports", have, "", text), [])


def _findings(
    rows: Rows, of_fleet: Iterable[OnNodes], nodes: int
) -> tuple[list[OnNodes], list[OnNodes], list[OnNodes]]:
    """Return wanting, waived and passed findings with their nodes, rare ones first."""
    kinds: tuple[list[OnNodes], list[OnNodes], list[OnNodes]] = ([*of_fleet], [], [])
    for finding, names in nodes_of_each({name: row.findings for name, row in rows.items()}).items():
        kind = 1 if finding.ignored is not None else 2 * (finding.status == "pass")
        kinds[kind].append(OnNodes(finding, names))

    def place(item: OnNodes) -> tuple[object, ...]:
        finding, count = item.finding, len(item.nodes)
        rank = STATUSES.index(finding.status)
        return 2 * count > nodes, rank, count, finding.check, *map(str, finding)

    wanting, waived, passed = (sorted(kind, key=place) for kind in kinds)
    return wanting, waived, passed


def _nodes(
    names: Sequence[str], rows: Rows, wanting: Iterable[OnNodes], drifts: Iterable[Drift]
) -> Iterable[FleetNode]:
    """Return each node with the worst status of its report and of the fleet's findings."""
    statuses = {name: {rows[name].status if name in rows else "unknown"} for name in names}
    for on_nodes in wanting:
        for name in on_nodes.nodes if on_nodes.of_fleet else ():
            statuses[name].add(on_nodes.finding.status)
    for fact in drifts:
        for other in fact.others if fact.most else ():
            for name in other.nodes:
                statuses[name].add("warn")
    return (FleetNode(name, worst(statuses[name]), rows.get(name)) for name in names)


def _verdict(rows: Rows, wanting: Iterable[OnNodes], drifts: bool) -> str:
    """Return the worst status of all; unknown without any report."""
    if not rows:
        return "unknown"
    statuses = {row.status for row in rows.values()} | {item.finding.status for item in wanting}
    return worst(statuses | {"warn"} if drifts else statuses)


def _pool(rows: Rows) -> SegmentPool | None:
    """Return the pool that the launches' stores make; None if no launch has a store."""
    launches = {name: row.launch for name, row in rows.items() if row.launch is not None}
    sizes = {name: launch.share.segment_bytes for name, launch in launches.items()}
    unread = [name for name, size in sizes.items() if isinstance(size, Unknown)]
    shares = grouped(
        (size, name)
        for name, size in sizes.items()
        if not isinstance(size, Unknown) and (size or launches[name].addresses_of("master"))
    )
    if not shares and not unread:
        return None
    total = sum(size * len(names) for size, names in shares.items())
    stores = sum(row.asked("stores") or 0 for row in rows.values())
    return SegmentPool(total, tuple(sorted(shares.items(), reverse=True)), unread, stores)
