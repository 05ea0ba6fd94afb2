"""``mooncake-preflight fleet pair-connect``: each pair of ports of two nodes tried, once."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from preflight.fleet.fleet_records import NodeRail
from preflight.fleet.pairs_cause import cause
from preflight.fleet.pairs_listen import SILENCE_SECONDS, ended_after
from preflight.fleet.pairs_node import Known, connection, known, own_facts
from preflight.fleet.pairs_records import (
    HERE,
    PROTOCOL,
    THERE,
    VERBS,
    WRITE,
    Failure,
    Json,
    PairAnswer,
    PairError,
    PortTried,
    Stream,
    Tried,
    end_of,
    receive,
    send,
    written,
)
from preflight.fleet.pairs_verbs import BUFFER_BYTES, SMALL_BYTES, Connection, End
from preflight.fleet.rails import way
from preflight.output import columns, painter, say, say_json
from preflight.probes.probe_verbs import VerbsError

# The first write pays for what the devices set up; the shortest of these is the way itself.
SMALL_WRITES = 5
# Both ends may be started at once: the other one is up in a moment.
PAUSE_SECONDS = 0.25
SAME, ANY = "same", "any"
# What is said where the two nodes meet and there is nothing to write over.
NO_PORT = "has no RDMA port with a GID"


class ConnectRequest(NamedTuple):
    """pairs: of equal names alone, or any with any. ports: of TCP, to be connected to.

    wait_seconds: for the other side to listen at all.
    """

    address: str
    port: int
    token: str
    pairs: str
    ports: Sequence[int]
    seconds: float
    wait_seconds: float
    mtu_limit_bytes: int
    as_json: bool
    color: str


def run_connect(request: ConnectRequest) -> int:
    """Print the answer; returns the exit code."""
    from preflight.fleet.fleet_records import EXIT_CODES

    with ended_after(request.seconds):
        answer = pair_answer(request)
    if request.as_json:
        from preflight.fleet.pairs_json import pair_object

        say_json(pair_object(answer))
    else:
        from preflight.fleet.pairs_text import pair_text

        say(pair_text(answer, painter(request.color), columns()), color=True)
    return EXIT_CODES[answer.status]


def pair_answer(request: ConnectRequest) -> PairAnswer:
    """What was tried until the time was over, or the other side was gone."""
    deadline = time.monotonic() + request.seconds
    peer = f"{request.address}:{request.port}"
    ports = tuple(_port(request.address, port, deadline) for port in request.ports)
    tried: list[Tried] = []
    try:
        facts = own_facts()
        with _connected(request, deadline) as (link, connected):
            try:
                link.settimeout(SILENCE_SECONDS)
                with link.makefile("rwb") as stream:
                    for one in _all(stream, facts, request, deadline):
                        tried.append(one)  # noqa: PERF402 - what there is when it ends early
                    send(stream, {"done": True})
            except (PairError, OSError) as error:
                return PairAnswer(peer, connected, tuple(tried), ports, str(error))
    except (PairError, OSError, UnicodeError) as error:
        return PairAnswer(peer, None, tuple(tried), ports, f"{peer}: {error}")
    return PairAnswer(peer, connected, tuple(tried), ports, "")


@contextlib.contextmanager
def _connected(request: ConnectRequest, deadline: float) -> Iterator[tuple[socket.socket, float]]:
    """The connection and the seconds that it took; asked for again while nobody listens yet."""
    waited_for = min(deadline, time.monotonic() + request.wait_seconds)
    while True:
        started = time.monotonic()
        try:
            link = socket.create_connection((request.address, request.port), _left(deadline))
            break
        except ConnectionRefusedError:
            if time.monotonic() > waited_for:
                raise
        time.sleep(PAUSE_SECONDS)
    with link:
        yield link, time.monotonic() - started


def _left(deadline: float) -> float:
    return max(0.1, min(deadline - time.monotonic(), SILENCE_SECONDS))


def _port(address: str, port: int, deadline: float) -> PortTried:
    started = time.monotonic()
    try:
        socket.create_connection((address, port), _left(deadline)).close()
    except (OSError, UnicodeError) as error:
        return PortTried(port, None, str(error) or "no answer")
    return PortTried(port, time.monotonic() - started, "")


def _all(stream: Stream, facts: Json, request: ConnectRequest, deadline: float) -> Iterator[Tried]:
    send(stream, {"protocol": PROTOCOL, "token": request.token})
    said = receive(stream)
    if "error" in said or said.get("protocol") != PROTOCOL:
        raise PairError(f"the other side refused: {str(said.get('error', said))[:200]}")
    mine, theirs = known(facts), known(said)
    for lacking, who in ((mine, "this node"), (theirs, "the other side")):
        if not lacking.rails:
            raise PairError(f"{who} {NO_PORT}")
    for rail in mine.rails:
        for peer in theirs.rails:
            if request.pairs == SAME and rail.shape.device != peer.shape.device:
                continue
            if time.monotonic() > deadline:
                raise PairError(f"the {request.seconds:g} s are over: not all pairs were tried")
            yield _tried(stream, facts, (mine, rail), (theirs, peer), request.mtu_limit_bytes)


def _tried(
    stream: Stream,
    facts: Json,
    here: tuple[Known, NodeRail],
    there: tuple[Known, NodeRail],
    mtu_limit_bytes: int,
) -> Tried:
    ports = here[0].port(here[1]), there[0].port(there[1])
    judged = way(here[0].lane(here[1]), there[0].lane(there[1]))
    device, number = ports[0].device, ports[0].port
    seconds: list[float] = []
    try:
        made = connection(facts, device, number, mtu_limit_bytes)
        ports = ports[0]._replace(mtu_bytes=made.end.mtu_bytes), ports[1]
        try:
            failure, other = _written(stream, made, ports[1].device, ports[1].port, seconds)
        finally:
            made.close()
        if other is not None:
            ports = ports[0], ports[1]._replace(mtu_bytes=other.mtu_bytes)
    except VerbsError as error:
        failure = Failure(HERE, VERBS, error.call, error.errno)
    why = "" if failure is None else cause(failure, *ports, judged)
    small = min(seconds[:SMALL_WRITES], default=None)
    large = seconds[SMALL_WRITES] if len(seconds) > SMALL_WRITES else None
    return Tried(*ports, judged, small, large, failure, why)


def _written(
    stream: Stream, made: Connection, device: str, port: int, seconds: list[float]
) -> tuple[Failure | None, End | None]:
    """What became of the writes; their times are added to ``seconds``."""
    send(stream, {"device": device, "port": port, "end": written(made.end)})
    said = receive(stream)
    failed = said.get("failure")
    if isinstance(failed, list) and len(failed) == 2:
        number = failed[1] if isinstance(failed[1], int) else None
        return Failure(THERE, VERBS, str(failed[0])[:60], number), None
    if "error" in said:
        raise PairError(f"the other side: {str(said['error'])[:200]}")
    other = end_of(said.get("end"))
    try:
        try:
            made.connect(other)
        except VerbsError as error:
            return Failure(HERE, VERBS, error.call, error.errno), other
        for size in [SMALL_BYTES] * SMALL_WRITES + [BUFFER_BYTES]:
            done = made.write(other, size)
            if done.status != 0:
                return Failure(HERE, WRITE, "write", done.status, size), other
            seconds.append(done.seconds)
    finally:
        send(stream, {"done": True})
    return None, other
