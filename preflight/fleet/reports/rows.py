"""What is known of each node by its report, of what could not be used, and of nodes with several.

``choose_rows`` is pure: equal reports of a node are one; of different reports the newest counts, or
the worst if it is not known which is the newest.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from checks.framework.unknown import Unknown
from preflight.base.envelope import finding_object
from preflight.fleet.base.decode import Json, Unread
from preflight.fleet.base.node_sets import fold
from preflight.fleet.base.text import grouped
from preflight.report.machine import LaunchShare, Rail
from preflight.verdict.report import EXIT_CODES as OF_STATUS

# As finding.Status, in the order in which they are shown; error and skip are none of these.
STATUSES = ("fail", "unknown", "warn", "pass")
EXIT_CODES = {status.value: code for status, code in OF_STATUS.items()}
# Findings that stand for a node (docs/fleet.md): it was not reached, or it gave no report.
SSH, TIMEOUT, INTERRUPTED = NOT_REACHED = ("fleet.ssh", "fleet.timeout", "fleet.interrupted")
TOOL, PYTHON, REPORT = NO_REPORT = ("fleet.tool", "fleet.python", "fleet.report")
NO_VERDICT = "fleet.no-verdict"


def worst(statuses: Collection[str], none: str = "unknown") -> str:
    """Return the worst of ``statuses``; ``none`` if there is no status."""
    return next((status for status in STATUSES if status in statuses), none)


class Trouble(Enum):
    """Why a text is no report that can be merged."""

    UNREADABLE = "cannot be read"
    EMPTY = "empty"
    TRUNCATED = "truncated"
    NOT_JSON = "not JSON"
    TOO_LARGE = "too large"
    TOO_DEEP = "nested too deeply"
    FOREIGN = "not a node's report"
    OTHER_SCHEMA = "of another version"
    WRONG = "not as its schema says"
    NO_NAME = "names no node"


class Unusable(NamedTuple):
    """One unusable report, or several alike in one source."""

    source: str
    line: int  # of the first, 0 for a whole file
    trouble: Trouble
    reason: str
    name: str = ""  # the report's node by its text or file name, or ""
    times: int = 1

    @property
    def where(self) -> str:
        return text_place(self.source, self.line)


def text_place(source: str, line: int) -> str:
    """Return ``all.jsonl:7``, or the file alone, which holds nothing else."""
    return f"{source}:{line}" if line else source


class FleetFinding(NamedTuple):
    """A finding without its node.

    Attributes:
        subject: All subjects as one text.
        have, need: Amounts, or "".
        ignored: The waiver's reason, None without one.
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
        finding = self.finding
        return finding_object(finding, text=finding.text, nodes=nodes_object(self.nodes))


def nodes_object(names: Sequence[str]) -> Json:
    """Return a list of nodes as every JSON of a fleet has it."""
    return {"count": len(names), "set": fold(names)}


class Fact(NamedTuple):
    """shown: the value as a person reads it, sizes with their unit; yes and 1 are two values."""

    name: str
    value: str | int | bool
    shown: str


class LaunchService(NamedTuple):
    """A service that the launch talks to, an item of ``services`` in check's JSON."""

    kind: str
    host: str | Unknown | None
    port: int | None = None

    @property
    def address(self) -> str:
        """``host:port``, an IPv6 address in brackets; "" if it is not known."""
        if not isinstance(self.host, str):
            return ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


class NodeLaunch(NamedTuple):
    """The launch as the node's report has it."""

    share: LaunchShare
    services: tuple[LaunchService, ...] = ()

    def addresses_of(self, role: str) -> tuple[str, ...]:
        """Return known addresses, sorted.

        Args:
            role: ``master``, or ``metadata`` for every such kind.
        """
        kinds = {service.kind for service in self.services if service.kind.startswith(f"{role}-")}
        wanted = {role} if role == "master" else kinds
        addresses = {service.address for service in self.services if service.kind in wanted}
        return tuple(sorted(addresses - {""}))


