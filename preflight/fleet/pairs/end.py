"""One end of a pair on its node: ``fleet pair-listen`` and ``fleet pair-connect``.

The two speak lines of JSON over TCP. The one that connects says ``Hello``; where its token is right
the other answers with ``EndFacts``. Then each ``PairRequest`` is answered: ``back_port`` by a
``TcpReply``; the ``end`` of a connection by a ``PairReply`` with the listener's own end, and after
the writes and a ``Ready`` by what arrived, or, where ``back`` asks for it, what its own writes did.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import mmap
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import RdmaFacts
from checks.rdma.libibverbs import MTU_BYTES
from checks.rdma.reach_checks import DEFAULT_MTU_BYTES
from checks.rdma.use import uses
from preflight.base.output import say, say_json
from preflight.base.usage_error import UsageError
from preflight.check.rails import Rail
from preflight.fleet.base.decode import Json, WrongError, decoded, no_constant
from preflight.fleet.pairs.outcome import (
    EQUAL_NAMES,
    HERE,
    NO_PORT,
    THERE,
    VERBS,
    WRITE,
    Failure,
    PairAnswer,
    PairPort,
    TriedPair,
    Writes,
    pair_object,
)
from preflight.fleet.reports.rows import EXIT_CODES
from preflight.inputs.launch_words import LaunchWords
from preflight.render.plain_data import plain
from preflight.verbs.objects import Peer, QueuePair, RegisteredRegion, VerbsError, open_device

TALK = "mooncake-preflight/pair-talk/v5"
LONGEST_LINE = 1 << 20
# A side that says nothing for so long is gone; an address that does not answer takes seconds.
SILENCE_SECONDS = 30.0
# What stands in a kernel's call at the end is ended from outside of Python.
GRACE_SECONDS = 10.0
REMOVAL_SECONDS = 5.0
FACTS_SECONDS = 20.0
LAUNCH_SECONDS = 20.0
# Of a port whose packets are dropped; one that is closed says so at once.
PORT_SECONDS = 5.0
# Both ends may be started at once: the other one is up in a moment.
PAUSE_SECONDS = 0.25
# The larger write needs many packets of any path MTU, the smaller fits in one of the least.
BUFFER_BYTES = 64 * 1024
SMALL_BYTES = 64
# The first write pays for what the devices set up; the shortest of these is the way itself.
SMALL_WRITES = 5
MOST_WRITES = SMALL_WRITES + 1
# What is written, so that the side whose memory it is can say whether it arrived. Fresh memory is
# zero, and a write's last packet brings its end.
_PATTERNS = ((BUFFER_BYTES, 0xA5), (SMALL_BYTES, 0x5A))
# Where nothing is heard, the queue pair itself gives up after half a second; a device in software
# under load takes longer, and one that cannot send says nothing at all.
POLL_SECONDS = 10.0

Message = TypeVar("Message", bound=tuple[Any, ...])


class PairError(Exception):
    """The two ends do not understand each other, or one is gone; carries why."""


class Stream(Protocol):
    """Both ways of a connection, as ``socket.makefile("rwb")`` gives them."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...
    def readline(self, size: int, /) -> bytes: ...


class Endpoint(NamedTuple):
    """What the other side has to know. gid: 32 hexadecimal digits. key, address: of the buffer."""

    lid: int
    qpn: int
    psn: int
    gid: str
    mtu_bytes: int
    address: int
    key: int


class WriteEnd(NamedTuple):
    """status: of enum ibv_wc_status, 0 for success; None where nothing came in time."""

    status: int | None
    seconds: float


