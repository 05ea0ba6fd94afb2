"""``mooncake-preflight fleet pair-connect``: each pair of ports of two nodes, tried both ways."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from preflight.base.output import columns, painter, say, say_json
from preflight.fleet.pairs.cause import Fate, cause_of, fate
from preflight.fleet.pairs.listen import SILENCE_SECONDS, ended_after
from preflight.fleet.pairs.node import (
    Held,
    Known,
    Used,
    connection,
    holding,
    known,
    own_facts,
    pairs_of,
    part_of,
)
from preflight.fleet.pairs.records import (
    BACK,
    HERE,
    MOST_WRITES,
    SMALL_WRITES,
    TALK,
    THERE,
    VERBS,
    WRITE,
    Failure,
    Flow,
    Json,
    PairAnswer,
    PairError,
    Port,
    PortTried,
    Stream,
    Tried,
    end_of,
    port_tried,
    receive,
    send,
    writes,
    written,
)
from preflight.fleet.pairs.verbs import BUFFER_BYTES, SMALL_BYTES, Connection, End
from preflight.fleet.rails.rails import way
from preflight.inputs.launch_words import LaunchWords
from preflight.verbs.objects import VerbsError

# Both ends may be started at once: the other one is up in a moment.
PAUSE_SECONDS = 0.25
SAME, ANY = "same", "any"
# What is said where the two nodes meet and there is nothing to write over.
NO_PORT = "has no RDMA port with a GID"
# What the end that connects holds open, to be connected to in turn.
OWN_PORT = "the port of this test"


def run_connect(talk: Talk, as_json: bool, color: str) -> int:
    """Print the answer; returns the exit code."""
    from preflight.fleet.reports.records import EXIT_CODES

    with ended_after(talk.seconds):
        answer = pair_answer(talk)
    if as_json:
        from preflight.fleet.pairs.to_json import pair_object

        say_json(pair_object(answer))
    else:
        from preflight.fleet.pairs.to_text import pair_text

        say(pair_text(answer, painter(color), columns()))
    return EXIT_CODES[answer.status]


def pair_answer(talk: Talk) -> PairAnswer:
    """What was tried until the time was over, or the other side was gone. Raises UsageError."""
    try:
        talk.run()
    except (PairError, OSError, UnicodeError) as error:
        peer = "" if talk.connected is not None else f"{talk.peer}: "
        talk.error = f"{peer}{error or 'no answer'}"
    return PairAnswer(
        talk.peer, talk.connected, tuple(talk.tried), tuple(talk.ports), talk.error, talk.over
    )


@dataclass
class Talk:
    """One conversation; what it has come to is there whenever it ends.

    pairs: of equal names alone, any with any, or "" for as the launch has it. tcp_ports: to be
    connected to. own_address: at which the other side connects in turn; "" for that of the
    connection. wait_seconds: for the other side to listen at all. mtu_limit_bytes: None for the
    launch's own.
    """

    launch: LaunchWords
    address: str
    port: int
    token: str
    pairs: str
    tcp_ports: Sequence[int]
    seconds: float
    wait_seconds: float
    mtu_limit_bytes: int | None
    own_address: str
    connected: float | None = None
    tried: list[Tried] = field(default_factory=list)
    ports: list[PortTried] = field(default_factory=list)
    error: str = ""
    over: str = "rdma"

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds
        self.peer = f"{self.address}:{self.port}"

    def run(self) -> None:
        """Raises PairError, OSError and UnicodeError of the connection, and UsageError."""
        part = part_of(self.launch)
        facts = own_facts(part, self.mtu_limit_bytes)
        spans = () if part is None else part.ports
        with _connected(self, self._deadline) as (link, seconds):
            self.connected = seconds
            own = self.own_address or link.getsockname()[0]
            spans = ((OWN_PORT, self.port, self.port), *spans)
            link.settimeout(SILENCE_SECONDS)
            with holding(own, spans) as held, link.makefile("rwb") as stream:
                self._talk(stream, facts, held, own)

    def _talk(self, stream: Stream, facts: Json, held: tuple[Held, ...], own: str) -> None:
        send(stream, {"protocol": TALK, "token": self.token, "address": own})
        said = receive(stream)
        if "error" in said or said.get("protocol") != TALK:
            raise PairError(f"the other side refused: {str(said.get('error', said))[:200]}")
        self._try_ports(stream, held, said)
        self._try_rails(stream, facts, said)
        send(stream, {"done": True})

    def _try_ports(self, stream: Stream, held: tuple[Held, ...], said: Json) -> None:
        """Those asked for, of either side; those that a launch has, where they were free."""
        for port in self.tcp_ports:
            self._try_port(port)
            self._ask_port(stream, port, "")
        for what, port in _held(said):
            self._try_port(port, what)
        for one in held:
            self._ask_port(stream, one.port, one.what)

    def _try_port(self, port: int, what: str = "") -> None:
        self.ports.append(port_tried(self.address, port, self._deadline, what))

    def _ask_port(self, stream: Stream, port: int, what: str) -> None:
        send(stream, {"tcp": port})
        said = receive(stream)
        seconds = said.get("seconds")
        took = float(seconds) if isinstance(seconds, int | float) else None
        error = "" if took is not None else str(said.get("error") or "no answer")[:200]
        self.ports.append(PortTried(port, took, error, what, BACK))

    def _try_rails(self, stream: Stream, facts: Json, said: Json) -> None:
        mine, theirs = known(facts), known(said)
        if mine.over != theirs.over:
            raise PairError(
                f"the launch moves data over {mine.over or 'what no launch says'} on this node, "
                f"and over {theirs.over or 'what no launch says'} on the other side"
            )
        if mine.over == "tcp":
            self.over = "tcp"
            return
        for one, who in ((mine, "this node"), (theirs, "the other side")):
            if one.wanting:
                self.error = f"{who}: {one.wanting}"
            elif not one.used:
                raise PairError(f"{who} {NO_PORT}")
        asked = self.pairs or ("" if mine.over else ANY)
        for here, there in pairs_of(mine, theirs, asked):
            if time.monotonic() > self._deadline:
                raise PairError(f"the {self.seconds:g} s are over: not all was tried")
            self.tried.append(try_pair(stream, facts, (mine, here), (theirs, there)))


def _held(said: Json) -> Iterator[tuple[str, int]]:
    """Of what the other side says that it holds open, what can be."""
    rows = said.get("held")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) == 2 and type(row[1]) is int:
            yield str(row[0])[:40], row[1]


@contextlib.contextmanager
def _connected(talk: Talk, deadline: float) -> Iterator[tuple[socket.socket, float]]:
    """The connection and the seconds that it took; asked for again while nobody listens yet."""
    waited_for = min(deadline, time.monotonic() + talk.wait_seconds)
    while True:
        started = time.monotonic()
        left = max(0.1, min(deadline - started, SILENCE_SECONDS))
        try:
            link = socket.create_connection((talk.address, talk.port), left)
            break
        except ConnectionRefusedError:
            if time.monotonic() > waited_for:
                raise
        time.sleep(PAUSE_SECONDS)
    with link:
        yield link, time.monotonic() - started


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
    asked: dict[str, Any] = {
        "device": there.rail.device,
        "port": there.rail.port,
        "gid_index": there.gid_index,
    }
    if back is not None:
        asked["back"] = back
    try:
        made = connection(facts, here.rail.device, here.rail.port, here.gid_index)
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