class NodeRow(NamedTuple):
    """One report, or the row of a node without one."""

    name: str
    origin: str  # the file, with a line if it has several reports
    made_unix_seconds: int  # by the node's clock, or 0
    status: str
    host: str = ""
    boot: str = ""  # the boot id, or ""; two names with one boot id are one machine
    findings: Collection[FleetFinding] = ()
    facts: Collection[Fact] = ()
    unread: Collection[str] = ()  # facts that the node could not read
    rails: tuple[Rail, ...] | Unknown = Unread("not read")
    launch: NodeLaunch | None = None
    whole: bool = False  # the report describes its machine; otherwise only its findings count

    @property
    def known_rails(self) -> tuple[Rail, ...]:
        return () if isinstance(self.rails, Unknown) else self.rails

    @property
    def taken_rails(self) -> tuple[Rail, ...]:
        """Return the rails that the launch takes; all if no launch names any."""
        return tuple(rail for rail in self.known_rails if rail.used is not False)

    def share_value(self, name: str) -> Any:
        """Return a field of the launch's LaunchShare; None if unknown, or without a launch."""
        value = None if self.launch is None else getattr(self.launch.share, name)
        return None if isinstance(value, Unknown) else value


# By the node's name, in the order of the nodes' numbers.
Rows = Mapping[str, NodeRow]


def trouble(check: str, why: str) -> FleetFinding:
    """Return the finding that stands for a node, or a pair, that gave no answer."""
    return FleetFinding(check, "unknown", "node", text=why)


def absent(name: str, check: str, why: str) -> NodeRow:
    """Return the row of a node without a report."""
    return NodeRow(name, "", 0, "unknown", findings=(trouble(check, why),))


class ChosenRows(NamedTuple):
    """One row per node.

    Attributes:
        repeats: Node -> how many reports say the same as another one.
        doubts: Findings on nodes whose reports differ.
    """

    rows: dict[str, NodeRow]
    repeats: dict[str, int]
    doubts: list[OnNodes]


def choose_rows(rows: Sequence[NodeRow]) -> ChosenRows:
    """Choose one row per node: the newest, or the worst if it is not known which is newest."""
    result = ChosenRows({}, {}, [])
    for name, group in grouped((row.name, row) for row in rows).items():
        different: dict[NodeRow, NodeRow] = {}
        for row in sorted(group, key=lambda row: (-row.made_unix_seconds, row.origin)):
            key = row._replace(origin="", made_unix_seconds=0, findings=frozenset(row.findings))
            key = key._replace(facts=frozenset(row.facts), unread=frozenset(row.unread))
            different.setdefault(key, row)
        if len(different) < len(group):
            result.repeats[name] = len(group) - len(different)
        newest_first = list(different.values())
        result.rows[name] = newest_first[0]
        if len(newest_first) > 1:
            result.rows[name], doubt = _choose_report(newest_first)
            result.doubts.append(OnNodes(doubt, [name]))
    return result


def _choose_report(rows: Sequence[NodeRow]) -> tuple[NodeRow, FleetFinding]:
    """Choose one of a node's different reports; return it, and the finding that the reports differ.

    Args:
        rows: The newest first. If a time is missing, or two are the newest, the worst is chosen.
    """
    newest = rows[0]
    have = f"{len(rows)} reports that differ: {', '.join(sorted(row.origin for row in rows)[:4])}"
    finding = FleetFinding("fleet.several-reports", "warn", "report", have, "one report")
    dated = all(row.made_unix_seconds for row in rows)
    if dated and newest.made_unix_seconds > rows[1].made_unix_seconds:
        later = newest.made_unix_seconds - rows[1].made_unix_seconds
        text = f"the newest counts, {newest.origin}, made {later} s after the one before it"
        return newest, finding._replace(text=text)
    shown = min(rows, key=lambda row: STATUSES.index(row.status))
    text = f"which is the newest is not known; the worst is shown, {shown.origin}: keep one"
    return shown, finding._replace(status="unknown", text=text)
