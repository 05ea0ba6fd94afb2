"""``mooncake-preflight fleet pair-connect``: each pair of ports of two nodes, tried both ways."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from preflight.base.output import say_json
from preflight.fleet.pairs import talk
from preflight.fleet.pairs.answer import Fate, cause_of, fate
from preflight.fleet.pairs.ends import OwnEnd, holding, own_end, pairs_of
from preflight.fleet.pairs.records import (
    BACK,
    HERE,
    THERE,
    VERBS,
    WRITE,
    Failure,
    PairAnswer,
    PairPort,
    TriedPair,
    TriedPort,
    Writes,
)
from preflight.fleet.pairs.talk import EndFacts, PairError, Stream, UsedPort
from preflight.fleet.pairs.verbs import Connection, Endpoint
from preflight.fleet.rails.lanes import lane_of, way
from preflight.inputs.launch_words import LaunchWords
from preflight.verbs.objects import VerbsError

# Both ends may be started at once: the other one is up in a moment.
PAUSE_SECONDS = 0.25
# What is said where the two nodes meet and there is nothing to write over.
NO_PORT = "has no RDMA port with a GID"
# What the end that connects holds open, to be connected to in turn.
OWN_PORT = "the port of this test"


def run_connect(trial: Trial) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    from preflight.fleet.pairs.answer import pair_object
    from preflight.fleet.reports.rows import EXIT_CODES

    with talk.ended_after(trial.seconds):
        answer = trial.answer()
    say_json(pair_object(answer))
    return EXIT_CODES[answer.status]


@dataclass
class Trial:
    """One conversation; what it has come to is there whenever it ends.

    pairs: of equal names alone (same), any with any, or "" for as the launch has it. tcp_ports: to
    be connected to. own_address: at which the other side connects in turn; "" for that of the
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
    tried: list[TriedPair] = field(default_factory=list)
    ports: list[TriedPort] = field(default_factory=list)
    error: str = ""
    over: str = "rdma"

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    def answer(self) -> PairAnswer:
        """Return what was tried until the time was over, or the other side was gone.

        Raises UsageError.
        """
        peer = f"{self.address}:{self.port}"
        try:
            self._run()
        except (PairError, OSError, UnicodeError) as error:
            self.error = str(error) or "no answer"
            if self.connected is None:
                self.error = f"{peer}: {self.error}"
        tried, ports = tuple(self.tried), tuple(self.ports)
        return PairAnswer(peer, self.connected, tried, ports, self.error, self.over)

    def _run(self) -> None:
        own = own_end(self.launch, self.mtu_limit_bytes)
        with self._link() as link:
            own_address = self.own_address or link.getsockname()[0]
            spans = ((OWN_PORT, self.port, self.port), *own.spans)
            link.settimeout(talk.SILENCE_SECONDS)
            with holding(own_address, spans) as held, link.makefile("rwb") as stream:
                talk.send(stream, talk.Hello(talk.TALK, self.token, own_address))
                theirs = talk.receive(stream, EndFacts)
                for port in self.tcp_ports:
                    self._try_port(stream, port, "", there=True)
                    self._try_port(stream, port, "", there=False)
                # Those that a launch has, where they were free.
                for one in theirs.held:
                    self._try_port(stream, one.port, one.what[:40], there=True)
                for one in held:
                    self._try_port(stream, one.port, one.what, there=False)
                self._try_rails(stream, own, theirs)
                talk.send(stream, talk.PairRequest())

    @contextlib.contextmanager
    def _link(self) -> Iterator[socket.socket]:
        """Yield the connection; asked for again while nobody listens yet."""
        waited_for = min(self._deadline, time.monotonic() + self.wait_seconds)
        while True:
            started = time.monotonic()
            left = max(0.1, min(self._deadline - started, talk.SILENCE_SECONDS))
            try:
                link = socket.create_connection((self.address, self.port), left)
                break
            except ConnectionRefusedError:
                if time.monotonic() > waited_for:
                    raise
            time.sleep(PAUSE_SECONDS)
        with link:
            self.connected = time.monotonic() - started
            yield link

    def _try_port(self, stream: Stream, port: int, what: str, there: bool) -> None:
        """Try one port of the other side, or one here, which the other side connects to."""
        if there:
            self.ports.append(talk.try_port(self.address, port, self._deadline, what))
            return
        talk.send(stream, talk.PairRequest(tcp=port))
        seconds, error = talk.receive(stream, talk.TcpReply)
        error = "" if seconds is not None else error[:200] or "no answer"
        self.ports.append(TriedPort(port, seconds, error, what, BACK))

    def _try_rails(self, stream: Stream, own: OwnEnd, theirs: EndFacts) -> None:
        mine = own.facts
        if mine.over != theirs.over:
            raise PairError(
                f"the launch moves data over {mine.over or 'an unknown protocol'} on this node, "
                f"and over {theirs.over or 'an unknown protocol'} on the other side"
            )
        if mine.over == "tcp":
            self.over = "tcp"
            return
        for one, who in ((mine, "this node"), (theirs, "the other side")):
            if one.wanting:
                self.error = f"{who}: {one.wanting}"
            elif not one.used:
                raise PairError(f"{who} {NO_PORT}")
        asked = self.pairs or ("" if mine.over else "any")
        for here, there in pairs_of(mine, theirs, asked):
            if time.monotonic() > self._deadline:
                raise PairError(f"the {self.seconds:g} s are over: some pairs were not tried")
            self.tried.append(_Pair(stream, own, theirs, here, there).tried())


