"""What ``fleet rails`` answers, as JSON and for a person: kinds of nodes, and how they meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from preflight.base.one_line import clean
from preflight.check.report import fold as fold_words
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import (
    Paint,
    cut,
    grid,
    grouped,
    have_and_need,
    nodes_text,
    painted,
    plural,
    port_text,
    rest_of,
)
from preflight.fleet.rails.findings import RailMatrix, rail_findings, rail_matrix
from preflight.fleet.rails.lanes import KindPair, Lane, Reach
from preflight.fleet.reports.rows import (
    EXIT_CODES,
    STATUSES,
    NodeRow,
    OnNodes,
    Unusable,
    nodes_object,
    worst,
)
from preflight.render.plain_data import plain
from preflight.render.text import filled

SIGNS = {
    Reach.DIRECT: "=",
    Reach.ROUTED: "r",
    Reach.UNROUTED: "-",
    Reach.NONE: "x",
    Reach.UNKNOWN: "?",
}
LEGEND = "= one network, r routed, - no route, x none, ? not known"
# The whole is in --json.
MOST_KINDS = 12
MOST_MEETINGS = 12


class RailAnswer(NamedTuple):
    """said: the verdict in words, behind its status."""

    matrix: RailMatrix
    findings: tuple[OnNodes, ...]
    unusable: Sequence[Unusable]
    status: str
    said: str

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]


def rail_answer(given: Iterable[NodeRow], unusable: Sequence[Unusable]) -> RailAnswer:
    """Return the answer that follows from the rows, one for each node.

    A check's answer has no rails: left out.
    """
    rows = {row.node: row for row in given if row.whole}
    matrix = rail_matrix({name: rows[name] for name in in_order(rows)})
    found = tuple(sorted(rail_findings(matrix), key=_place))
    told = {one.finding.status for one in found}
    if unusable or not any(meeting.pairs for meeting in matrix.meetings):
        told.add("unknown")
    status = worst(told, "pass")
    return RailAnswer(matrix, found, unusable, status, _said(matrix, unusable))


def _place(one: OnNodes) -> tuple[object, ...]:
    finding = one.finding
    return STATUSES.index(finding.status), len(one.nodes), finding.check, finding.have


def _said(matrix: RailMatrix, unusable: Sequence[Unusable]) -> str:
    nodes = plural(sum(len(kind.nodes) for kind in matrix.kinds), "node")
    said = f"{nodes} of {plural(len(matrix.kinds), 'kind')}"
    if not matrix.meetings:
        return f"{said}: no two nodes with RDMA ports to compare"
    reaches = [pair.way.reach for meeting in matrix.meetings for pair in meeting.pairs]
    counts = [(reaches.count(reach), reach.value) for reach in Reach]
    ways = ", ".join(f"{count} {word}" for count, word in counts if count)
    lost = sum(one.times for one in unusable)
    more = f"; {lost} reports cannot be used (fleet merge says why)" if lost else ""
    return f"{said}, pairs of NICs between kinds: {ways}{more}"


def rails_object(answer: RailAnswer) -> Json:
    """Return the answer of ``schemas/rails-v1.schema.json``.

    A meeting's ``ways`` are [NIC of one][NIC of the other].
    """
    matrix = answer.matrix
    return {
        "not_usable": sum(one.times for one in answer.unusable),
        "findings": [one.as_object() for one in answer.findings],
        "kinds": [
            {
                "nodes": nodes_object(kind.nodes),
                "affinity": kind.affinity or None,
                "lanes": [_lane(lane) for lane in kind.lanes],
            }
            for kind in matrix.kinds
        ],
        "kinds_compared": matrix.compared,
        "meetings": [
            {"kinds": [one.one.number, one.other.number], "ways": plain(one.ways)}
            for one in matrix.meetings
        ],
    }


def _lane(lane: Lane) -> Json:
    found: Json = plain(lane)
    return {
        **{name: value for name, value in found.items() if name not in ("exits", "doubt")},
        "routes": found["exits"],
        "doubt": lane.doubt or None,
    }


def rails_text(answer: RailAnswer, paint: Paint, width: int, verbosity: int) -> str:
    """Return the answer without a final newline.

    verbosity: below 0 the verdict alone, above 0 every grid.
    """
    lines = [painted(paint, answer.status, answer.said, answer.status.upper())]
    if verbosity >= 0:
        lines += _findings(answer, paint, width)
        lines += _kinds(answer, width)
        lines += _meetings(answer, verbosity)
    return "\n".join(lines)


def _findings(answer: RailAnswer, paint: Paint, width: int) -> Iterator[str]:
    for finding, names in answer.findings:
        head = f"{finding.check} on {nodes_text(names)}: {clean(finding.subject)}"
        yield painted(paint, finding.status, head)
        for text in (have_and_need(finding.have, finding.need, 200), cut(finding.text, 300)):
            if text:
                yield filled(f"      {text}", width, 0)


def _kinds(answer: RailAnswer, width: int) -> Iterator[str]:
    kinds = answer.matrix.kinds
    for kind in kinds[:MOST_KINDS]:
        yield f"{_letter(kind.number)}  {nodes_text(kind.nodes)}"
        for line in _lanes(kind.lanes):
            yield cut(f"     {line}", width)
    yield from rest_of(MOST_KINDS, kinds, " kinds of nodes")


def _lanes(lanes: Sequence[Lane]) -> Iterator[str]:
    """Yield ``mlx5_0-1 RoCE v2: 10.0.0.0/24, 10.0.1.0/24``; like ports on one line."""
    alike = grouped((lane.gid_type or lane.link_layer or "unknown link", lane) for lane in lanes)
    for kind, held in alike.items():
        devices = fold_words([port_text(lane.device, lane.port) for lane in held])
        networks = [lane.network for lane in held]
        told = [one if isinstance(one, str) else one.reason for one in networks]
        yield f"{clean(devices)} {kind}: {clean(', '.join(dict.fromkeys(told)))}"
    if not lanes:
        yield "no RDMA port in use"


def _meetings(answer: RailAnswer, verbosity: int) -> Iterator[str]:
    matrix = answer.matrix
    grids = 0
    for meeting in matrix.meetings[:MOST_MEETINGS]:
        title = f"{_letter(meeting.one.number)} to {_letter(meeting.other.number)}"
        short = None if verbosity > 0 else _by_name(meeting)
        if short is not None:
            yield f"{title}: {short}"
            continue
        yield f"{title}:"
        yield from _grid(meeting)
        grids += 1
    yield from rest_of(MOST_MEETINGS, matrix.meetings)
    if matrix.compared < len(matrix.kinds):
        yield f"compared: {matrix.compared} of {len(matrix.kinds)} kinds, those that differ most"
    if grids:
        yield LEGEND


def _by_name(meeting: KindPair) -> str | None:
    """Return the meeting in words, where equal names are one way and others another; else None."""
    reaches = grouped(
        (pair.mine.device == pair.theirs.device, pair.way.reach) for pair in meeting.pairs
    )
    same, others = set(reaches.get(True, ())), set(reaches.get(False, ()))
    if len(same) > 1 or len(others) > 1 or not same:
        return None
    text = f"NICs of one name {same.pop().value}"
    return f"{text}, of different names {others.pop().value}" if others else text


def _grid(meeting: KindPair) -> Iterator[str]:
    rows = [
        [clean(lane.device), *(SIGNS[way.reach] for way in ways)]
        for lane, ways in zip(meeting.one.lanes, meeting.ways, strict=True)
    ]
    heads = ["", *(clean(lane.device) for lane in meeting.other.lanes)]
    return (f"     {line}" for line in grid(heads, rows))


def _letter(at: int) -> str:
    """Return the letter of a column: A, B, … Z, AA, AB, …"""
    return (_letter(at // 26 - 1) if at >= 26 else "") + chr(ord("A") + at % 26)
