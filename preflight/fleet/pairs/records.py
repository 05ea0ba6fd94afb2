"""What a pair of nodes tell each other, and what became of each connection that they tried.

The two ends talk in lines of JSON over TCP. The one that connects speaks first: ``{"protocol",
"token", "address", "held"}``; where the token is right the listener answers with what it knows of
itself (``pairs_node.own_facts``) and its own ``held``: TCP ports that are held open to be tried.
Then, each asked by the one that connects:

- ``{"tcp": port}``: the listener connects to that port of the other: ``{"seconds", "error"}``.
- ``{"device", "port", "gid_index", "end"}``: its own ``{"end"}``, ready to receive, or
  ``{"failure": [step, number]}``; after the writes ``{"done"}``: ``{"arrived": bytes}``.
- the same with ``"back": writes``: it is the listener that writes, once ``{"ready"}`` came, and
  answers with ``{"seconds": [...], "failure": None or [number, size]}``.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any, NamedTuple, Protocol

from preflight.fleet.pairs.verbs import BUFFER_BYTES, SMALL_BYTES, Connection, End
from preflight.fleet.rails.rails import Way

# Of what pair-connect prints, and of what the two ends say to each other.
PROTOCOL = "mooncake-preflight/pair/v1"
TALK = "mooncake-preflight/pair-talk/v2"
LONGEST_LINE = 1 << 20
HERE, THERE = "here", "there"
# Directions: from here to there, and back.
OUT, BACK = "out", "back"
VERBS, WRITE, TCP = "verbs", "write", "tcp"

Json = dict[str, Any]


class Stream(Protocol):
    """Both ways of a connection, as ``socket.makefile("rwb")`` gives them."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def readline(self, size: int, /) -> bytes: ...


class PairError(Exception):
    """The two ends do not understand each other, or one is gone; carries why."""


class Port(NamedTuple):
    """One side of a connection. gid: as a person writes it. mtu_bytes: None where not known."""

    device: str
    port: int
    gid: str
    mtu_bytes: int | None


class Failure(NamedTuple):
    """side: where it failed. kind: of a verbs call, of a write. number: errno, or the status of the
    completion, None for one that never came. size_bytes: of a write."""

    side: str
    kind: str
    step: str
    number: int | None
    size_bytes: int = 0


class Flow(NamedTuple):
    """One direction of a pair of ports. small_seconds, large_seconds: of the writes, the shortest
    of several small ones; None where it was not acknowledged. arrived_bytes: of the largest write
    that is whole in the other side's memory, acknowledged or not; None where it did not say.
    """

    small_seconds: float | None = None
    large_seconds: float | None = None
    failure: Failure | None = None
    arrived_bytes: int | None = None


class Tried(NamedTuple):
    """One pair of ports. facts: what addresses and routes say of it. back: None where it was not
    tried. cause: of whatever is broken."""

    here: Port
    there: Port
    facts: Way
    out: Flow
    back: Flow | None = None
    cause: str = ""

    @property
    def works(self) -> bool:
        """Both ways; what was not tried back does not count against it."""
        return self.out.failure is None and (self.back is None or self.back.failure is None)


class PortTried(NamedTuple):
    """A TCP port that was connected to. error: "" where it could be. what: of the launch, "" for
    one that was asked for. way: OUT for a port of the other side, BACK for one of this."""

    port: int
    seconds: float | None
    error: str
    what: str = ""
    way: str = OUT


class PairAnswer(NamedTuple):
    """error: why the pairs could not be tried, "" where they were. connect_seconds: of TCP.

    over: "rdma", or "tcp" where the launch moves no data over RDMA: then TCP is all there is.
    """

    peer: str
    connect_seconds: float | None
    tried: tuple[Tried, ...]
    ports: tuple[PortTried, ...]
    error: str
    over: str = "rdma"

    @property
    def status(self) -> str:
        """A pair that was tried and is broken fails; nothing tried is nothing known."""
        if not all(one.works for one in self.tried) or any(one.error for one in self.ports):
            return "fail"
        if self.over == "tcp":
            return "unknown" if self.error or self.connect_seconds is None else "pass"
        return "unknown" if self.error or not self.tried else "pass"


def send(stream: Stream, message: Json) -> None:
    stream.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
    stream.flush()


def receive(stream: Stream) -> Json:
    """Raises PairError, and OSError of the connection."""
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise PairError(
            "the other side ended the conversation"
            if len(line) < LONGEST_LINE
            else f"a line of more than {LONGEST_LINE} bytes"
        )
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise PairError(f"what came is no message of a pair: {line[:40]!r}") from None
    if not isinstance(message, dict):
        raise PairError(f"what came is no message of a pair: {line[:40]!r}")
    return message


def written(end: End) -> list[Any]:
    return list(end)


def end_of(value: Any) -> End:
    """Raises PairError."""
    kinds = [int, int, int, str, int, int, int]
    if not isinstance(value, list) or [type(one) for one in value] != kinds:
        raise PairError(f"the other side's end is {str(value)[:60]!r}")
    end = End(*value)
    most = End(0xFFFF, 0xFFFFFF, 0xFFFFFF, "f" * 32, 4096, (1 << 64) - 1, (1 << 32) - 1)
    fits = all(
        0 <= one <= limit
        for one, limit in zip(end, most, strict=True)
        if isinstance(one, int) and isinstance(limit, int)
    )
    if not fits or len(end.gid) != 32 or not set(end.gid) <= set("0123456789abcdef"):
        raise PairError(f"the other side's end is {str(value)[:60]!r}")
    return end


# The first write pays for what the devices set up; the shortest of these is the way itself.
SMALL_WRITES = 5
MOST_WRITES = SMALL_WRITES + 1
# Of a port whose packets are dropped; one that is closed says so at once.
PORT_SECONDS = 5.0


def writes(
    made: Connection, other: End, count: int, seconds: list[float]
) -> tuple[int | None, int] | None:
    """The first ``count`` of five small writes and a large one; their times go to ``seconds``.

    The status and size of the one that failed, None where none did. Raises VerbsError.
    """
    for size in ([SMALL_BYTES] * SMALL_WRITES + [BUFFER_BYTES])[:count]:
        done = made.write(other, size)
        if done.status != 0:
            return done.status, size
        seconds.append(done.seconds)
    return None


def port_tried(
    address: str, port: object, deadline: float, what: str = "", way: str = OUT
) -> PortTried:
    """Connected to, and closed again; ``port`` may be anything that was heard."""
    if type(port) is not int or not 0 < port < 1 << 16:
        return PortTried(0, None, "no port", what, way)
    started = time.monotonic()
    limit = max(0.1, min(deadline - started, PORT_SECONDS))
    try:
        socket.create_connection((address, port), limit).close()
    except (OSError, UnicodeError) as error:
        late = isinstance(error, TimeoutError)
        why = f"no answer within {limit:.0f} s" if late else str(error) or "no answer"
        return PortTried(port, None, why, what, way)
    return PortTried(port, time.monotonic() - started, "", what, way)
