"""A pair of nodes for a person: the verdict, a grid of round trips, and why the broken ones are."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from preflight.base.one_line import clean
from preflight.fleet.base.words import COLOURS
from preflight.fleet.pairs.cause import Fate, failure_text, fate
from preflight.fleet.pairs.records import BACK, PairAnswer, Port, PortTried, Tried
from preflight.fleet.rails.rails import Reach

Paint = Callable[[str, str], str]
# A node of eight NICs has 64 pairs; the first are shown with their reasons, --json has all.
MOST_REASONS = 8


def pair_text(answer: PairAnswer, paint: Paint, width: int) -> str:
    """Without a final newline."""
    status = answer.status
    lines = [f"{paint(status.upper(), COLOURS[status])}: {_verdict(answer)}"]
    if answer.error:
        lines.append(clean(answer.error))
    lines += [_port(port) for port in answer.ports]
    if answer.tried:
        lines += _grid(answer)
    lines += _reasons(answer, width)
    return "\n".join(lines)


def _verdict(answer: PairAnswer) -> str:
    broken = sum(not one.works for one in answer.tried)
    tried = len(answer.tried)
    tcp = "" if answer.connect_seconds is None else f", TCP in {_time(answer.connect_seconds)}"
    if answer.over == "tcp":
        return f"{answer.peer}: the launch uses no RDMA{tcp}"
    return f"{answer.peer}: {tried - broken} of {tried} pairs of ports write to each other{tcp}"


def _port(port: PortTried) -> str:
    told = _time(port.seconds) if port.seconds is not None else f"fail: {clean(port.error)}"
    what = f" ({clean(port.what)})" if port.what else ""
    whose = " of this node, from the other" if port.way == BACK else ""
    return f"TCP port {port.port}{what}{whose}: {told}"


def _grid(answer: PairAnswer) -> Iterator[str]:
    """Rows: here; columns: there. The shortest time from a small write to its acknowledgement, of
    the slower direction."""
    from tabulate import tabulate

    rows: dict[str, dict[str, str]] = {}
    for one in answer.tried:
        told = _cell(one)
        rows.setdefault(_name(one.here), {})[_name(one.there)] = told
    heads = list(dict.fromkeys(_name(one.there) for one in answer.tried))
    cells = [[name, *(row.get(head, "") for head in heads)] for name, row in rows.items()]
    table = tabulate(cells, ["here \\ there", *heads], tablefmt="plain", disable_numparse=True)
    yield from (line.rstrip() for line in table.splitlines())


def _cell(one: Tried) -> str:
    """Its time, or what is wrong: ``one way`` where packets of one direction arrive."""
    times = [flow.small_seconds for flow in (one.out, one.back) if flow is not None]
    known = [time for time in times if time is not None]
    if one.works and known:
        return _time(max(known))
    fates = {fate(one.out), fate(one.back)}
    arrives = fates & {Fate.PASSES, Fate.UNANSWERED}
    return "one way" if arrives and Fate.LOST in fates else "broken"


def _name(port: Port) -> str:
    return clean(port.device if port.port == 1 else f"{port.device}:{port.port}")


def _reasons(answer: PairAnswer, width: int) -> Iterator[str]:
    broken = [one for one in answer.tried if not one.works]
    for one in broken[:MOST_REASONS]:
        yield f"{_end(one.here)} to {_end(one.there)}"
        for text in (*_failures(one), one.cause, _facts(one)):
            if text:
                yield textwrap.fill(
                    clean(text), width, initial_indent="    ", subsequent_indent="      "
                )
    if len(broken) > MOST_REASONS:
        yield f"and {len(broken) - MOST_REASONS} more, in --json"


def _failures(one: Tried) -> Iterator[str]:
    for flow, back in ((one.out, ""), (one.back, "back: ")):
        if flow is not None and flow.failure is not None:
            yield f"{back}{failure_text(flow.failure)}"


def _end(port: Port) -> str:
    mtu = "MTU not known" if port.mtu_bytes is None else f"path MTU {port.mtu_bytes} B"
    return f"{_name(port)} {clean(port.gid)} ({mtu})"


def _facts(one: Tried) -> str:
    """What addresses and routes had to say, where it is not in the cause already."""
    if one.facts.reach in (Reach.DIRECT, Reach.ROUTED):
        return f"by addresses and routes there is a way: {one.facts.reach.value}"
    return "" if one.facts.reason in one.cause else f"by addresses and routes: {one.facts.reason}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
