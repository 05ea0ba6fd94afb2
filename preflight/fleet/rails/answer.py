"""What ``fleet rails`` answers: the kinds of nodes, how they meet, and what is wanting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from preflight.fleet.base.node_sets import in_order
from preflight.fleet.rails.findings import RailMatrix, rail_findings, rail_matrix
from preflight.fleet.rails.rails import Reach
from preflight.fleet.reports.records import EXIT_CODES, STATUSES, FleetFinding, NodeRow, Unusable


class RailAnswer(NamedTuple):
    """names: of the nodes, which findings and groups name by their places. reason: the verdict."""

    names: Sequence[str]
    matrix: RailMatrix
    findings: tuple[tuple[FleetFinding, Sequence[int]], ...]
    unusable: Sequence[Unusable]
    status: str
    reason: str

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]


def rail_answer(given: Iterable[NodeRow], unusable: Sequence[Unusable]) -> RailAnswer:
    """What the rows come to, one for each node. A check's answer has no rails: left out."""
    rows = {row.node: row for row in given if row.whole}
    names = in_order(rows)
    matrix = rail_matrix([(at, rows[name]) for at, name in enumerate(names)])
    found = tuple(sorted(rail_findings(matrix), key=_place))
    told = {finding.status for finding, _ in found}
    if unusable or not any(meeting.pairs for meeting in matrix.meetings):
        told.add("unknown")
    status = next((worst for worst in STATUSES if worst in told), "pass")
    return RailAnswer(names, matrix, found, unusable, status, _reason(status, matrix, unusable))


def _place(found: tuple[FleetFinding, Sequence[int]]) -> tuple[object, ...]:
    finding, places = found
    return STATUSES.index(finding.status), len(places), finding.check, finding.have


def _reason(status: str, matrix: RailMatrix, unusable: Sequence[Unusable]) -> str:
    nodes = sum(len(group.nodes) for group in matrix.groups)
    kinds = len(matrix.groups)
    said = f"{nodes} node{'s' * (nodes != 1)} of {kinds} kind{'s' * (kinds != 1)}"
    if not matrix.meetings:
        return f"{status.upper()}: {said}: no two nodes with RDMA ports to hold together"
    reaches = [way.reach for meeting in matrix.meetings for _, _, way in meeting.pairs]
    counts = [(reaches.count(reach), reach.value) for reach in Reach]
    ways = ", ".join(f"{count} {word}" for count, word in counts if count)
    lost = sum(one.times for one in unusable)
    more = f"; {lost} reports cannot be used (fleet merge says why)" if lost else ""
    return f"{status.upper()}: {said}, pairs of NICs between kinds: {ways}{more}"
