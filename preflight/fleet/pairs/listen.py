"""``mooncake-preflight fleet pair-listen``: the end that is connected to, for a while."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import time

from preflight.base.output import say
from preflight.base.usage_error import UsageError
from preflight.fleet.pairs import talk
from preflight.fleet.pairs.ends import OwnEnd, holding, listening, own_end
from preflight.fleet.pairs.talk import PairError, Stream
from preflight.inputs.launch_words import LaunchWords
from preflight.verbs.objects import VerbsError


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
    with talk.ended_after(seconds):
        try:
            own = own_end(launch, mtu_limit_bytes)
        except PairError as error:
            raise UsageError(str(error)) from None
        with _bound(address, port) as server, holding(address, own.spans) as held:
            # For whoever started it: where it is, before anybody asks.
            bound, bound_port = server.getsockname()[:2]
            where = {"protocol": talk.TALK, "address": bound, "port": bound_port, "token": token}
            say(json.dumps(where, separators=(",", ":")))
            while (left := deadline - time.monotonic()) > 0:
                server.settimeout(left)
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    break
                client.settimeout(min(left, talk.SILENCE_SECONDS))
                if _served(client, token, own, own.facts._replace(held=held)) and once:
                    break
    return 0


def _bound(address: str, port: int) -> socket.socket:
    try:
        return listening(address, port)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--address {address} --port {port}: cannot listen there: {error}; "
            "give an address of this node and a free port"
        ) from None


def _served(client: socket.socket, token: str, own: OwnEnd, facts: talk.EndFacts) -> bool:
    """Return whether it was somebody who may connect; a stranger is told so, and nothing else."""
    admitted = False
    with client, contextlib.suppress(OSError), client.makefile("rwb") as stream:
        try:
            hello = talk.receive(stream, talk.Hello)
            right = hmac.compare_digest(_bytes(hello.token), _bytes(token))
            admitted = right and hello.protocol == talk.TALK
            if admitted:
                talk.send(stream, {"protocol": talk.TALK, **facts._asdict()})
                _serve(stream, own, hello.address or client.getpeername()[0])
            else:
                talk.send(stream, {"error": f"this end speaks {talk.TALK} to who has its token"})
        except PairError as error:
            if admitted:
                talk.send(stream, {"error": str(error)})
    return admitted


def _bytes(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")


def _serve(stream: Stream, own: OwnEnd, address: str) -> None:
    """Serve one conversation, until the other side, at ``address``, is done. Raises PairError."""
    while True:
        request = talk.receive(stream, talk.PairRequest)
        if request.tcp is not None:
            tried = talk.try_port(address, request.tcp, time.monotonic() + talk.SILENCE_SECONDS)
            talk.send(stream, talk.TcpReply(tried.seconds, tried.error))
        elif request.end is not None:
            _answer(stream, request, own)
        else:
            break


def _answer(stream: Stream, request: talk.PairRequest, own: OwnEnd) -> None:
    """Connect, answer, and keep the connection until what was asked for is done."""
    other = talk.checked(request.end)
    try:
        with contextlib.closing(
            own.connection(request.device, request.port, request.gid_index)
        ) as made:
            made.connect(other)
            talk.send(stream, talk.PairReply(end=made.end))
            ready = talk.receive(stream, talk.Ready).ready
            if request.back is None:
                talk.send(stream, talk.PairReply(arrived=made.arrived_bytes()))
            elif ready:
                seconds: list[float] = []
                failure = talk.writes(made, other, min(request.back, talk.MOST_WRITES), seconds)
                talk.send(stream, talk.PairReply(seconds=tuple(seconds), failure=failure))
    except VerbsError as error:
        talk.send(stream, talk.PairReply(call=(error.call, error.errno)))
