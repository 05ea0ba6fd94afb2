"""A pair of nodes as JSON, ``schemas/pair-v1.schema.json``, and for a person: a grid of round trips
and why the broken ones are."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.base.one_line import clean
from preflight.base.program import program_version
from preflight.fleet.base.decode import Json, decoder
from preflight.fleet.base.text import (
    Paint,
    grid,
    painted,
    port_text,
    rest_of,
    time_text,
)
from preflight.fleet.pairs.cause import Fate, failure_text, fate, reasons
from preflight.fleet.pairs.records import (
    BACK,
    PROTOCOL,
    PairAnswer,
    PairPort,
    TriedPair,
    TriedPort,
    Writes,
)
from preflight.fleet.rails.lanes import Reach
from preflight.fleet.reports.rows import EXIT_CODES
from preflight.render.plain_data import plain
from preflight.render.text import filled

# A node of eight NICs has 64 pairs; the first are shown with their reasons, --json has all.
MOST_REASONS = 8


def pair_object(answer: PairAnswer) -> Json:
    """Return the answer as JSON: times in seconds, None where nothing was acknowledged."""
    return {
        "schema": PROTOCOL,
        "version": program_version(),
        "status": answer.status,
        "exit_code": EXIT_CODES[answer.status],
        **plain(answer),
        "pairs": [_pair(one) for one in answer.pairs],
    }


def _pair(one: TriedPair) -> Json:
    return {
        "here": plain(one.here),
        "there": plain(one.there),
        "facts": plain(one.facts),
        **_writes(one.out),
        "back": None if one.back is None else _writes(one.back),
        "broken": [{"way": way, "why": why} for way, why in reasons(one).items()],
        "cause": one.cause,
    }


def _writes(writes: Writes) -> Json:
    failure = writes.failure
    told = None if failure is None else {**plain(failure), "text": failure_text(failure)}
    return {**plain(writes), "failure": told, "fate": fate(writes).value}


def read_answer(document: Json) -> PairAnswer:
    """Read an answer that ``pair_object`` wrote, whoever called it. Raises WrongError."""
    rows = document.get("pairs")
    if isinstance(rows, list):  # the writes from here stand beside the rest of their pair
        rows = [{**row, "out": row} if isinstance(row, dict) else row for row in rows]
    found: PairAnswer = decoder(PairAnswer)({**document, "pairs": rows}, "")
    return found


def pair_text(answer: PairAnswer, paint: Paint, width: int) -> str:
    """Return the answer without a final newline."""
    lines = [painted(paint, answer.status, _verdict(answer), answer.status.upper())]
    if answer.error:
        lines.append(clean(answer.error))
    lines += [_port(port) for port in answer.ports]
    if answer.pairs:
        lines += _grid(answer)
    lines += _reasons(answer, width)
    return "\n".join(lines)


def _verdict(answer: PairAnswer) -> str:
    works = sum(one.works for one in answer.pairs)
    tcp = "" if answer.connect_seconds is None else f", TCP in {time_text(answer.connect_seconds)}"
    if answer.over == "tcp":
        return f"{answer.peer}: the launch uses no RDMA{tcp}"
    return f"{answer.peer}: {works} of {len(answer.pairs)} pairs of ports write to each other{tcp}"


def _port(port: TriedPort) -> str:
    told = f"fail: {clean(port.error)}" if port.seconds is None else time_text(port.seconds)
    what = f" ({clean(port.what)})" if port.what else ""
    whose = " of this node, from the other" if port.way == BACK else ""
    return f"TCP port {port.port}{what}{whose}: {told}"


def _grid(answer: PairAnswer) -> Iterator[str]:
    """Yield the lines of a table. Rows: here; columns: there.

    A cell is the shortest time from a small write to its acknowledgement, of the slower direction.
    """
    rows: dict[str, dict[str, str]] = {}
    for one in answer.pairs:
        rows.setdefault(_name(one.here), {})[_name(one.there)] = _cell(one)
    heads = list(dict.fromkeys(_name(one.there) for one in answer.pairs))
    cells = [[name, *(row.get(head, "") for head in heads)] for name, row in rows.items()]
    return grid(["here \\ there", *heads], cells)


def _cell(one: TriedPair) -> str:
    """Return a pair's time, or what is wrong: ``one way`` where packets of one direction arrive."""
    times = [writes.small_seconds for writes in (one.out, one.back) if writes is not None]
    known = [time for time in times if time is not None]
    if one.works and known:
        return time_text(max(known))
    fates = {fate(one.out), fate(one.back)}
    arrives = fates & {Fate.PASSES, Fate.UNANSWERED}
    return "one way" if arrives and Fate.LOST in fates else "broken"


def _name(port: PairPort) -> str:
    return clean(port_text(port.device, port.port))


def _reasons(answer: PairAnswer, width: int) -> Iterator[str]:
    broken = [one for one in answer.pairs if not one.works]
    for one in broken[:MOST_REASONS]:
        yield f"{_end(one.here)} to {_end(one.there)}"
        for text in (*_failures(one), one.cause, _facts(one)):
            if text:
                yield filled(f"    {clean(text)}", width, 2)
    yield from rest_of(MOST_REASONS, broken)


def _failures(one: TriedPair) -> Iterator[str]:
    for writes, back in ((one.out, ""), (one.back, "back: ")):
        if writes is not None and writes.failure is not None:
            yield f"{back}{failure_text(writes.failure)}"


def _end(port: PairPort) -> str:
    mtu = "MTU not known" if port.mtu_bytes is None else f"path MTU {port.mtu_bytes} B"
    return f"{_name(port)} {clean(port.gid)} ({mtu})"


def _facts(one: TriedPair) -> str:
    """Return what addresses and routes say, where it is not in the cause already."""
    if one.facts.reach in (Reach.DIRECT, Reach.ROUTED):
        return f"by addresses and routes there is a path: {one.facts.reach.value}"
    return "" if one.facts.reason in one.cause else f"by addresses and routes: {one.facts.reason}"
