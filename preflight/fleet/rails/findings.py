"""What the rails of a fleet come to: who reaches whom, and which transfers would not get through.

``rail_matrix(rows)`` holds kinds of nodes against each other, ``rail_findings(matrix)`` judges.
Both cost as much as the fleet has nodes, and as it has kinds of them, squared: beyond
``MOST_COMPARED`` kinds, those of one shape are compared by two examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import by_size, grouped
from preflight.fleet.rails.lanes import (
    KindPair,
    Lane,
    LanePair,
    NodeKind,
    Reach,
    lanes_of,
    meetings,
    node_kinds,
)
from preflight.fleet.reports.rows import FleetFinding, NodeRow, OnNodes, Rows

# 820 meetings of up to 64 pairs of ports each: a second.
MOST_COMPARED = 40
EXAMPLES = 2
# Named in a finding; all of them are in fleet rails --json.
MOST_NAMED = 3
AFFINITY = "MC_ENABLE_DEST_DEVICE_AFFINITY"
SAME_NAME, LISTED = "same name", "listed"
# Without a route out of a port's interface, Linux looks for the address on its very link.
UNLESS = ", unless both lie on one link{}: fleet pairs tells"
SHUT = (Reach.NONE, Reach.UNROUTED)


class RailMatrix(NamedTuple):
    """kinds: of all nodes. meetings: of kinds that were compared, ``compared`` of them.

    unread: why a node has no lanes -> the nodes. mtus: network -> MTU of the interface -> nodes.
    """

    kinds: tuple[NodeKind, ...]
    compared: int
    meetings: tuple[KindPair, ...]
    unread: dict[str, list[str]]
    mtus: dict[str, dict[int, list[str]]]


def rail_matrix(rows: Rows) -> RailMatrix:
    """Return which rails reach which. rows: of nodes with a whole report."""
    nodes: list[tuple[str, tuple[Lane, ...], str]] = []
    unread: dict[str, list[str]] = {}
    mtus: dict[str, dict[int, list[str]]] = {}
    for name, row in rows.items():
        lanes = lanes_of(row)
        if isinstance(lanes, Unknown):
            unread.setdefault(lanes.reason, []).append(name)
            continue
        nodes.append((name, lanes, row.asked("affinity") or ""))
        for network, size in _network_mtus(row, lanes):
            mtus.setdefault(network, {}).setdefault(size, []).append(name)
    found = node_kinds(nodes)
    compared = found if len(found) <= MOST_COMPARED else _examples(found)
    return RailMatrix(tuple(found), len(compared), tuple(meetings(compared)), unread, mtus)


def _network_mtus(row: NodeRow, lanes: Sequence[Lane]) -> dict[tuple[str, int], None]:
    """Return each network that the node is in, with the MTU in bytes of an interface there."""
    sizes = {(rail.device, rail.port): rail.netdev_mtu_bytes for rail in row.known_rails}
    found: dict[tuple[str, int], None] = {}
    for lane in lanes:
        size = sizes[lane.device, lane.port]
        if isinstance(size, int) and isinstance(lane.network, str):
            found[lane.network, size] = None
    return found


def _examples(found: Sequence[NodeKind]) -> list[NodeKind]:
    """Return the largest kind of each shape: one shape differs in its networks' numbers alone."""
    shapes = grouped(((kind.affinity, tuple(map(_shape, kind.lanes))), kind) for kind in found)
    chosen = {kind.number for alike in shapes.values() for kind in alike[:EXAMPLES]}
    return [kind for kind in found if kind.number in chosen][:MOST_COMPARED]


def _shape(lane: Lane) -> object:
    network = lane.network
    told = network.reason if isinstance(network, Unknown) else network.partition("/")[2]
    return lane.device, lane.port, lane.link_layer, lane.gid_type, told, len(lane.exits)


def talks(one: NodeKind, other: NodeKind) -> set[tuple[int, int]]:
    """Return which lanes of two kinds Mooncake pairs, from either side.

    By default any with any. With the affinity, those of one name, and any with any again for a name
    that the other side lacks (topology.cpp, ``selectDevice`` with a hint).
    """
    return {*_asked(one, other), *((mine, theirs) for theirs, mine in _asked(other, one))}


def _asked(one: NodeKind, other: NodeKind) -> Iterator[tuple[int, int]]:
    for at, mine in enumerate(one.lanes):
        alike = [to for to, lane in enumerate(other.lanes) if lane.device == mine.device]
        named = one.affinity in (SAME_NAME, LISTED) and alike
        for to in alike if named else range(len(other.lanes)):
            yield at, to