class Connection:
    """A queue pair on one port, with a buffer that the other side may write to.

    Closed with ``close``; the end of the process does as well.
    """

    def __init__(self, device: str, port: int, gid_index: int, mtu_limit_bytes: int) -> None:
        """Make a queue pair. Raises VerbsError; OSError where libibverbs cannot be loaded."""
        self._port, self._gid_index = port, gid_index
        self._buffer = mmap.mmap(-1, 2 * BUFFER_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._pair: QueuePair | None = None
        self._region: RegisteredRegion | None = None
        self._device = open_device(device)
        try:
            self._region = self._device.register(address, 2 * BUFFER_BYTES)
            self._pair = self._device.queue_pair()
            facts = self._device.port(port)
            active = MTU_BYTES.get(facts.mtu_code, min(MTU_BYTES.values()))
            self.mtu_bytes = min(active, mtu_limit_bytes)
            psn = int.from_bytes(os.urandom(3), "little")
            gid = self._device.gid(port, gid_index).hex()
            qpn, key = self._pair.number, self._region.rkey
            self.end = Endpoint(facts.lid, qpn, psn, gid, self.mtu_bytes, address, key)
            self._pair.initialize(port)
        except BaseException:
            self.close()
            raise

    def connect(self, other: Endpoint) -> None:
        """Make it ready to receive from ``other`` and to send to it. Raises VerbsError."""
        assert self._pair is not None
        codes = {size: code for code, size in MTU_BYTES.items()}
        peer = Peer(
            self._port,
            self._gid_index,
            bytes.fromhex(other.gid),
            other.lid,
            other.qpn,
            other.psn,
            codes[self.mtu_bytes],
        )
        self._pair.connect(peer, self.end.psn)

    def write(self, other: Endpoint, size: int) -> WriteEnd:
        """Write SMALL_BYTES or BUFFER_BYTES to the buffer of ``other``; acknowledged, or not.

        Raises VerbsError where it cannot even be posted.
        """
        assert self._pair is not None
        assert self._region is not None
        # Its own half: what the other side writes at the same time is not sent back to it.
        self._buffer[BUFFER_BYTES : BUFFER_BYTES + size] = bytes([dict(_PATTERNS)[size]]) * size
        own, key = self.end.address + BUFFER_BYTES, self._region.lkey
        started = time.monotonic()
        self._pair.write(own, size, key, other.address, other.key)
        while True:
            status = self._pair.poll()
            seconds = time.monotonic() - started
            if status is not None or seconds > POLL_SECONDS:
                return WriteEnd(status, seconds)

    def arrived_bytes(self) -> int:
        """Return the size of the other side's largest write that is here to its end; 0 for none."""
        for size, pattern in _PATTERNS:
            if self._buffer[size - 1] == pattern:
                return size
        return 0

    def close(self) -> None:
        """Give everything back, the last taken first."""
        for taken in (self._pair, self._region, self._device):
            if taken is not None:
                taken.close()
        self._pair = self._region = None


_LARGEST_END = Endpoint(0xFFFF, 0xFFFFFF, 0xFFFFFF, "f" * 32, 4096, (1 << 64) - 1, (1 << 32) - 1)


class Hello(NamedTuple):
    """address: at which the other side connects in turn."""

    protocol: str
    token: str
    address: str = ""


class UsedPort(NamedTuple):
    """A port and the GID that is taken of it; the same port may be there with another one."""

    device: str
    port: int
    gid_index: int
    gid: str
    mtu_bytes: int | None = None


class EndFacts(NamedTuple):
    """What an end is: its ports with a GID. over: rdma or tcp, "" where no launch says it.

    affinity: as in ``LaunchShare``. wanting: why the launch has not the RDMA that it asks for.
    """

    ports: tuple[UsedPort, ...]
    over: str = ""
    affinity: str = ""
    wanting: str = ""


class PairRequest(NamedTuple):
    """back_port: of the one that asks, to be connected to. end, device, port, gid_index: a
    connection. back: how many writes of the other side. None of it: the talk is over."""

    back_port: int | None = None
    end: Endpoint | None = None
    device: str = ""
    port: int = 0
    gid_index: int = 0
    back: int | None = None


class Ready(NamedTuple):
    """ready: the one that asked can be written to; it is done writing."""

    ready: bool = True


class TcpReply(NamedTuple):
    """why: the port could not be connected to, "" where it could."""

    why: str = ""


class PairReply(NamedTuple):
    """failure: of a call of libibverbs, or of a write. seconds: of the writes before. arrived: in
    bytes."""

    failure: Failure | None = None
    end: Endpoint | None = None
    arrived: int | None = None
    seconds: tuple[float, ...] = ()


def send(stream: Stream, message: tuple[Any, ...] | Json) -> None:
    stream.write(json.dumps(plain(message), separators=(",", ":")).encode() + b"\n")
    stream.flush()


def receive(stream: Stream, kind: type[Message]) -> Message:
    """Read a record. Raises PairError, also of what the other side could not do, and OSError."""
    line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        gone = len(line) < LONGEST_LINE
        more = f"a line of more than {LONGEST_LINE} bytes"
        raise PairError("the other side ended the conversation" if gone else more)
    try:
        message = json.loads(line, parse_constant=no_constant)
        if isinstance(message, dict) and "error" in message:
            raise PairError(f"the other side: {str(message['error'])[:200]}")
        found: Message = decoded(kind, message)
    except (ValueError, RecursionError, WrongError):
        raise PairError(f"not a message of this program: {line[:40]!r}") from None
    return found


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
    made: Connection, other: Endpoint, count: int, side: str, seconds: list[float]
) -> Failure | None:
    """Make the first ``count`` of five small writes and a large one; their times go to ``seconds``.

    Returns the failure of ``side``, which ends them.
    """
    try:
        for size in ([SMALL_BYTES] * SMALL_WRITES + [BUFFER_BYTES])[:count]:
            done = made.write(other, size)
            if done.status != 0:
                return Failure(side, WRITE, "write", done.status, size)
            seconds.append(done.seconds)
    except VerbsError as error:
        return Failure(side, VERBS, error.call, error.errno)
    return None


