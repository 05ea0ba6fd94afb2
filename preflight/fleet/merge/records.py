"""What a merge knows: of each node, of the reports that could not be used, and of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

# As finding.Status, in the order in which they are shown; error and skip are none of these.
STATUSES = ("fail", "unknown", "warn", "pass")
EXIT_CODES = {"pass": 0, "warn": 1, "fail": 2, "unknown": 3}

Value = str | int | bool


class Unread(NamedTuple):
    """A fact that the node could not read, and why. Equal reasons are equal."""

    reason: str


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


class Said(NamedTuple):
    """nodes: their places in ``Fleet.nodes``, ascending."""

    finding: FleetFinding
    nodes: Sequence[int]

    @property
    def of_fleet(self) -> bool:
        """No single node can see it: it comes of holding their reports together."""
        return self.finding.check.startswith("fleet.")


class RailShape(NamedTuple):
    """What is alike on like nodes of one port of an RDMA device; see ``node_rails.Rail``."""

    device: str
    port: int
    used: bool | Unread | None
    state: str | Unread | None
    rate: str | Unread | None
    link_layer: str | Unread | None
    mtu_bytes: int | Unread | None
    netdev: str | Unread | None
    gid_type: str | Unread | None = None
    netdev_mtu_bytes: int | Unread | None = None


class NodeRail(NamedTuple):
    """addresses: with their prefix, ``10.0.0.1/24``; gid: as text, "" without one. exits: see
    ``node_rails.Rail``; None where the report does not say."""

    shape: RailShape
    gid: str
    addresses: tuple[str, ...]
    exits: tuple[str, ...] | Unread | None = None


class Route(NamedTuple):
    """destination: ``10.0.0.0/24``. gateway: "" for what is on the link itself."""

    destination: str
    gateway: str
    interface: str


class NodeLaunch(NamedTuple):
    """See ``node_launch``. hosts: over how many one server runs. services: (kind, address, own).
    ports: (what, port).

    mtu_limit_bytes: MC_MTU, None where the report does not say; neither does affinity "".
    """

    source: str
    hosts: int
    protocol: str | Unread
    masters: tuple[str, ...]
    services: tuple[tuple[str, str, bool], ...]
    segment_bytes: int | Unread
    stores: int | Unread
    ports: tuple[tuple[str, int], ...]
    mtu_limit_bytes: int | Unread | None
    affinity: str = ""


# Why a check's answer has no rails.
OF_CHECK = Unread("a check's answer has no addresses")


class NodeRow(NamedTuple):
    """One report. findings, facts, unknown_facts: numbers in the tables of ``Reading``.

    origin: file, and line where there are several in one. whole: it is a node's report; a check's
    answer (``check --json``) has neither facts, rails nor launch. boot: "" where it is not known.
    """

    node: str
    origin: str
    made_unix_seconds: int
    status: str
    reason: str
    host: str
    boot: str
    findings: Sequence[int]
    facts: Sequence[int]
    unknown_facts: Sequence[int]
    rails: tuple[NodeRail, ...] | Unread
    routes: tuple[Route, ...] | Unread
    launch: NodeLaunch | None
    whole: bool


class FleetNode(NamedTuple):
    """status: the worse of the node's own verdict and of what the fleet finds about it.

    row: None for a node that gave no report that could be used.
    """

    name: str
    status: str
    row: NodeRow | None


class Variant(NamedTuple):
    """One value and the nodes that have it."""

    value: str
    nodes: Sequence[int]


class Drift(NamedTuple):
    """One fact, or several that differ alike, that is not the same everywhere.

    most: None where no value is on more nodes than each other: then ``others`` has all of them.
    unread: nodes that could not read it.
    """

    fact: str
    facts: tuple[str, ...]
    most: Variant | None
    others: tuple[Variant, ...]
    unread: Sequence[int]


class Pool(NamedTuple):
    """Σ segments, of the nodes where they are known. shares: bytes -> nodes, the largest first."""

    total_bytes: int
    shares: tuple[tuple[int, Sequence[int]], ...]
    unread: Sequence[int]
    stores: int

    @property
    def skew(self) -> float | None:
        """The largest share by the smallest; None with fewer than two, or with an empty one."""
        sizes = [size for size, _ in self.shares]
        return sizes[0] / sizes[-1] if len(sizes) > 1 and sizes[-1] > 0 else None


class Fleet(NamedTuple):
    """nodes: in the order of their numbers, those that are expected and silent included.

    reports: how many texts were reports. said: what is wanting and not waived, in the order in
    which it is shown. passed, waived: the rest. repeats: reports that say what another one said.
    """

    verdict: str
    nodes: tuple[FleetNode, ...]
    expected: int | None
    reports: int
    said: tuple[Said, ...]
    waived: tuple[Said, ...]
    passed: tuple[Said, ...]
    drift: tuple[Drift, ...]
    devices: tuple[Variant, ...]
    masters: tuple[Variant, ...]
    pool: Pool | None
    unusable: tuple[Unusable, ...]
    repeats: Mapping[str, int]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def of(self, *statuses: str) -> list[int]:
        """Places of the nodes with one of these statuses."""
        return [at for at, node in enumerate(self.nodes) if node.status in statuses]

    @property
    def without_facts(self) -> list[int]:
        """Nodes with an answer of ``check --json``: there is nothing to hold against others. One
        that gave no report at all is none of these: that is a finding."""
        return [
            at
            for at, node in enumerate(self.nodes)
            if node.row is not None and node.row.rails == OF_CHECK
        ]


# Unknown never passes: a node that did not answer is not one to start on.
PASSING = ("pass", "warn")
FAILING = ("fail", "unknown")