def rail_findings(matrix: RailMatrix) -> Iterator[OnNodes]:
    """Yield each finding with the nodes that it is about."""
    found: dict[FleetFinding, dict[str, None]] = {}
    # Meetings with the largest kind come first: who is at odds with it is told so once.
    odd: dict[str, set[int]] = {}
    for meeting in matrix.meetings:
        for finding in _of_meeting(meeting):
            blamed = found.setdefault(finding, {})
            kinds = {meeting.one.number, meeting.other.number}
            if finding.check == "fleet.rail-cross":  # so by design, of both sides
                blamed.update(dict.fromkeys((*meeting.one.nodes, *meeting.other.nodes)))
            elif meeting.one is matrix.meetings[0].one:
                blamed.update(dict.fromkeys(meeting.other.nodes))
                odd.setdefault(finding.check, set()).add(meeting.other.number)
            elif not odd.get(finding.check, set()) & kinds:
                blamed.update(dict.fromkeys(meeting.other.nodes))
    for reason, names in matrix.unread.items():
        text = "which nodes its transfers reach is not known"
        finding = FleetFinding("fleet.rail-unknown", "unknown", "RDMA ports", reason, "", text)
        found.setdefault(finding, {}).update(dict.fromkeys(names))
    yield from (OnNodes(finding, in_order(names)) for finding, names in found.items() if names)
    yield from _mtus(matrix.mtus)


def _of_meeting(meeting: KindPair) -> Iterator[FleetFinding]:
    used = [meeting.pair(at, to) for at, to in sorted(talks(meeting.one, meeting.other))]
    shut = [pair for pair in used if pair.way.reach in SHUT]
    unknown = [pair for pair in used if pair.way.reach is Reach.UNKNOWN]
    if len(shut) == len(used):
        yield _apart(meeting, shut)
        return
    same = [pair for pair in shut if pair.mine.device == pair.theirs.device]
    if same:
        status = _doubt("warn", same)
        text = "transfers that pick it wait for the retries to end, then take another"
        text += _unless(same) if status == "unknown" else ""
        yield _finding("fleet.rail-same", status, same, used, text)
    if len(same) < len(shut):
        have = f"{len(shut) - len(same)} of {len(used)} pairs of NICs without a way"
        yield FleetFinding("fleet.rail-cross", "warn", "rails", have, "", _cross(meeting))
    if unknown:
        text = "whether they reach each other is not known"
        yield _finding("fleet.rail-unknown", "unknown", unknown, used, text)


def _apart(meeting: KindPair, shut: Sequence[LanePair]) -> FleetFinding:
    status = _doubt("fail", shut)
    text = "no transfer between these nodes gets through"
    text += _unless(shut) if status == "unknown" else ""
    where = _seen([pair.way.reason for pair in shut])
    with_whom = (
        "one another"
        if meeting.one is meeting.other
        else f"nodes with {_networks(meeting.one)} ({len(meeting.one.nodes)})"
    )
    need = f"a way to {with_whom}"
    return FleetFinding("fleet.rail-apart", status, "RDMA ports", where, need, text)


def _doubt(status: str, shut: Sequence[LanePair]) -> str:
    """Return unknown where a route is missing, else ``status``.

    Without a route both may lie on one link; a wrong link layer is certain.
    """
    return "unknown" if any(pair.way.reach is Reach.UNROUTED for pair in shut) else status


def _unless(shut: Sequence[LanePair]) -> str:
    """Return what may lead there all the same: a link, and tables that a report does not have."""
    unrouted = [pair for pair in shut if pair.way.reach is Reach.UNROUTED]
    lanes = [lane for pair in unrouted for lane in (pair.mine, pair.theirs)]
    doubts = dict.fromkeys(lane.doubt for lane in lanes if lane.doubt)
    return UNLESS.format("".join(f", or a route does ({doubt})" for doubt in doubts))


def _cross(meeting: KindPair) -> str:
    text = "Mooncake pairs any NIC with any: where rails are links of their own, such transfers "
    text += "wait for the retries to end"
    kinds = {meeting.one.affinity, meeting.other.affinity}
    if kinds <= {SAME_NAME, LISTED}:
        return f"{text}; {AFFINITY} pairs equal names, and these have none on the other side"
    return f"{text}; {AFFINITY}=1 on all nodes pairs equal names"


def _finding(
    check: str,
    status: str,
    wrong: Sequence[LanePair],
    used: Sequence[LanePair],
    text: str,
) -> FleetFinding:
    named = _seen([f"{pair.mine.device} to {pair.theirs.device}" for pair in wrong])
    why = _seen([pair.way.reason for pair in wrong])
    have = f"{len(wrong)} of {len(used)} pairs of NICs: {why}"
    return FleetFinding(check, status, named, have, "a way", text)


def _seen(words: Sequence[str]) -> str:
    each = list(dict.fromkeys(words))
    more = f", and {len(each) - MOST_NAMED} more" if len(each) > MOST_NAMED else ""
    return f"{', '.join(each[:MOST_NAMED])}{more}"


def _networks(kind: NodeKind) -> str:
    return _seen([str(lane.network) for lane in kind.lanes if isinstance(lane.network, str)])


def _mtus(mtus: dict[str, dict[int, list[str]]]) -> Iterator[OnNodes]:
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for network, sizes in mtus.items():
        usual, others = by_size(sizes)
        need = "one MTU" if usual is None else f"{usual} B, as most interfaces there"
        for size in others:
            found.setdefault((f"MTU {size} B", need, tuple(sizes[size])), []).append(network)
    text = "the larger frames of one side are lost on the way to the other"
    for (have, need, names), networks in found.items():
        finding = FleetFinding("fleet.rail-mtu", "warn", _seen(networks), have, need, text)
        yield OnNodes(finding, names)
