"""What the pairs of a fleet come to: one line where all is fine, and who is broken with whom."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from preflight.fleet.fleet_records import EXIT_CODES, STATUSES
from preflight.fleet.fleet_text import COLOURS
from preflight.fleet.node_sets import fold
from preflight.fleet.pairs_outcome import Outcome
from preflight.program_version import program_version

SCHEMA = "mooncake-preflight/pairs/v1"
# A screen's worth; --json has all.
MOST_GROUPS = 20
MOST_NAMED = 8

Json = dict[str, Any]
Paint = Callable[[str, str], str]


class Matrix(NamedTuple):
    """Pairs of ``nodes`` that came to an end in ``rounds_run`` rounds of ``rounds`` asked for, of
    the ``rounds_whole`` in which each meets each. addresses: of those that took part."""

    nodes: Sequence[str]
    outcomes: Sequence[Outcome]
    rounds_run: int
    rounds: int
    rounds_whole: int
    addresses: Mapping[str, str]
    stopped: int = 0

    @property
    def status(self) -> str:
        """The worst; nothing tried is nothing known."""
        found = {one.status for one in self.outcomes}
        return next((one for one in STATUSES if one in found), "unknown")

    @property
    def exit_code(self) -> int:
        return 128 + self.stopped if self.stopped else EXIT_CODES[self.status]

    @property
    def pairs_whole(self) -> int:
        return len(self.nodes) * (len(self.nodes) - 1) // 2

    def of(self, status: str) -> int:
        return sum(one.status == status for one in self.outcomes)


class Group(NamedTuple):
    """Pairs with one cause. blamed: the node that it is about, "" for the pairs themselves."""

    status: str
    cause: str
    blamed: str
    pairs: tuple[Outcome, ...]

    @property
    def who(self) -> str:
        """``gpu004 with gpu[001-003]``; ``gpu001 to gpu[002,005], gpu002 to gpu003``; of many, or
        where nothing is broken, ``6 pairs of gpu[001-004]``."""
        if self.blamed:
            others = {one.here if one.there == self.blamed else one.there for one in self.pairs}
            return f"{self.blamed} with {fold(others)}"
        partners: dict[str, list[str]] = {}
        for one in self.pairs:
            partners.setdefault(one.here, []).append(one.there)
        if len(partners) == 1 or (self.status == "fail" and len(partners) <= MOST_NAMED):
            return ", ".join(f"{here} to {fold(there)}" for here, there in partners.items())
        names = {name for one in self.pairs for name in (one.here, one.there)}
        return f"{len(self.pairs)} pairs of {fold(names)}"


def groups(outcomes: Sequence[Outcome]) -> list[Group]:
    """Those that do not pass, the worst first, then in the order of the rounds."""
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for one in outcomes:
        if one.status != "pass":
            found.setdefault((one.status, one.cause, one.blamed), []).append(one)
    made = [Group(*key, tuple(pairs)) for key, pairs in found.items()]
    return sorted(made, key=lambda group: STATUSES.index(group.status))


def verdict(matrix: Matrix) -> str:
    """``10 of 10 pairs of 5 nodes write to each other, the slowest in 20 us, in 5 rounds``."""
    said = f"{matrix.of('pass')} of {matrix.pairs_whole} pairs of {_count(matrix.nodes, 'node')}"
    said += " write to each other"
    slowest = max((one.slowest_seconds or 0.0 for one in matrix.outcomes), default=0.0)
    if slowest:
        said += f", the slowest in {_time(slowest)}"
    tcp = [one.connect_seconds for one in matrix.outcomes if one.connect_seconds is not None]
    if tcp:
        said += f", TCP connects {len(tcp)} in up to {_time(max(tcp))}"
    rounds = f"{matrix.rounds_run} of {matrix.rounds_whole} rounds"
    untried = matrix.pairs_whole - len(matrix.outcomes)
    return f"{said}; {rounds}" + (
        f", {_count(range(untried), 'pair')} not tried" if untried else ""
    )


def matrix_text(matrix: Matrix, paint: Paint, width: int) -> str:
    """Without a final newline."""
    status = matrix.status
    lines = [f"{paint(status.upper(), COLOURS[status])}: {verdict(matrix)}"]
    found = groups(matrix.outcomes)
    for group in found[:MOST_GROUPS]:
        lines += _group(group, paint, width)
    if len(found) > MOST_GROUPS:
        pairs = sum(len(group.pairs) for group in found[MOST_GROUPS:])
        lines.append(f"and {_count(range(pairs), 'pair')} more, in --json")
    return "\n".join(lines)


def _group(group: Group, paint: Paint, width: int) -> Iterator[str]:
    yield f"{paint(group.status, COLOURS[group.status])}: {group.who}"
    yield textwrap.fill(
        group.cause,
        width,
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _count(things: Sequence[object], what: str) -> str:
    return f"{len(things)} {what}{'' if len(things) == 1 else 's'}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"


def matrix_object(matrix: Matrix) -> Json:
    """``schemas/pairs-v1.schema.json``. What passed is short; of the rest, all that was said."""
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": matrix.status,
        "exit_code": matrix.exit_code,
        "reason": verdict(matrix),
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
        "pairs": [_pair(one) for one in matrix.outcomes],
    }


def _pair(one: Outcome) -> Json:
    return {
        "here": one.here,
        "there": one.there,
        "round": one.round,
        "status": one.status,
        "cause": one.cause,
        "connect_seconds": one.connect_seconds,
        "tried": one.tried,
        "broken": one.broken,
        "slowest_seconds": one.slowest_seconds,
        "answer": None if one.status == "pass" else one.answer,
    }
