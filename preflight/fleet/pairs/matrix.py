"""What the pairs of a fleet come to: one line where all is fine, and who is broken with whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import fold
from preflight.fleet.base.text import Paint, grid, grouped, painted, plural, rest_of, time_text
from preflight.fleet.pairs.flows import FlowCount, PairFlow, count_flows, cuts, rail_counts
from preflight.fleet.pairs.outcome import PairOutcome
from preflight.fleet.reports.rows import EXIT_CODES, STATUSES, worst
from preflight.render.text import filled

# A screen's worth; --json has all.
MOST_GROUPS = 20
MOST_NAMED = 8
MOST_RAILS = 16


class Matrix(NamedTuple):
    """Pairs of ``nodes`` that came to an end in ``rounds_run`` rounds of ``rounds`` asked for, of
    the ``rounds_whole`` in which each meets each. addresses: of those that took part.
    launch: what it is called, "" where none was given."""

    nodes: Sequence[str]
    outcomes: Sequence[PairOutcome]
    rounds_run: int
    rounds: int
    rounds_whole: int
    addresses: Mapping[str, str]
    stopped: int = 0
    launch: str = ""

    @property
    def status(self) -> str:
        """Return the worst status; unknown where nothing was tried."""
        return worst({one.status for one in self.outcomes})

    @property
    def exit_code(self) -> int:
        return 128 + self.stopped if self.stopped else EXIT_CODES[self.status]

    @property
    def pairs_whole(self) -> int:
        return len(self.nodes) * (len(self.nodes) - 1) // 2

    @property
    def untried(self) -> int:
        return self.pairs_whole - len(self.outcomes)

    @property
    def flows(self) -> list[PairFlow]:
        return [flow for one in self.outcomes for flow in one.flows]

    def of(self, status: str) -> int:
        return sum(one.status == status for one in self.outcomes)


class PairGroup(NamedTuple):
    """Pairs with one cause. blamed: the node that it is about, "" for the pairs themselves.

    named: which NICs in which direction, "" where it is not about those.
    """

    status: str
    cause: str
    blamed: str
    pairs: tuple[PairOutcome, ...]
    named: str = ""

    @property
    def who(self) -> str:
        """``gpu003 mlx5_1 to gpu[001-002]``; ``gpu004 with gpu[001-003]``; ``gpu001 to
        gpu[002,005], gpu002 to gpu003``; of many, or where nothing is broken, ``6 pairs of
        gpu[001-004]``."""
        if self.named:
            return self.named
        if self.blamed:
            others = {one.here if one.there == self.blamed else one.there for one in self.pairs}
            return f"{self.blamed} with {fold(others)}"
        partners = grouped((one.here, one.there) for one in self.pairs)
        if len(partners) == 1 or (self.status == "fail" and len(partners) <= MOST_NAMED):
            return ", ".join(f"{here} to {fold(there)}" for here, there in partners.items())
        names = {name for one in self.pairs for name in (one.here, one.there)}
        return f"{len(self.pairs)} pairs of {fold(names)}"


def groups(outcomes: Sequence[PairOutcome]) -> list[PairGroup]:
    """Return the groups that do not pass, the worst first, then in the order of the rounds.

    A pair may stand in several groups of broken rails.
    """
    made = list(_of_rails(outcomes))
    told = {id(one) for group in made for one in group.pairs}
    found = grouped(
        ((one.status, one.cause, one.blamed), one)
        for one in outcomes
        if one.status != "pass" and id(one) not in told
    )
    made += [PairGroup(*key, tuple(pairs)) for key, pairs in found.items()]
    return sorted(made, key=lambda group: STATUSES.index(group.status))


def _of_rails(outcomes: Sequence[PairOutcome]) -> Iterator[PairGroup]:
    """Yield each cut of the fleet's flows, with the pairs of nodes that it lies between."""
    between = {frozenset((one.here, one.there)): one for one in outcomes if one.status == "fail"}
    for cut in cuts([flow for one in outcomes for flow in one.flows]):
        keys = dict.fromkeys(frozenset((flow.source, flow.target)) for flow in cut.flows)
        pairs = tuple(between[key] for key in keys if key in between)
        yield PairGroup("fail", cut.why, cut.blamed, pairs, cut.who)


