"""``mooncake-preflight fleet pair-listen``: the end that is connected to, for a while."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import Iterator

from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.pairs.node import Held, connection, holding, own_facts, part_of
from preflight.fleet.pairs.records import (
    MOST_WRITES,
    TALK,
    Json,
    PairError,
    Stream,
    end_of,
    port_tried,
    receive,
    send,
    writes,
    written,
)
from preflight.inputs.launch_words import LaunchWords
from preflight.verbs.objects import VerbsError

# A side that says nothing for so long is gone; an address that does not answer takes seconds.
SILENCE_SECONDS = 30.0
# What stands in a kernel's call at the end is ended from outside of Python.
GRACE_SECONDS = 10.0


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """What is done within takes no longer: the process ends, even where it hangs in a call."""
    import faulthandler

    with open(os.devnull, "w", encoding="ascii") as nowhere:
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


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
        _listen(launch, address, port, deadline, token, mtu_limit_bytes, once)
    return 0


def _listen(
    launch: LaunchWords,
    own_address: str,
    own_port: int,
    deadline: float,
    token: str,
    mtu_limit_bytes: int | None,
    once: bool,
) -> None:
    try:
        part = part_of(launch)
        facts = own_facts(part, mtu_limit_bytes)
    except PairError as error:
        raise UsageError(str(error)) from None
    spans = () if part is None else part.ports
    with _bound(own_address, own_port) as server, holding(own_address, spans) as held:
        address, port = server.getsockname()[:2]
        # For whoever started it: where it is, before anybody asks.
        from preflight.fleet.node.report import one_line

        said = {"protocol": TALK, "address": address, "port": port, "token": token}
        say(one_line(said))
        while (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                client, _ = server.accept()
            except TimeoutError:
                break
            admitted = False
            client.settimeout(min(left, SILENCE_SECONDS))
            with client, contextlib.suppress(OSError), client.makefile("rwb") as stream:
                asked = _admitted(stream, token)
                if asked is not None:
                    admitted = True
                    address = str(asked.get("address") or client.getpeername()[0])
                    _serve(stream, facts, held, address)
            if admitted and once:
                break


def _bound(address: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((address, port), family=family)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--address {address} --port {port}: cannot listen there: {error}; "
            "give an address of this node and a free port"
        ) from None


def _admitted(stream: Stream, token: str) -> Json | None:
    """What somebody who may said; a stranger is told so, and nothing else."""
    try:
        asked = receive(stream)
        right = hmac.compare_digest(_bytes(asked.get("token")), _bytes(token))
        if asked.get("protocol") == TALK and right:
            return asked
        send(stream, {"error": f"this end speaks {TALK} to who has its token"})
    except (PairError, OSError):
        pass
    return None


def _serve(stream: Stream, facts: Json, held: tuple[Held, ...], address: str) -> None:
    """One conversation, until the other side is done or gone. address: of the other side."""
    try:
        send(stream, {"protocol": TALK, **facts, "held": [list(one) for one in held]})
        while True:
            asked = receive(stream)
            if "tcp" in asked:
                tried = port_tried(address, asked["tcp"], time.monotonic() + SILENCE_SECONDS)
                send(stream, {"seconds": tried.seconds, "error": tried.error})
            elif "end" in asked:
                _answer(stream, asked, facts)
            else:
                break
    except PairError as error:
        send(stream, {"error": str(error)})


def _bytes(token: object) -> bytes:
    return str(token).encode("utf-8", "surrogatepass")


def _answer(stream: Stream, asked: Json, facts: Json) -> None:
    """Connects, answers, and keeps the connection until what was asked for is done."""
    other = end_of(asked["end"])
    try:
        made = connection(facts, asked.get("device"), asked.get("port"), asked.get("gid_index"))
    except VerbsError as error:
        send(stream, {"failure": [error.call, error.errno]})
        return
    try:
        made.connect(other)
        send(stream, {"end": written(made.end)})
        ready = receive(stream)
        count = asked.get("back")
        if type(count) is not int:
            send(stream, {"arrived": made.arrived_bytes()})
        elif ready.get("ready") is True:
            seconds: list[float] = []
            failed = writes(made, other, min(max(count, 0), MOST_WRITES), seconds)
            send(stream, {"seconds": seconds, "failure": failed})
    except VerbsError as error:
        send(stream, {"failure": [error.call, error.errno]})
    finally:
        made.close()