def try_port(address: str, port: int) -> str:
    """Connect to a port and close it again; returns why it cannot be, "" where it can."""
    try:
        socket.create_connection((address, port), PORT_SECONDS).close()
    except TimeoutError:
        return f"no answer within {PORT_SECONDS:.0f} s"
    except (OSError, UnicodeError, OverflowError) as error:
        return str(error) or "no answer"
    return ""


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
    import signal
    import threading

    gone = select.poll()
    gone.register(1, 0)  # errors and hang-ups are told unasked
    gone.poll()
    # A program that was taken along removes its folder; what hangs in a call does not hear it.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(REMOVAL_SECONDS)
    os._exit(1)


class OwnEnd(NamedTuple):
    """This end. mtu_limits: of each port in use, by device, port and GID index."""

    facts: EndFacts
    mtu_limits: Mapping[tuple[str, int, int], int]

    def connection(self, device: str, port: int, gid_index: int) -> Connection:
        """Return a queue pair of this end's own port, with a GID in use.

        Raises PairError and VerbsError.
        """
        limit = self.mtu_limits.get((device, port, gid_index))
        if limit is None:
            raise PairError(f"{device[:40]} port {port} has no such GID in use here")
        try:
            return Connection(device, port, gid_index, limit)
        except VerbsError:
            raise
        except (OSError, AttributeError) as error:
            raise PairError(f"libibverbs cannot be used here: {error}") from None


def own_end(words: LaunchWords, mtu_limit_bytes: int | None) -> OwnEnd:
    """Return the end of this machine, with the launch where one is given.

    mtu_limit_bytes: None for the launch's own MC_MTU. Raises PairError and UsageError.
    """
    from checks.base.root import Root
    from checks.run.facts import read_facts
    from preflight.check.machine import affinity_of
    from preflight.check.machine import mtu_limit_bytes as limit_of
    from preflight.check.rails import rails, rails_in_use

    needs = launch_needs_here(words)
    facts = read_facts(Root(), needs, FACTS_SECONDS, ("rdma",))
    found = rails(facts, needs)
    if isinstance(found, Unknown):
        raise PairError(f"the RDMA ports of this node cannot be read: {found.reason}")
    if needs is None:
        rows = [(rail, mtu_limit_bytes or DEFAULT_MTU_BYTES) for rail in found]
        return _end(EndFacts(()), rows)
    rows = [
        (rail, mtu_limit_bytes or limit_of(use.environment))
        for rail, use in rails_in_use(facts.rdma, needs)
    ]
    over = "rdma" if needs.rdma_processes else "tcp"
    own = EndFacts((), over, affinity_of(needs) or "any", wanting(facts.rdma, needs))
    return _end(own, rows)


