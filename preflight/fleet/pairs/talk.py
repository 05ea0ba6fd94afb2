"""What a pair of nodes tell each other, in lines of JSON over TCP.

The one that connects speaks first, a ``Hello``; where its token is right the listener answers with
``EndFacts``, what it knows of itself and which TCP ports it holds open to be tried. Then, each a
``PairRequest`` of the one that connects, answered by a ``PairReply`` (or a ``TcpReply``):

- ``tcp``: the listener connects to that port of the other: ``seconds``, or ``error``.
- ``end``, of a connection to a port of the listener: its own ``end``, ready to receive, or the
  ``call`` that failed. After the writes, ``Ready``: ``arrived``.
- the same with ``back``: it is the listener that writes so often, once ``Ready`` came, and answers
  with ``seconds`` and ``failure``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

from preflight.check.rails import Rail
from preflight.fleet.base.decode import Json, WrongError, decoder
from preflight.fleet.pairs.records import OUT, TriedPort
from preflight.fleet.pairs.verbs import BUFFER_BYTES, SMALL_BYTES, Connection, Endpoint
from preflight.fleet.rails.lanes import NodeKind, lane_of

TALK = "mooncake-preflight/pair-talk/v4"
LONGEST_LINE = 1 << 20
# A side that says nothing for so long is gone; an address that does not answer takes seconds.
SILENCE_SECONDS = 30.0
# What stands in a kernel's call at the end is ended from outside of Python.
GRACE_SECONDS = 10.0
# The first write pays for what the devices set up; the shortest of these is the way itself.
SMALL_WRITES = 5
MOST_WRITES = SMALL_WRITES + 1
# Of a port whose packets are dropped; one that is closed says so at once.
PORT_SECONDS = 5.0
_LARGEST_END = Endpoint(0xFFFF, 0xFFFFFF, 0xFFFFFF, "f" * 32, 4096, (1 << 64) - 1, (1 << 32) - 1)

Message = TypeVar("Message", bound=tuple[Any, ...])


class PairError(Exception):
    """The two ends do not understand each other, or one is gone; carries why."""


class Stream(Protocol):
    """Both ways of a connection, as ``socket.makefile("rwb")`` gives them."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def readline(self, size: int, /) -> bytes: ...


class Hello(NamedTuple):
    """address: at which the other side connects in turn."""

    protocol: str
    token: str
    address: str = ""


class OpenPort(NamedTuple):
    """A TCP port that is listened on while the other side tries it."""

    what: str
    port: int


class UsedPort(NamedTuple):
    """A port with the GID that is taken of it: the same port may be there with another one."""

    rail: Rail
    gid_index: int


class EndFacts(NamedTuple):
    """A node's ports, of this end or the other. over, affinity: as in ``LaunchHere``, ""
    where no launch says it. wanting: what stands in the way of the launch's own RDMA there."""

    rails: tuple[Rail, ...]
    over: str = ""
    affinity: str = ""
    wanting: str = ""
    held: tuple[OpenPort, ...] = ()

    @property
    def used(self) -> list[UsedPort]:
        """Those with a GID."""
        return [
            UsedPort(rail, rail.gid_index)
            for rail in self.rails
            if isinstance(rail.gid, str) and isinstance(rail.gid_index, int)
        ]

    @property
    def kind(self) -> NodeKind:
        return NodeKind(tuple(lane_of(used.rail) for used in self.used), (), self.affinity)


class PairRequest(NamedTuple):
    """tcp: a port to be connected to. end, device, port, gid_index: a connection. back: how many
    writes of the other side. Neither: the talk is over."""

    tcp: int | None = None
    end: Endpoint | None = None
    device: str = ""
    port: int = 0
    gid_index: int = 0
    back: int | None = None


class Ready(NamedTuple):
    """ready: the one that asked can be written to; it is done writing."""

    ready: bool = True


class TcpReply(NamedTuple):
    """error: why the port could not be connected to."""

    seconds: float | None = None
    error: str = ""