def verdict(matrix: Matrix) -> str:
    """Return ``10 of 10 pairs of 5 nodes write to each other, the slowest in 20 us, …``."""
    nodes = plural(len(matrix.nodes), "node")
    said = f"{matrix.of('pass')} of {matrix.pairs_whole} pairs of {nodes}"
    # Only where a launch moves its data over TCP does one pass without a port that was tried.
    passing = [one.tried for one in matrix.outcomes if one.status == "pass"]
    said += " reach each other" if passing and not any(passing) else " write to each other"
    slowest = max((one.slowest_seconds or 0.0 for one in matrix.outcomes), default=0.0)
    if slowest:
        said += f", the slowest in {time_text(slowest)}"
    tcp = [one.connect_seconds for one in matrix.outcomes if one.connect_seconds is not None]
    if tcp:
        said += f", TCP connects {len(tcp)} in up to {time_text(max(tcp))}"
    untried = f", {plural(matrix.untried, 'pair')} not tried" if matrix.untried else ""
    return f"{said}; {matrix.rounds_run} of {matrix.rounds_whole} rounds{untried}"


def matrix_text(matrix: Matrix, paint: Paint, width: int) -> str:
    """Return the answer without a final newline."""
    status = matrix.status
    lines = [painted(paint, status, verdict(matrix), status.upper())]
    found = groups(matrix.outcomes)
    for group in found[:MOST_GROUPS]:
        lines.append(painted(paint, group.status, group.who))
        lines.append(filled(f"    {group.cause}", width, 2))
    if len(found) > MOST_GROUPS:
        pairs = sum(len(group.pairs) for group in found[MOST_GROUPS:])
        lines.append(f"and {plural(pairs, 'pair')} more, in --json")
    if status == "fail":
        lines += _rails(rail_counts(matrix.flows))
    return "\n".join(lines)


def _rails(found: Mapping[tuple[str, str], FlowCount]) -> Iterator[str]:
    """Yield a row for each two names: equal names in any case, others where something is broken."""
    shown = [(*names, count) for names, count in found.items() if _alike(names) or count.broken]
    shown.sort(key=lambda row: not _alike(row[:2]))
    rows = [
        [
            own if own == theirs else f"{own} to {theirs}",
            tried,
            broken or "",
            "" if slowest is None else time_text(slowest),
        ]
        for own, theirs, (tried, broken, slowest) in shown[:MOST_RAILS]
    ]
    if rows:
        yield from grid(["rail, one way", "tried", "broken", "slowest"], rows)
    yield from rest_of(MOST_RAILS, shown)


def _alike(names: tuple[str, str]) -> bool:
    return names[0] == names[1]


def matrix_object(matrix: Matrix) -> Json:
    """Return the answer of ``schemas/pairs-v1.schema.json``.

    What passed is short; of the rest, all that was said.
    """
    return {
        "interrupted": bool(matrix.stopped),
        "nodes": [{"node": node, "address": matrix.addresses.get(node)} for node in matrix.nodes],
        "rounds": {
            "run": matrix.rounds_run,
            "asked": matrix.rounds,
            "whole": matrix.rounds_whole,
        },
        "counts": {
            **{status: matrix.of(status) for status in STATUSES},
            "not_tried": matrix.untried,
        },
        "groups": [
            {
                "status": one.status,
                "pairs": one.who,
                "count": len(one.pairs),
                "blamed": one.blamed or None,
                "cause": one.cause,
            }
            for one in groups(matrix.outcomes)
        ],
        "rails": [
            {"source_port": own, "target_port": theirs, **count._asdict()}
            for (own, theirs), count in rail_counts(matrix.flows).items()
        ],
        "pairs": [_pair(one) for one in matrix.outcomes],
    }


def _pair(one: PairOutcome) -> Json:
    told: Json = {**one._asdict(), "answer": None if one.status == "pass" else one.answer}
    told["directions"] = [
        _direction(one, *ends) for ends in ((one.here, one.there), (one.there, one.here))
    ]
    del told["blamed"], told["flows"]
    return told


def _direction(one: PairOutcome, source: str, target: str) -> Json:
    """Return one direction of a pair as JSON, with its flows where the pair does not pass."""
    flows = [flow for flow in one.flows if (flow.source, flow.target) == (source, target)]
    return {
        "source": source,
        "target": target,
        **count_flows(flows)._asdict(),
        "flows": []
        if one.status == "pass"
        else [
            {
                "source_port": flow.source_port,
                "target_port": flow.target_port,
                "status": flow.status,
                "small_seconds": flow.seconds,
                "text": flow.text,
                "reason": flow.why,
            }
            for flow in flows
        ],
    }
