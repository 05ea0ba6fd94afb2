"""What is known of each node by its report, of what could not be used, and of nodes with several.

``settled`` is pure: of several reports of a node equal ones are one; of others the newest counts,
or the worst where that is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.base.envelope import finding_object
from preflight.check.report import EXIT_CODES as OF_STATUS
from preflight.fleet.base.decode import Json, Unread
from preflight.fleet.base.grouping import grouped
from preflight.fleet.base.node_sets import fold
from preflight.fleet.node.records import NodeLaunch, Rail, Route, Value

# As finding.Status, in the order in which they are shown; error and skip are none of these.
STATUSES = ("fail", "unknown", "warn", "pass")
EXIT_CODES = {status.value: code for status, code in OF_STATUS.items()}


def worst(statuses: Collection[str], none: str = "unknown") -> str:
    """Return the worst of ``statuses``; ``none`` where there is none."""
    return next((one for one in STATUSES if one in statuses), none)


class Trouble(Enum):
    """Why a text is no report that can be merged; the worst to explain last."""

    UNREADABLE = "cannot be read"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    BINARY = "not text"
    NOT_JSON = "not JSON"
    TOO_LARGE = "too large"
    TOO_DEEP = "nested too deeply"
    FOREIGN = "not a node's report"
    OTHER_SCHEMA = "of another version"
    WRONG = "not as its schema says"
    NO_NAME = "names no node"


class Unusable(NamedTuple):
    """One text, or several alike in one source. line: of the first, 0 for a whole file.

    node: the node that it is about, "" where it does not say and its file has no node's name.
    """

    source: str
    line: int
    trouble: Trouble
    reason: str
    node: str = ""
    times: int = 1

    @property
    def where(self) -> str:
        return text_place(self.source, self.line)


def text_place(source: str, line: int) -> str:
    """Return ``all.jsonl:7``, or the file alone, which holds nothing else."""
    return f"{source}:{line}" if line else source


class FleetFinding(NamedTuple):
    """What one node, or the fleet, finds: a node's finding without the node, equal ones folded.

    subject: folded. ignored: the reason of a waiver; such a finding counts nowhere.
    """

    check: str
    status: str
    subject: str
    have: str = ""
    need: str = ""
    text: str = ""
    ignored: str | None = None


class OnNodes(NamedTuple):
    """A finding and the nodes that it is on, or about, in the order of their numbers."""

    finding: FleetFinding
    nodes: Sequence[str]

    @property
    def of_fleet(self) -> bool:
        """No single node can see it: it comes of holding their reports together."""
        return self.finding.check.startswith("fleet.")

    def as_object(self) -> Json:
        one = self.finding
        return finding_object(one, text=one.text, nodes=nodes_object(self.nodes))


def nodes_object(names: Sequence[str]) -> Json:
    """Return a list of nodes as every JSON of a fleet has it."""
    return {"count": len(names), "set": fold(names)}


class Fact(NamedTuple):
    """shown: the value as a person reads it, sizes with their unit; yes and 1 are two values."""

    name: str
    value: Value
    shown: str


# Why a check's answer has no rails.
OF_CHECK = Unread("a check's answer has no addresses")


class NodeRow(NamedTuple):
    """One report. unknown_facts: names of those that could not be read.

    origin: file, and line where there are several in one. whole: it is a node's report; a check's
    answer (``check --json``) has neither facts, rails nor launch. boot: "" where it is not known.
    """

    node: str
    origin: str
    made_unix_seconds: int
    status: str
    host: str = ""
    boot: str = ""
    findings: Collection[FleetFinding] = ()
    facts: Collection[Fact] = ()
    unknown_facts: Collection[str] = ()
    rails: tuple[Rail, ...] | Unknown = OF_CHECK
    routes: tuple[Route, ...] | Unknown = Unread("a check's answer has no routes")
    launch: NodeLaunch | None = None
    whole: bool = False

    @property
    def known_rails(self) -> tuple[Rail, ...]:
        return () if isinstance(self.rails, Unknown) else self.rails

    @property
    def taken_rails(self) -> tuple[Rail, ...]:
        """Those that the launch takes; all of them where no launch says which."""
        return tuple(rail for rail in self.known_rails if rail.used is not False)


# By the node's name, in the order of the nodes' numbers.
Rows = Mapping[str, NodeRow]


class Settled(NamedTuple):
    """One row per node. repeats: how many say what another one said. doubts: of differing ones."""

    rows: dict[str, NodeRow]
    repeats: dict[str, int]
    doubts: list[OnNodes]


def settled(rows: Sequence[NodeRow]) -> Settled:
    found = Settled({}, {}, [])
    for node, group in grouped((row.node, row) for row in rows).items():
        different: dict[NodeRow, NodeRow] = {}
        for row in sorted(group, key=lambda row: (-row.made_unix_seconds, row.origin)):
            key = row._replace(
                origin="",
                made_unix_seconds=0,
                findings=frozenset(row.findings),
                facts=frozenset(row.facts),
                unknown_facts=frozenset(row.unknown_facts),
            )
            different.setdefault(key, row)
        if len(different) < len(group):
            found.repeats[node] = len(group) - len(different)
        newest_first = list(different.values())
        found.rows[node] = newest_first[0]
        if len(newest_first) > 1:
            found.rows[node], doubt = _chosen(newest_first)
            found.doubts.append(OnNodes(doubt, [node]))
    return found


def _chosen(rows: Sequence[NodeRow]) -> tuple[NodeRow, FleetFinding]:
    """Return one of the reports that say different things, newest first: the newest, or the worst.

    Never both.
    """
    newest = rows[0]
    have = f"{len(rows)} reports that differ: {', '.join(sorted(row.origin for row in rows)[:4])}"
    dated = all(row.made_unix_seconds for row in rows)
    if dated and newest.made_unix_seconds > rows[1].made_unix_seconds:
        later = newest.made_unix_seconds - rows[1].made_unix_seconds
        text = f"the newest counts, {newest.origin}, made {later} s after the one before it"
        return newest, FleetFinding(
            "fleet.several-reports", "warn", "report", have, "one report", text
        )
    shown = min(rows, key=lambda row: STATUSES.index(row.status))
    text = f"which is the newest is not known; the worst is shown, {shown.origin}: keep one"
    return shown, FleetFinding(
        "fleet.several-reports", "unknown", "report", have, "one report", text
    )