def _end(own: EndFacts, rows: Sequence[tuple[Rail, int]]) -> OwnEnd:
    ports: list[UsedPort] = []
    limits: dict[tuple[str, int, int], int] = {}
    for rail, limit in rows:
        if isinstance(rail.gid, str) and isinstance(rail.gid_index, int):
            mtu = rail.mtu_bytes if isinstance(rail.mtu_bytes, int) else None
            ports.append(UsedPort(rail.device, rail.port, rail.gid_index, rail.gid, mtu))
            limits.setdefault((rail.device, rail.port, rail.gid_index), limit)
    return OwnEnd(own._replace(ports=tuple(ports)), limits)


def launch_needs_here(words: LaunchWords) -> LaunchNeeds | None:
    """Return what the launch needs on this node; None for no launch.

    Raises PairError and UsageError.
    """
    from preflight.inputs.host_source import open_host, size_within

    sized = size_within(words, open_host("/"), LAUNCH_SECONDS)
    if isinstance(sized, Unknown):
        raise PairError(sized.reason)
    return None if sized is None else sized.needs


def wanting(rdma: RdmaFacts, needs: LaunchNeeds) -> str:
    """Return why the launch has not the RDMA here that it asks for, or that is not known; else "".

    A device that it drops while others are left is a finding of ``fleet check``.
    """
    for use in uses(rdma, needs):
        names = use.devices.names
        if isinstance(names, Unknown):
            return f"which RDMA devices {use.who} takes is not known: {names.reason}"
        if not names:
            why = "; ".join(f"{lost.name}: {lost.why}" for lost in use.devices.lost[:3])
            return f"{use.who} gets no RDMA device" + (f" ({why})" if why else "")
    return ""


def pairs_of(mine: EndFacts, theirs: EndFacts, asked: str) -> list[tuple[UsedPort, UsedPort]]:
    """Return which port to try with which, equal names first: the time may run out.

    asked: equal names alone (same), any with any, or "" for as Mooncake pairs them, from either
    side: by default any with any; with the affinity those of one name, and any again for a name
    that the other side lacks (topology.cpp, ``selectDevice`` with a hint).
    """

    def chosen(own: EndFacts, other: EndFacts) -> Iterator[tuple[UsedPort, UsedPort]]:
        for one in own.ports:
            alike = [peer for peer in other.ports if peer.device == one.device]
            named = asked == "same" or (not asked and own.affinity in EQUAL_NAMES and alike)
            yield from ((one, peer) for peer in (alike if named else other.ports))

    found = dict.fromkeys(chosen(mine, theirs))
    found.update(dict.fromkeys((one, peer) for peer, one in chosen(theirs, mine)))
    return sorted(found, key=lambda pair: pair[0].device != pair[1].device)


def listening(address: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, port), family=family)


