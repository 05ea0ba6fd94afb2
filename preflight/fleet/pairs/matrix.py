"""What the pairs of a fleet come to: one line where all is fine, and who is broken with whom."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from preflight.base.program_version import program_version
from preflight.fleet.base.node_sets import fold
from preflight.fleet.base.words import COLOURS
from preflight.fleet.pairs.flows import Rail, cuts, rails
from preflight.fleet.pairs.outcome import Outcome
from preflight.fleet.reports.records import EXIT_CODES, STATUSES

SCHEMA = "mooncake-preflight/pairs/v1"
# A screen's worth; --json has all.
MOST_GROUPS = 20
MOST_NAMED = 8
MOST_RAILS = 16

Json = dict[str, Any]
Paint = Callable[[str, str], str]


class Matrix(NamedTuple):
    """Pairs of ``nodes`` that came to an end in ``rounds_run`` rounds of ``rounds`` asked for, of
    the ``rounds_whole`` in which each meets each. addresses: of those that took part.
    launch: what it is called, "" where none was given."""

    nodes: Sequence[str]
    outcomes: Sequence[Outcome]
    rounds_run: int
    rounds: int
    rounds_whole: int
    addresses: Mapping[str, str]
    stopped: int = 0
    launch: str = ""

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
    """Pairs with one cause. blamed: the node that it is about, "" for the pairs themselves.

    named: which NICs in which direction, "" where it is not about those.
    """

    status: str
    cause: str
    blamed: str
    pairs: tuple[Outcome, ...]
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
        partners: dict[str, list[str]] = {}
        for one in self.pairs:
            partners.setdefault(one.here, []).append(one.there)
        if len(partners) == 1 or (self.status == "fail" and len(partners) <= MOST_NAMED):
            return ", ".join(f"{here} to {fold(there)}" for here, there in partners.items())
        names = {name for one in self.pairs for name in (one.here, one.there)}
        return f"{len(self.pairs)} pairs of {fold(names)}"


def groups(outcomes: Sequence[Outcome]) -> list[Group]:
    """Those that do not pass, the worst first, then in the order of the rounds. A pair may stand
    in several of broken rails."""
    made = list(_of_rails(outcomes))
    told = {id(one) for group in made for one in group.pairs}
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for one in outcomes:
        if one.status != "pass" and id(one) not in told:
            found.setdefault((one.status, one.cause, one.blamed), []).append(one)
    made += [Group(*key, tuple(pairs)) for key, pairs in found.items()]
    return sorted(made, key=lambda group: STATUSES.index(group.status))


def _of_rails(outcomes: Sequence[Outcome]) -> Iterator[Group]:
    """Each cut of the fleet's flows, with the pairs of nodes that it lies between."""
    between = {frozenset((one.here, one.there)): one for one in outcomes if one.status == "fail"}
    for cut in cuts([flow for one in outcomes for flow in one.flows]):
        keys = dict.fromkeys(frozenset((flow.source, flow.target)) for flow in cut.flows)
        pairs = tuple(between[key] for key in keys if key in between)
        yield Group("fail", cut.why, cut.blamed, pairs, cut.who)


def verdict(matrix: Matrix) -> str:
    """``10 of 10 pairs of 5 nodes write to each other, the slowest in 20 us, in 5 rounds``."""
    said = f"{matrix.of('pass')} of {matrix.pairs_whole} pairs of {_count(matrix.nodes, 'node')}"
    # Only where a launch moves its data over TCP does one pass without a port that was tried.
    passing = [one.tried for one in matrix.outcomes if one.status == "pass"]
    said += " reach each other" if passing and not any(passing) else " write to each other"
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
    if status == "fail":
        lines += _rails(rails(flow for one in matrix.outcomes for flow in one.flows))
    return "\n".join(lines)


def _rails(found: Sequence[Rail]) -> Iterator[str]:
    """A row for each two names: equal names in any case, others where something is broken."""
    from tabulate import tabulate

    shown = [one for one in found if one.source_port == one.target_port or one.broken]
    shown.sort(key=lambda one: one.source_port != one.target_port)
    rows = [
        [
            one.source_port
            if one.source_port == one.target_port
            else f"{one.source_port} to {one.target_port}",
            one.tried,
            one.broken or "",
            "" if one.slowest_seconds is None else _time(one.slowest_seconds),
        ]
        for one in shown[:MOST_RAILS]
    ]
    if rows:
        heads = ["rail, one way", "tried", "broken", "slowest"]
        table = tabulate(rows, heads, tablefmt="plain", disable_numparse=True)
        yield from (line.rstrip() for line in table.splitlines())
    if len(shown) > MOST_RAILS:
        yield f"and {len(shown) - MOST_RAILS} more, in --json"


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
        "rails": [
            rail._asdict() for rail in rails(flow for one in matrix.outcomes for flow in one.flows)
        ],
        "launch": matrix.launch or None,
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
        "directions": [
            _direction(one, *ends) for ends in ((one.here, one.there), (one.there, one.here))
        ],
        "answer": None if one.status == "pass" else one.answer,
    }


def _direction(one: Outcome, source: str, target: str) -> Json:
    """flows: each by itself, where the pair does not pass."""
    flows = [flow for flow in one.flows if (flow.source, flow.target) == (source, target)]
    return {
        "source": source,
        "target": target,
        "tried": sum(flow.status in ("pass", "fail") for flow in flows),
        "broken": sum(flow.status == "fail" for flow in flows),
        "slowest_seconds": max((f.seconds for f in flows if f.seconds is not None), default=None),
        "flows": []
        if one.status == "pass"
        else [
            {
                "source_port": flow.source_port,
                "target_port": flow.target_port,
                "status": flow.status,
                "small_seconds": flow.seconds,
                "text": flow.text,
                "why": flow.why,
            }
            for flow in flows
        ],
    }