class PairReply(NamedTuple):
    """call: of libibverbs, which failed with an errno. failure: a write's status and size, the
    status None where nothing was heard. seconds: of the writes before. arrived: in bytes."""

    call: tuple[str, int | None] | None = None
    end: Endpoint | None = None
    arrived: int | None = None
    seconds: tuple[float, ...] = ()
    failure: tuple[int | None, int] | None = None


def send(stream: Stream, message: tuple[Any, ...] | Json) -> None:
    """Send a record, without the fields that have their default."""
    from preflight.render.plain_data import plain

    if not isinstance(message, dict):
        absent = message._field_defaults  # type: ignore[attr-defined]
        told = message._asdict()  # type: ignore[attr-defined]
        message = {name: one for name, one in told.items() if one != absent.get(name, ...)}
    stream.write(json.dumps(plain(message), separators=(",", ":")).encode() + b"\n")
    stream.flush()


def receive(stream: Stream, kind: type[Message]) -> Message:
    """Read a record. Raises PairError, and OSError of the connection.

    PairError is also what the other side could not do; a ``TcpReply`` has its error for itself.
    """
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise PairError(
            "the other side ended the conversation"
            if len(line) < LONGEST_LINE
            else f"a line of more than {LONGEST_LINE} bytes"
        )
    try:
        message = json.loads(line)
        if isinstance(message, dict) and "error" in message and kind is not TcpReply:
            raise PairError(f"the other side: {str(message['error'])[:200]}")
        return decoder(kind)(message, "")  # type: ignore[no-any-return]
    except (ValueError, RecursionError, WrongError):
        raise PairError(f"not a message of this program: {line[:40]!r}") from None


def checked(end: Endpoint | None) -> Endpoint:
    """Return what the other side said its end is. Raises PairError."""
    fits = end is not None and all(
        one <= limit
        for one, limit in zip(end, _LARGEST_END, strict=True)
        if isinstance(one, int) and isinstance(limit, int)
    )
    if end is None or not fits or len(end.gid) != 32 or not set(end.gid) <= set("0123456789abcdef"):
        raise PairError(f"the other side's end is {str(end)[:60]!r}")
    return end


def writes(
    made: Connection, other: Endpoint, count: int, seconds: list[float]
) -> tuple[int | None, int] | None:
    """Make the first ``count`` of five small writes and a large one; their times go to ``seconds``.

    Returns the status and size of the one that failed, None where none did. Raises VerbsError.
    """
    for size in ([SMALL_BYTES] * SMALL_WRITES + [BUFFER_BYTES])[:count]:
        done = made.write(other, size)
        if done.status != 0:
            return done.status, size
        seconds.append(done.seconds)
    return None


def try_port(address: str, port: int, deadline: float, what: str = "") -> TriedPort:
    """Connect to a port, close it again, and return how that went."""
    if not 0 < port < 1 << 16:
        return TriedPort(0, None, "no port", what, OUT)
    started = time.monotonic()
    limit = max(0.1, min(deadline - started, PORT_SECONDS))
    try:
        socket.create_connection((address, port), limit).close()
    except (OSError, UnicodeError) as error:
        late = isinstance(error, TimeoutError)
        why = f"no answer within {limit:.0f} s" if late else str(error) or "no answer"
        return TriedPort(port, None, why, what, OUT)
    return TriedPort(port, time.monotonic() - started, "", what, OUT)


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """End the process when what runs within takes longer, even where it hangs in a call.

    And when nobody is left to read what it prints: the connection that started it is gone.
    """
    import faulthandler
    import threading

    threading.Thread(target=_end_with_reader, daemon=True).start()
    with open(os.devnull, "w", encoding="ascii") as nowhere:
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _end_with_reader() -> None:
    import select

    gone = select.poll()
    gone.register(1, 0)  # errors and hang-ups are told unasked
    gone.poll()
    os._exit(1)