def run_listen(
    launch: LaunchWords,
    *,
    address: str,
    port: int,
    seconds: float,
    token: str,
    mtu_limit_bytes: int | None,
    once: bool,
) -> int:
    """Serve until the time is over; returns 0. Raises UsageError.

    token: "" for one made here and printed. mtu_limit_bytes: None for the launch's own.
    """
    token = token or secrets.token_hex(16)
    deadline = time.monotonic() + seconds
    with ended_after(seconds):
        try:
            own = own_end(launch, mtu_limit_bytes)
            server = listening(address, port)
        except PairError as error:
            raise UsageError(str(error)) from None
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"--address {address} --port {port}: cannot listen there: {error}; "
                "give an address of this node and a free port"
            ) from None
        with server:
            # For whoever started it: where it is, before anybody asks.
            bound, bound_port = server.getsockname()[:2]
            where = {"protocol": TALK, "address": bound, "port": bound_port, "token": token}
            say(json.dumps(where, separators=(",", ":")))
            while (left := deadline - time.monotonic()) > 0:
                server.settimeout(left)
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    break
                client.settimeout(min(left, SILENCE_SECONDS))
                if _served(client, token, own) and once:
                    break
    return 0


def _served(client: socket.socket, token: str, own: OwnEnd) -> bool:
    """Return whether it was somebody who may connect; a stranger is told so, and nothing else."""
    admitted = False
    with client, contextlib.suppress(OSError), client.makefile("rwb") as stream:
        try:
            hello = receive(stream, Hello)
            right = hmac.compare_digest(_bytes(hello.token), _bytes(token))
            admitted = right and hello.protocol == TALK
            if admitted:
                send(stream, own.facts)
                _serve(stream, own, hello.address or client.getpeername()[0])
            else:
                send(stream, {"error": f"this end speaks {TALK} to who has its token"})
        except PairError as error:
            if admitted:
                send(stream, {"error": str(error)})
    return admitted


