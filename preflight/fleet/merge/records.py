"""What a merge knows of the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.fleet.reports.records import EXIT_CODES, OF_CHECK, FleetFinding, NodeRow, Unusable


class Said(NamedTuple):
    """nodes: their places in ``Fleet.nodes``, ascending."""

    finding: FleetFinding
    nodes: Sequence[int]

    @property
    def of_fleet(self) -> bool:
        """No single node can see it: it comes of holding their reports together."""
        return self.finding.check.startswith("fleet.")


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
