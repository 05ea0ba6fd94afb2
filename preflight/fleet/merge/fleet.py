"""Rows of reports to a fleet: of each fact the most common value, and who has another. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from checks.framework.regex import regex
from checks.framework.unknown import Unknown
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import grouped
from preflight.fleet.merge.checks import fleet_findings
from preflight.fleet.reports.reading import MOST_AMOUNTS, Reports
from preflight.fleet.reports.rows import (
    EXIT_CODES,
    NO_REPORT,
    NOT_REACHED,
    STATUSES,
    FleetFinding,
    NodeRow,
    OnNodes,
    Rows,
    Trouble,
    Unusable,
    choose_rows,
    worst,
)

# Unknown never passes: a node that did not answer is not one to start on.
PASSING = ("pass", "warn")
FAILING = ("fail", "unknown")
ABSENT = "absent"
DEVICES = "rdma.devices"
# Like machines differ by what their firmware keeps: equal when rounded is equal.
_ROUNDED = ("memory.", "limit.nproc")
# More facts that most nodes do not have are one entry, as of a model's folder that is called after
# its node: each would name nearly all nodes, and 5,000 took minutes.
MOST_RARE = 100
# Of one device (mlx5_0.firmware) or of one of its ports (mlx5_0:1.rate).
_OF_DEVICE = regex(r"([^.:]+)(?::\d+)?\.")

# name -> value as it is shown -> the nodes that have it.
Facts = Mapping[str, Mapping[str, Sequence[str]]]
One = TypeVar("One")


class Variant(NamedTuple):
    """One value and the nodes that have it."""

    value: str
    nodes: Sequence[str]


class Drift(NamedTuple):
    """One fact, or several that differ alike, that is not the same everywhere.

    Attributes:
        most: None if no value is on more nodes than each other: ``others`` then has every value.
        unread: Nodes that could not read it.
    """

    fact: str
    facts: tuple[str, ...]
    most: Variant | None
    others: tuple[Variant, ...]
    unread: Sequence[str]


class FleetNode(NamedTuple):
    """One node.

    Attributes:
        status: The worst of its report and the findings.
        row: None without a report.
    """

    name: str
    status: str
    row: NodeRow | None


class SegmentPool(NamedTuple):
    """The memory that all nodes' stores give together.

    Attributes:
        shares: Bytes -> nodes, the largest first.
        total_bytes: Of the nodes whose segments are known; unread: the other nodes.
        stores: How many store clients.
    """

    total_bytes: int
    shares: tuple[tuple[int, Sequence[str]], ...]
    unread: Sequence[str]
    stores: int


class Fleet(NamedTuple):
    """The merged answer about all nodes.

    Attributes:
        nodes: By number, also expected ones without a report.
        reports: How many reports came from a node.
        findings: Those that fail, are unknown or warn, in the order in which they are shown,
            without ``waived``.
        repeats: Node -> how many reports say the same as another one.
    """

    verdict: str
    nodes: tuple[FleetNode, ...]
    expected: int | None
    reports: int
    findings: tuple[OnNodes, ...]
    waived: tuple[OnNodes, ...]
    passed: tuple[OnNodes, ...]
    drift: tuple[Drift, ...]
    segments: SegmentPool | None
    unusable: tuple[Unusable, ...]
    repeats: Mapping[str, int]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def of(self, *statuses: str) -> list[str]:
        """Return the nodes with one of these statuses."""
        return [each.name for each in self.nodes if each.status in statuses]


def merge_reports(reports: Reports, expected: Sequence[str] | None) -> Fleet:
    """Return the fleet of all nodes that report, or are in ``expected``.

    Args:
        expected: Any other node is a finding; None if any node may report. With None, a node that
            has only unusable reports is included if its name is like that of a reporting node
            (``gpu1``, ``gpu2``).
    """
    rows_read = reports.rows
    choice = choose_rows(rows_read)
    # Nodes of which there are only reports that cannot be used: a file's name is taken for one
    # where another node's is like it; with an expected set, what is not in it is no node.
    patterns = {_pattern(name) for name in choice.rows} if expected is None else set()
    lost = [text.name for text in reports.unusable if text.name and _pattern(text.name) in patterns]
    names = in_order([*choice.rows, *(expected or ()), *lost])
    rows = {name: choice.rows[name] for name in names if name in choice.rows}
    whole = {name: row for name, row in rows.items() if row.whole}
    facts = nodes_by_value(whole)
    absences = _absences(names, choice.rows, reports.unusable, expected)
    of_fleet = [*absences, *choice.doubts, *fleet_findings(whole, facts)]
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
        _segments(whole),
        tuple(reports.unusable),
        choice.repeats,
    )


def _pattern(name: str) -> str:
    return "".join("0" if sign.isdecimal() else sign for sign in name)


def _absences(
    names: Sequence[str],
    chosen_rows: Rows,
    unusable: Sequence[Unusable],
    expected: Sequence[str] | None,
) -> Iterable[OnNodes]:
    """Yield the findings on nodes without a report, on unexpected nodes, and on unusable reports of
    none of ``names``.

    Args:
        names: All nodes of the fleet, reporting or expected.
        chosen_rows: The row of each node that has a usable report.
        expected: None if any node may report.
    """
    terms = {Trouble.UNREADABLE: "unreadable"}
    broken = {
        report.name: f"no report but one that is {terms.get(report.trouble, report.trouble.value)}"
        for report in unusable
    }
    absent = [name for name in names if name not in chosen_rows]
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
    complete = expected is not None and all(name in chosen_rows for name in expected)
    strays = [report for report in unusable if report.name not in names]
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
    """Return three lists of findings with their nodes: wanting (fail, unknown, warn), waived and
    passed.

    Args:
        of_fleet: More wanting findings.
        nodes: How many the fleet has. Each list begins with findings on at most half of the nodes;
            among these the worst, then the rarest, are first.
    """
    groups: tuple[list[OnNodes], list[OnNodes], list[OnNodes]] = ([*of_fleet], [], [])
    holders = nodes_of_each({name: row.findings for name, row in rows.items()})
    amounts = Counter((each.check, each.subject) for each in holders if each.status == "pass")
    varied = {key for key, count in amounts.items() if count > MOST_AMOUNTS}
    for finding in [each for each in holders if (each.check, each.subject) in varied]:
        if finding.status == "pass":
            names = holders.pop(finding)
            holders.setdefault(finding._replace(have=""), []).extend(names)
    order = {name: at for at, name in enumerate(rows)}
    for finding, names in holders.items():
        if finding.status == "pass" and (finding.check, finding.subject) in varied:
            names.sort(key=order.__getitem__)
        group = 1 if finding.ignored is not None else 2 * (finding.status == "pass")
        groups[group].append(OnNodes(finding, names))

    def place(item: OnNodes) -> tuple[object, ...]:
        finding, count = item.finding, len(item.nodes)
        rank = STATUSES.index(finding.status)
        return 2 * count > nodes, rank, count, finding.check, *map(str, finding)

    wanting, waived, passed = (sorted(group, key=place) for group in groups)
    return wanting, waived, passed


def _nodes(
    names: Sequence[str], rows: Rows, wanting: Iterable[OnNodes], drifts: Iterable[Drift]
) -> Iterable[FleetNode]:
    """Return each node with the worst status of its report (unknown without one) and of the fleet's
    findings.

    A node that differs from the most common value of a fact warns at least.
    """
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


def _segments(rows: Rows) -> SegmentPool | None:
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
    stores = sum(row.share_value("stores") or 0 for row in rows.values())
    return SegmentPool(total, tuple(sorted(shares.items(), reverse=True)), unread, stores)


def nodes_of_each(rows: Mapping[str, Collection[One]]) -> dict[One, list[str]]:
    """Return thing -> the nodes that have it, in the order of ``rows`` (node -> its things)."""
    holders: dict[One, list[str]] = {}
    # Most nodes of a fleet hold the same: those are looked at once.
    for things, names in grouped((things, name) for name, things in rows.items()).items():
        for thing in things:
            holders.setdefault(thing, []).extend(names)
    places = {name: at for at, name in enumerate(rows)}
    return {thing: sorted(names, key=places.__getitem__) for thing, names in holders.items()}


def nodes_by_value(rows: Rows) -> dict[str, dict[str, Sequence[str]]]:
    """Return fact name -> value as it is shown -> nodes.

    Of different sizes that are shown alike the second is written in bytes, but not in facts of
    _ROUNDED.
    """
    facts: dict[str, dict[str, Sequence[str]]] = {}
    for fact, names in nodes_of_each({name: row.facts for name, row in rows.items()}).items():
        values, text = facts.setdefault(fact.name, {}), fact.shown
        if text in values and not fact.name.startswith(_ROUNDED):
            text = f"{fact.value} B"
        values[text] = [*values[text], *names] if text in values else names
    return facts


def drift(facts: Facts, rows: Rows) -> tuple[Drift, ...]:
    """Return the facts that differ, first those in which the fewest nodes deviate.

    Devices that differ alike are one entry.
    """
    unread = nodes_of_each({name: row.unread for name, row in rows.items()})

    def place(fact: Drift) -> tuple[int, str]:
        return sum(len(other.nodes) for other in fact.others), fact.fact

    return tuple(sorted(_folded(_each_drift(facts, unread, rows)), key=place))


def _each_drift(facts: Facts, unknown: Mapping[str, Sequence[str]], rows: Rows) -> Iterator[Drift]:
    """Yield each fact that differs, with its values, the most common first.

    A node without the fact has the value ABSENT, but no value if it lacks the whole device. If more
    than MOST_RARE facts are on fewer than half of the nodes, all of these are one.

    Args:
        unknown: Fact or whole topic -> the nodes that could not read it.
    """
    every, holders, uncertain = frozenset(rows), *_device_holders(facts.get(DEVICES, {}), rows)
    # Where a whole topic was not read, a fact that is missing is not known to be.
    vague = {name for fact, names in unknown.items() if fact not in facts for name in names}
    rare: dict[str, set[str]] = {}  # fact -> the nodes that have it
    differing: list[Drift] = []
    for fact, values in facts.items():
        device = _OF_DEVICE.match(fact)
        # That the device is missing is said once.
        lacks = device is not None and device[1] in holders
        owners = holders[device[1]] | uncertain if device and lacks else every
        having = sum(map(len, values.values()))
        if len(values) == 1 and having == len(owners):
            continue
        if 2 * having < len(owners):
            rare[fact] = {name for names in values.values() for name in names}
            if len(rare) > MOST_RARE:
                continue
        missing = owners.difference(*values.values())
        unread = missing & vague | missing.intersection(unknown.get(fact, ()))
        missing -= unread
        variants = [Variant(*item) for item in values.items()]
        if missing:
            variants.append(Variant(ABSENT, [name for name in rows if name in missing]))
        variants.sort(key=lambda variant: (-len(variant.nodes), variant.value))
        if len(variants) < 2:
            continue
        tie = len(variants[0].nodes) == len(variants[1].nodes)
        most, others = (None, variants) if tie else (variants[0], variants[1:])
        in_rows = [name for name in rows if name in unread] if unread else []
        differing.append(Drift(fact, (fact,), most, tuple(others), in_rows))
    if len(rare) > MOST_RARE:
        differing = [each for each in differing if each.fact not in rare]
        nodes = set().union(*rare.values())
        some, none = ([name for name in rows if (name in nodes) is has] for has in (True, False))
        name = f"{len(rare)} facts that most nodes do not have"
        has_some = Variant(f"some: {', '.join([*rare][:2])}, ...", some)
        differing.append(Drift(name, tuple(rare), Variant(ABSENT, none), (has_some,), ()))
    yield from differing


def _device_holders(
    devices: Mapping[str, Sequence[str]], rows: Iterable[str]
) -> tuple[dict[str, set[str]], set[str]]:
    """Return RDMA device -> nodes that have it, and the nodes of which no device is known to be
    missing.

    Args:
        devices: Names with spaces -> nodes.
    """
    holders: dict[str, set[str]] = {}
    for device_list, names in devices.items():
        for device in device_list.split():
            holders.setdefault(device, set()).update(names)
    return holders, set(rows).difference(*devices.values())


def _folded(drifts: Iterable[Drift]) -> Iterator[Drift]:
    """Yield facts of several devices that differ alike as one: ``mlx5_0-7.firmware``."""
    from preflight.verdict.report import fold

    signs = re.compile(r"\d+")
    alike = ((repr(x._replace(fact=signs.sub("0", x.fact), facts=())), x) for x in drifts)
    for group in grouped(alike).values():
        facts = tuple(fact for drifting in group for fact in drifting.facts)
        names = tuple(drifting.fact for drifting in group)
        yield group[0]._replace(fact=fold(names), facts=facts)