def _bytes(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")


def _serve(stream: Stream, own: OwnEnd, address: str) -> None:
    """Serve one conversation, until the other side, at ``address``, is done. Raises PairError."""
    while True:
        request = receive(stream, PairRequest)
        if request.back_port is not None:
            send(stream, TcpReply(try_port(address, request.back_port)))
        elif request.end is not None:
            _answer(stream, request, own)
        else:
            break


def _answer(stream: Stream, request: PairRequest, own: OwnEnd) -> None:
    """Connect, answer, and keep the connection until what was asked for is done."""
    other = checked(request.end)
    try:
        with contextlib.closing(
            own.connection(request.device, request.port, request.gid_index)
        ) as made:
            made.connect(other)
            send(stream, PairReply(end=made.end))
            ready = receive(stream, Ready).ready
            if request.back is None:
                send(stream, PairReply(arrived=made.arrived_bytes()))
            elif ready:
                seconds: list[float] = []
                failure = writes(made, other, min(request.back, MOST_WRITES), THERE, seconds)
                send(stream, PairReply(failure, seconds=tuple(seconds)))
    except VerbsError as error:
        send(stream, PairReply(Failure(THERE, VERBS, error.call, error.errno)))


@dataclass
class Trial:
    """One conversation; what it has come to is there whenever it ends.

    pairs: of equal names alone (same), any with any, or "" for as the launch has it. own_address:
    at which the other side connects in turn; "" for that of the connection. wait_seconds: for the
    other side to listen at all. mtu_limit_bytes: None for the launch's own.
    """

    launch: LaunchWords
    address: str
    port: int
    token: str
    pairs: str
    seconds: float
    wait_seconds: float
    mtu_limit_bytes: int | None
    own_address: str
    connected: float | None = None
    tried: list[TriedPair] = field(default_factory=list)
    error: str = ""
    closed: str = ""
    over: str = "rdma"

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    def run(self) -> int:
        """Print the answer; returns the exit code. Raises UsageError."""
        with ended_after(self.seconds):
            answer = self.answer()
        say_json(pair_object(answer))
        return EXIT_CODES[answer.status]

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
        tried = tuple(self.tried)
        return PairAnswer(peer, self.connected, tried, self.error, self.closed, self.over)

    def _run(self) -> None:
        own = own_end(self.launch, self.mtu_limit_bytes)
        with self._link() as link:
            own_address = self.own_address or link.getsockname()[0]
            link.settimeout(SILENCE_SECONDS)
            with link.makefile("rwb") as stream:
                send(stream, Hello(TALK, self.token, own_address))
                theirs = receive(stream, EndFacts)
                self._try_back(stream, own_address)
                self._try_ports(stream, own, theirs)
                send(stream, PairRequest())

    @contextlib.contextmanager
    def _link(self) -> Iterator[socket.socket]:
        """Yield the connection; asked for again while nobody listens yet."""
        waited_for = min(self._deadline, time.monotonic() + self.wait_seconds)
        while True:
            started = time.monotonic()
            left = max(0.1, min(self._deadline - started, SILENCE_SECONDS))
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

    def _try_back(self, stream: Stream, own_address: str) -> None:
        """Have the other side connect to this one's port; where somebody has it, nothing is tried.

        Nobody is served there: that a connection comes about is all that is asked.
        """
        try:
            server = listening(own_address, self.port)
        except (OSError, UnicodeError):
            return
        with server:
            send(stream, PairRequest(back_port=self.port))
            self.closed = receive(stream, TcpReply).why[:200]

    def _try_ports(self, stream: Stream, own: OwnEnd, theirs: EndFacts) -> None:
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
            elif not one.ports:
                raise PairError(f"{who} {NO_PORT}")
        asked = self.pairs or ("" if mine.over else "any")
        for here, there in pairs_of(mine, theirs, asked):
            if time.monotonic() > self._deadline:
                raise PairError(f"the {self.seconds:g} s are over: some pairs were not tried")
            self.tried.append(_tried(stream, own, here, there))


def _tried(stream: Stream, own: OwnEnd, here: UsedPort, there: UsedPort) -> TriedPair:
    """Try two ports, both directions. Raises PairError and OSError of the talk."""
    ports = [PairPort(one.device, one.port, one.gid, one.mtu_bytes) for one in (here, there)]
    out, back = _direction(stream, own, here, there, ports, None), None
    if out.failure is None or out.failure.kind == WRITE:
        # Where nothing arrives, one write tells whether anything does the other way.
        nothing = out.failure is not None and out.small_seconds is None
        back = _direction(stream, own, here, there, ports, 1 if nothing else MOST_WRITES)
    return TriedPair(ports[0], ports[1], out, back)


def _direction(
    stream: Stream,
    own: OwnEnd,
    here: UsedPort,
    there: UsedPort,
    ports: list[PairPort],
    back: int | None,
) -> Writes:
    """Try one direction over a connection of its own.

    ports: get the path MTUs that the two ends take. back: how many writes of the other side, None
    for our own.
    """
    try:
        made = own.connection(here.device, here.port, here.gid_index)
    except VerbsError as error:
        return Writes(failure=Failure(HERE, VERBS, error.call, error.errno))
    with contextlib.closing(made):
        send(stream, PairRequest(None, made.end, there.device, there.port, there.gid_index, back))
        reply = receive(stream, PairReply)
        if reply.failure is not None:
            return Writes(failure=reply.failure)
        other = checked(reply.end)
        for at, end in enumerate((made.end, other)):
            ports[at] = ports[at]._replace(mtu_bytes=end.mtu_bytes)
        failure, seconds = None, list[float]()
        try:
            made.connect(other)
        except VerbsError as error:
            failure = Failure(HERE, VERBS, error.call, error.errno)
        if failure is not None:
            send(stream, Ready(False))
            arrived = receive(stream, PairReply).arrived if back is None else None
            return Writes(failure=failure, arrived_bytes=arrived)
        if back is None:
            failure = writes(made, other, MOST_WRITES, HERE, seconds)
        send(stream, Ready())
        reply = receive(stream, PairReply)
        if back is not None:
            failure, seconds = reply.failure, list(reply.seconds)
        arrived = reply.arrived if back is None else made.arrived_bytes()
        small = min(seconds[:SMALL_WRITES], default=None)
        large = seconds[SMALL_WRITES] if len(seconds) > SMALL_WRITES else None
        return Writes(small, large, failure, arrived)
