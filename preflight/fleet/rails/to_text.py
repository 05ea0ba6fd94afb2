"""Which NIC reaches which, for a person: kinds of nodes, a line or a grid of each two, findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.base.one_line import clean
from preflight.check.report import fold as fold_words
from preflight.fleet.base.words import COLOURS, Paint, cut, have_and_need, shortened_names
from preflight.fleet.rails.answer import RailAnswer
from preflight.fleet.rails.rails import Lane, Meeting, Reach

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


def rails_text(answer: RailAnswer, paint: Paint, width: int, verbosity: int) -> str:
    """Without a final newline. verbosity: below 0 the verdict alone, above 0 every grid."""
    word, colon, rest = answer.reason.partition(":")
    lines = [paint(word, COLOURS[answer.status]) + colon + rest]
    if verbosity >= 0:
        lines += _findings(answer, paint, width)
        lines += _kinds(answer, width)
        lines += _meetings(answer, verbosity)
    return "\n".join(lines)


def _findings(answer: RailAnswer, paint: Paint, width: int) -> Iterator[str]:
    import textwrap

    for finding, places in answer.findings:
        where = shortened_names([answer.names[at] for at in places])
        head = f"{finding.check} on {where}: {clean(finding.subject)}"
        yield f"{paint(finding.status, COLOURS[finding.status])}: {head}"
        for text in (have_and_need(finding.have, finding.need, 200), cut(finding.text, 300)):
            if text:
                yield textwrap.fill(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _kinds(answer: RailAnswer, width: int) -> Iterator[str]:
    groups = answer.matrix.groups
    for at, group in enumerate(groups[:MOST_KINDS]):
        nodes = shortened_names([answer.names[node] for node in group.nodes])
        yield f"{_letter(at)}  {nodes}"
        for line in _lanes(group.lanes):
            yield cut(f"     {line}", width)
    if len(groups) > MOST_KINDS:
        yield f"and {len(groups) - MOST_KINDS} more kinds of nodes, in --json"


def _lanes(lanes: Sequence[Lane]) -> Iterator[str]:
    """``mlx5_0-1 RoCE v2: 10.0.0.0/24, 10.0.1.0/24``; like ports on one line."""
    alike: dict[str, tuple[list[str], list[str]]] = {}
    for lane in lanes:
        kind = lane.gid_type or lane.link_layer or "unknown link"
        devices, networks = alike.setdefault(kind, ([], []))
        devices.append(lane.device if lane.port == 1 else f"{lane.device}:{lane.port}")
        told = lane.network if isinstance(lane.network, str) else lane.network.reason
        networks.append(told)
    for kind, (devices, networks) in alike.items():
        yield f"{clean(fold_words(devices))} {kind}: {clean(', '.join(dict.fromkeys(networks)))}"
    if not lanes:
        yield "no RDMA port in use"


def _meetings(answer: RailAnswer, verbosity: int) -> Iterator[str]:
    matrix = answer.matrix
    letters = {(id(group)): _letter(at) for at, group in enumerate(matrix.groups)}
    grids = 0
    for meeting in matrix.meetings[:MOST_MEETINGS]:
        title = f"{letters[id(meeting.one)]} to {letters[id(meeting.other)]}"
        short = None if verbosity > 0 else _by_name(meeting)
        if short is not None:
            yield f"{title}: {short}"
            continue
        yield f"{title}:"
        yield from _grid(meeting)
        grids += 1
    if len(matrix.meetings) > MOST_MEETINGS:
        yield f"and {len(matrix.meetings) - MOST_MEETINGS} more, in --json"
    if matrix.compared < len(matrix.groups):
        yield f"compared: {matrix.compared} of {len(matrix.groups)} kinds, those that differ most"
    if grids:
        yield LEGEND


def _by_name(meeting: Meeting) -> str | None:
    """In words, where equal names are one way and other names another; None otherwise."""
    same = {way.reach for one, other, way in meeting.pairs if one.device == other.device}
    others = {way.reach for one, other, way in meeting.pairs if one.device != other.device}
    if len(same) > 1 or len(others) > 1 or not same:
        return None
    text = f"NICs of one name {same.pop().value}"
    return f"{text}, of different names {others.pop().value}" if others else text


def _grid(meeting: Meeting) -> Iterator[str]:
    from tabulate import tabulate

    rows = [
        [clean(lane.device), *(SIGNS[way.reach] for way in ways)]
        for lane, ways in zip(meeting.one.lanes, meeting.ways, strict=True)
    ]
    heads = ["", *(clean(lane.device) for lane in meeting.other.lanes)]
    table = tabulate(rows, heads, tablefmt="plain", disable_numparse=True)
    yield from (f"     {line.rstrip()}" for line in table.splitlines())


def _letter(at: int) -> str:
    """A, B, … Z, AA, AB, …"""
    return (_letter(at // 26 - 1) if at >= 26 else "") + chr(ord("A") + at % 26)
