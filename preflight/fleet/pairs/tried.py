"""One pair of ports, tried: a connection of its own in each direction, and what came over it."""

from __future__ import annotations

from typing import Any

from preflight.fleet.pairs.direction import Fate, cause_of, fate
from preflight.fleet.pairs.node import Known, Used, connection
from preflight.fleet.pairs.records import (
    HERE,
    THERE,
    VERBS,
    WRITE,
    Failure,
    Flow,
    Json,
    PairError,
    Port,
    Stream,
    Tried,
    end_of,
    receive,
    send,
    written,
)
from preflight.fleet.pairs.verbs import BUFFER_BYTES, SMALL_BYTES, Connection, End
from preflight.fleet.pairs.writes import MOST_WRITES, SMALL_WRITES, writes
from preflight.fleet.rails.rails import way
from preflight.verbs.objects import VerbsError


def try_pair(
    stream: Stream, facts: Json, here: tuple[Known, Used], there: tuple[Known, Used]
) -> Tried:
    """Written over from here, then from there. Raises PairError and OSError of the talk."""
    judged = way(here[0].lane(here[1]), there[0].lane(there[1]))
    ports = [here[1].port, there[1].port]
    out = _flow(stream, facts, here[1], there[1], ports, None)
    back = None
    if fate(out) is not Fate.UNCONNECTED:
        # Where nothing arrives, one write tells whether anything does the other way.
        count = 1 if fate(out) is not Fate.PASSES and out.small_seconds is None else MOST_WRITES
        back = _flow(stream, facts, here[1], there[1], ports, count)
    made = Tried(ports[0], ports[1], judged, out, back)
    return made._replace(cause=cause_of(made))


def _flow(
    stream: Stream, facts: Json, here: Used, there: Used, ports: list[Port], back: int | None
) -> Flow:
    """One direction over a connection of its own. back: how many writes of the other side, None
    for our own. ``ports`` get the path MTUs that the two ends take."""
    shape = there.rail.shape
    asked: dict[str, Any] = {
        "device": shape.device,
        "port": shape.port,
        "gid_index": there.gid_index,
    }
    if back is not None:
        asked["back"] = back
    try:
        made = connection(facts, here.rail.shape.device, here.rail.shape.port, here.gid_index)
    except VerbsError as error:
        return Flow(failure=Failure(HERE, VERBS, error.call, error.errno))
    try:
        ports[0] = ports[0]._replace(mtu_bytes=made.end.mtu_bytes)
        send(stream, {**asked, "end": written(made.end)})
        said = _said(stream)
        if "failure" in said:
            return Flow(failure=_of_call(said["failure"]))
        other = end_of(said.get("end"))
        ports[1] = ports[1]._replace(mtu_bytes=other.mtu_bytes)
        return _ours(stream, made, other) if back is None else _theirs(stream, made, other)
    finally:
        made.close()


def _ours(stream: Stream, made: Connection, other: End) -> Flow:
    seconds: list[float] = []
    failure = None
    try:
        made.connect(other)
        failed = writes(made, other, MOST_WRITES, seconds)
        failure = None if failed is None else Failure(HERE, WRITE, "write", *failed)
    except VerbsError as error:
        failure = Failure(HERE, VERBS, error.call, error.errno)
    send(stream, {"done": True})
    arrived = _said(stream).get("arrived")
    known_to_be = arrived if arrived in (0, SMALL_BYTES, BUFFER_BYTES) else None
    return _timed(seconds, failure, known_to_be if type(arrived) is int else None)


def _theirs(stream: Stream, made: Connection, other: End) -> Flow:
    try:
        made.connect(other)
    except VerbsError as error:
        send(stream, {"ready": False})
        return Flow(failure=Failure(HERE, VERBS, error.call, error.errno))
    send(stream, {"ready": True})
    said = _said(stream)
    failed, rows = said.get("failure"), said.get("seconds")
    times = rows if isinstance(rows, list) else []
    seconds = [float(one) for one in times if type(one) in (int, float)]
    if failed is None:
        return _timed(seconds, None, made.arrived_bytes())
    if isinstance(failed, list) and len(failed) == 2 and isinstance(failed[0], str):
        return Flow(failure=_of_call(failed))
    status, size = failed if isinstance(failed, list) and len(failed) == 2 else (None, SMALL_BYTES)
    failure = Failure(
        THERE,
        WRITE,
        "write",
        status if type(status) is int else None,
        size if size in (SMALL_BYTES, BUFFER_BYTES) else SMALL_BYTES,
    )
    return _timed(seconds, failure, made.arrived_bytes())


def _timed(seconds: list[float], failure: Failure | None, arrived_bytes: int | None) -> Flow:
    small = min(seconds[:SMALL_WRITES], default=None)
    large = seconds[SMALL_WRITES] if len(seconds) > SMALL_WRITES else None
    return Flow(small, large, failure, arrived_bytes)


def _of_call(failed: Any) -> Failure:
    """What the other side says of a call that failed there."""
    named = failed if isinstance(failed, list) and len(failed) == 2 else ["no reason given", None]
    number = named[1] if type(named[1]) is int else None
    return Failure(THERE, VERBS, str(named[0])[:60], number)


def _said(stream: Stream) -> Json:
    """Raises PairError, of what the other side could not do at all too."""
    said = receive(stream)
    if "error" in said:
        raise PairError(f"the other side: {str(said['error'])[:200]}")
    return said