class _Pair:
    """Two ports, written over from here, then from there."""

    def __init__(
        self,
        stream: Stream,
        own: OwnEnd,
        theirs: EndFacts,
        here: UsedPort,
        there: UsedPort,
    ) -> None:
        self._stream, self._own, self._here, self._there = stream, own, here, there
        self._facts = way(lane_of(here.rail), lane_of(there.rail))
        # With the path MTUs that the two ends take, once they said so.
        self._ports = [_pair_port(here), _pair_port(there)]

    def tried(self) -> TriedPair:
        """Try the pair, both directions. Raises PairError and OSError of the talk."""
        out = self._writes(None)
        back = None
        if fate(out) is not Fate.UNCONNECTED:
            # Where nothing arrives, one write tells whether anything does the other way.
            count = (
                1
                if fate(out) is not Fate.PASSES and out.small_seconds is None
                else talk.MOST_WRITES
            )
            back = self._writes(count)
        made = TriedPair(self._ports[0], self._ports[1], self._facts, out, back)
        return made._replace(cause=cause_of(made))

    def _writes(self, back: int | None) -> Writes:
        """Try one direction over a connection of its own.

        back: how many writes of the other side, None for our own.
        """
        here, there = self._here, self._there
        try:
            made = self._own.connection(here.rail.device, here.rail.port, here.gid_index)
        except VerbsError as error:
            return Writes(failure=_call(HERE, error.call, error.errno))
        with contextlib.closing(made):
            self._ports[0] = self._ports[0]._replace(mtu_bytes=made.end.mtu_bytes)
            port = (there.rail.device, there.rail.port, there.gid_index)
            talk.send(self._stream, talk.PairRequest(None, made.end, *port, back))
            reply = talk.receive(self._stream, talk.PairReply)
            if reply.call is not None:
                return Writes(failure=_call(THERE, *reply.call))
            other = talk.checked(reply.end)
            self._ports[1] = self._ports[1]._replace(mtu_bytes=other.mtu_bytes)
            try:
                made.connect(other)
            except VerbsError as error:
                talk.send(self._stream, talk.Ready(False))
                arrived = (
                    talk.receive(self._stream, talk.PairReply).arrived if back is None else None
                )
                failure = _call(HERE, error.call, error.errno)
                return Writes(failure=failure, arrived_bytes=arrived)
            return self._ours(made, other) if back is None else self._theirs(made)

    def _ours(self, made: Connection, other: Endpoint) -> Writes:
        seconds: list[float] = []
        failure = None
        try:
            failed = talk.writes(made, other, talk.MOST_WRITES, seconds)
            failure = None if failed is None else Failure(HERE, WRITE, "write", *failed)
        except VerbsError as error:
            failure = _call(HERE, error.call, error.errno)
        talk.send(self._stream, talk.Ready())
        return _timed(seconds, failure, talk.receive(self._stream, talk.PairReply).arrived)

    def _theirs(self, made: Connection) -> Writes:
        talk.send(self._stream, talk.Ready())
        reply = talk.receive(self._stream, talk.PairReply)
        if reply.call is not None:
            return Writes(failure=_call(THERE, *reply.call))
        failed = reply.failure
        failure = None if failed is None else Failure(THERE, WRITE, "write", *failed)
        return _timed(reply.seconds, failure, made.arrived_bytes())


def _pair_port(used: UsedPort) -> PairPort:
    mtu = used.rail.mtu_bytes
    known = mtu if isinstance(mtu, int) else None
    return PairPort(used.rail.device, used.rail.port, str(used.rail.gid), known)


def _call(side: str, call: str, number: int | None) -> Failure:
    return Failure(side, VERBS, call[:60], number)


def _timed(seconds: Sequence[float], failure: Failure | None, arrived: int | None) -> Writes:
    small = min(seconds[: talk.SMALL_WRITES], default=None)
    large = seconds[talk.SMALL_WRITES] if len(seconds) > talk.SMALL_WRITES else None
    return Writes(small, large, failure, arrived)
