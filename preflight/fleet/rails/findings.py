"""What the rails of a fleet come to: who reaches whom, and which transfers would not get through.

``rail_matrix(rows)`` holds kinds of nodes against each other, ``rail_findings(matrix)`` judges.
Both cost as much as the fleet has nodes, and as it has kinds of them, squared: beyond
``MOST_COMPARED`` kinds, those of one shape are compared by two examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.fleet.rails.rails import Group, Lane, Meeting, Reach, Way, groups, lanes_of, meetings
from preflight.fleet.reports.records import FleetFinding, NodeRow

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

Rows = Sequence[tuple[int, NodeRow]]
Blamed = tuple[FleetFinding, Sequence[int]]


class RailMatrix(NamedTuple):
    """groups: every kind of node. meetings: of kinds that were compared, ``compared`` of them.

    unread: why a node has no lanes -> the nodes. mtus: network -> MTU of the interface -> nodes.
    """

    groups: tuple[Group, ...]
    compared: int
    meetings: tuple[Meeting, ...]
    unread: dict[str, list[int]]
    mtus: dict[str, dict[int, list[int]]]


def rail_matrix(rows: Rows) -> RailMatrix:
    """rows: (place, row) of nodes with a whole report."""
    nodes: list[tuple[int, tuple[Lane, ...], str]] = []
    unread: dict[str, list[int]] = {}
    mtus: dict[str, dict[int, list[int]]] = {}
    for at, row in rows:
        lanes = lanes_of(row)
        if isinstance(lanes, Unknown):
            unread.setdefault(lanes.reason, []).append(at)
            continue
        affinity = None if row.launch is None else row.launch.affinity
        nodes.append((at, lanes, affinity if isinstance(affinity, str) else ""))
        _count_mtus(at, row, lanes, mtus)
    found = groups(nodes)
    compared = found if len(found) <= MOST_COMPARED else _examples(found)
    return RailMatrix(tuple(found), len(compared), tuple(meetings(compared)), unread, mtus)


def _count_mtus(
    at: int, row: NodeRow, lanes: Sequence[Lane], mtus: dict[str, dict[int, list[int]]]
) -> None:
    sizes = {(rail.device, rail.port): rail.netdev_mtu_bytes for rail in row.known_rails}
    for lane in lanes:
        size = sizes[lane.device, lane.port]
        if isinstance(size, int) and isinstance(lane.network, str):
            held = mtus.setdefault(lane.network, {}).setdefault(size, [])
            if held[-1:] != [at]:
                held.append(at)


def _examples(found: Sequence[Group]) -> list[Group]:
    """The largest of each shape: kinds that differ in the numbers of their networks alone."""
    shapes: dict[object, list[Group]] = {}
    for group in found:
        shapes.setdefault((group.affinity, tuple(map(_shape, group.lanes))), []).append(group)
    examples = [one for alike in shapes.values() for one in alike[:EXAMPLES]]
    return sorted(examples, key=lambda group: (-len(group.nodes), group.nodes))[:MOST_COMPARED]


def _shape(lane: Lane) -> object:
    network = lane.network
    told = network.reason if isinstance(network, Unknown) else network.partition("/")[2]
    return lane.device, lane.port, lane.link_layer, lane.gid_type, told, len(lane.exits)


def talks(one: Group, other: Group) -> set[tuple[int, int]]:
    """Which lanes of two groups Mooncake pairs, from either side.

    By default any with any. With the affinity, those of one name, and any with any again for a
    name that the other side lacks (topology.cpp, ``selectDevice`` with a hint).
    """
    pairs = {(mine, theirs) for mine, theirs in _asked(one, other)}
    return pairs | {(mine, theirs) for theirs, mine in _asked(other, one)}


def _asked(one: Group, other: Group) -> Iterator[tuple[int, int]]:
    for at, mine in enumerate(one.lanes):
        alike = [to for to, lane in enumerate(other.lanes) if lane.device == mine.device]
        named = one.affinity in (SAME_NAME, LISTED) and alike
        for to in alike if named else range(len(other.lanes)):
            yield at, to


def rail_findings(matrix: RailMatrix) -> Iterator[Blamed]:
    """What is wanting, each with the nodes that it is about."""
    found: dict[FleetFinding, set[int]] = {}
    # Meetings with the largest kind come first: who is at odds with it is told so once.
    odd: dict[str, set[int]] = {}
    for meeting in matrix.meetings:
        for finding in _of_meeting(meeting):
            blamed = found.setdefault(finding, set())
            if finding.check == "fleet.rail-cross":  # so by design, of both sides
                blamed.update(meeting.one.nodes, meeting.other.nodes)
            elif meeting.one is matrix.meetings[0].one:
                blamed.update(meeting.other.nodes)
                odd.setdefault(finding.check, set()).add(id(meeting.other))
            elif not odd.get(finding.check, set()) & {id(meeting.one), id(meeting.other)}:
                blamed.update(meeting.other.nodes)
    for reason, places in matrix.unread.items():
        text = "which nodes its transfers reach is not known"
        found.setdefault(
            FleetFinding("fleet.rail-unknown", "unknown", "RDMA ports", reason, "", text), set()
        ).update(places)
    for finding, held in found.items():
        if held:
            yield finding, sorted(held)
    yield from _mtus(matrix.mtus)


def _of_meeting(meeting: Meeting) -> Iterator[FleetFinding]:
    pairs = talks(meeting.one, meeting.other)
    used = [
        (mine, theirs, way)
        for at, (mine, theirs, way) in enumerate(meeting.pairs)
        if divmod(at, len(meeting.other.lanes)) in pairs
    ]
    shut = [pair for pair in used if pair[2].reach in SHUT]
    unknown = [pair for pair in used if pair[2].reach is Reach.UNKNOWN]
    if len(shut) == len(used):
        yield _apart(meeting, shut)
        return
    same = [pair for pair in shut if pair[0].device == pair[1].device]
    cross = [pair for pair in shut if pair[0].device != pair[1].device]
    if same:
        status = _doubt("warn", same)
        text = "transfers that pick it wait for the retries to end, then take another"
        text += _unless(same) if status == "unknown" else ""
        yield _finding("fleet.rail-same", status, same, used, text)
    if cross:
        have = f"{len(cross)} of {len(used)} pairs of NICs without a way"
        yield FleetFinding("fleet.rail-cross", "warn", "rails", have, "", _cross(meeting))
    if unknown:
        text = "whether they reach each other is not known"
        yield _finding("fleet.rail-unknown", "unknown", unknown, used, text)


def _apart(meeting: Meeting, shut: Sequence[tuple[Lane, Lane, Way]]) -> FleetFinding:
    status = _doubt("fail", shut)
    text = "no transfer between these nodes gets through"
    text += _unless(shut) if status == "unknown" else ""
    where = _seen([way.reason for _, _, way in shut])
    with_whom = (
        "one another"
        if meeting.one is meeting.other
        else f"nodes with {_networks(meeting.one)} ({len(meeting.one.nodes)})"
    )
    need = f"a way to {with_whom}"
    return FleetFinding("fleet.rail-apart", status, "RDMA ports", where, need, text)


def _doubt(status: str, shut: Sequence[tuple[Lane, Lane, Way]]) -> str:
    """Without a route both may lie on one link; a wrong link layer is certain."""
    return "unknown" if any(way.reach is Reach.UNROUTED for _, _, way in shut) else status


def _unless(shut: Sequence[tuple[Lane, Lane, Way]]) -> str:
    """What may lead there all the same: a link, and tables that a report does not have."""
    unrouted = [pair for pair in shut if pair[2].reach is Reach.UNROUTED]
    doubts = dict.fromkeys(lane.doubt for pair in unrouted for lane in pair[:2] if lane.doubt)
    return UNLESS.format("".join(f", or a route does ({doubt})" for doubt in doubts))


def _cross(meeting: Meeting) -> str:
    text = "Mooncake pairs any NIC with any: where rails are links of their own, such transfers "
    text += "wait for the retries to end"
    kinds = {meeting.one.affinity, meeting.other.affinity}
    if kinds <= {SAME_NAME, LISTED}:
        return f"{text}; {AFFINITY} pairs equal names, and these have none on the other side"
    return f"{text}; {AFFINITY}=1 on all nodes pairs equal names"


def _finding(
    check: str,
    status: str,
    wrong: Sequence[tuple[Lane, Lane, Way]],
    used: Sequence[tuple[Lane, Lane, Way]],
    text: str,
) -> FleetFinding:
    named = _seen([f"{mine.device} to {theirs.device}" for mine, theirs, _ in wrong])
    why = _seen([way.reason for _, _, way in wrong])
    have = f"{len(wrong)} of {len(used)} pairs of NICs: {why}"
    return FleetFinding(check, status, named, have, "a way", text)


def _seen(words: Sequence[str]) -> str:
    each = list(dict.fromkeys(words))
    more = f", and {len(each) - MOST_NAMED} more" if len(each) > MOST_NAMED else ""
    return f"{', '.join(each[:MOST_NAMED])}{more}"


def _networks(group: Group) -> str:
    return _seen([str(lane.network) for lane in group.lanes if isinstance(lane.network, str)])


def _mtus(mtus: dict[str, dict[int, list[int]]]) -> Iterator[Blamed]:
    found: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for network, sizes in mtus.items():
        by_count = sorted(sizes.items(), key=lambda item: (-len(item[1]), item[0]))
        tie = len(by_count) > 1 and len(by_count[0][1]) == len(by_count[1][1])
        need = "one MTU" if tie else f"{by_count[0][0]} B, as most interfaces there"
        for size, places in by_count if tie else by_count[1:]:
            key = f"MTU {size} B", need, tuple(places)
            found.setdefault(key, []).append(network)
    text = "the larger frames of one side are lost on the way to the other"
    for (have, need, held), networks in found.items():
        subject = _seen(networks)
        yield FleetFinding("fleet.rail-mtu", "warn", subject, have, need, text), list(held)
