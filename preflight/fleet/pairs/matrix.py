"""What the pairs of a fleet come to: one line where all is fine, and who is broken with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import fold
from preflight.fleet.base.text import Paint, grouped, painted, plural, time_text
from preflight.fleet.pairs.outcome import PairOutcome
from preflight.fleet.reports.rows import EXIT_CODES, STATUSES, worst
from preflight.render.text import filled

# A screen's worth; --json has all.
MOST_GROUPS = 20
MOST_NAMED = 8
LONGEST_CAUSE = 600


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

    def of(self, status: str) -> int:
        return sum(one.status == status for one in self.outcomes)


class PairGroup(NamedTuple):
    """Pairs with one cause. blamed: the node that it is about, "" for the pairs themselves."""

    status: str
    cause: str
    blamed: str
    pairs: tuple[PairOutcome, ...]

    @property
    def who(self) -> str:
        """``gpu004 with gpu[001-003]``; ``gpu001 to gpu[002,005], gpu002 to gpu003``; of many, or
        where nothing is broken, ``6 pairs of gpu[001-004]``."""
        if self.blamed:
            others = {one.here if one.there == self.blamed else one.there for one in self.pairs}
            return f"{self.blamed} with {fold(others)}"
        partners = grouped((one.here, one.there) for one in self.pairs)
        if len(partners) == 1 or (self.status == "fail" and len(partners) <= MOST_NAMED):
            return ", ".join(f"{here} to {fold(there)}" for here, there in partners.items())
        names = {name for one in self.pairs for name in (one.here, one.there)}
        return f"{len(self.pairs)} pairs of {fold(names)}"


def groups(outcomes: Sequence[PairOutcome]) -> list[PairGroup]:
    """Return the groups that do not pass, the worst first, then in the order of the rounds."""
    found = grouped(
        ((one.status, one.cause, one.blamed), one) for one in outcomes if one.status != "pass"
    )
    made = [PairGroup(*key, tuple(pairs)) for key, pairs in found.items()]
    return sorted(made, key=lambda group: STATUSES.index(group.status))


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
    left = matrix.pairs_whole - len(matrix.outcomes)
    untried = f", {plural(left, 'pair')} not tried" if left else ""
    return f"{said}; {matrix.rounds_run} of {matrix.rounds_whole} rounds{untried}"


def matrix_text(matrix: Matrix, paint: Paint, width: int) -> str:
    """Return the answer without a final newline."""
    status = matrix.status
    lines = [painted(paint, status, verdict(matrix), status.upper())]
    found = groups(matrix.outcomes)
    for group in found[:MOST_GROUPS]:
        lines.append(painted(paint, group.status, group.who))
        lines.append(filled(f"    {group.cause[:LONGEST_CAUSE]}", width, 2))
    if len(found) > MOST_GROUPS:
        pairs = sum(len(group.pairs) for group in found[MOST_GROUPS:])
        lines.append(f"and {plural(pairs, 'pair')} more, in --json")
    return "\n".join(lines)


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
            "not_tried": matrix.pairs_whole - len(matrix.outcomes),
        },
        "pairs": [
            {
                **one._asdict(),
                "blamed": one.blamed or None,
                "answer": None if one.status == "pass" else one.answer,
            }
            for one in matrix.outcomes
        ],
    }
