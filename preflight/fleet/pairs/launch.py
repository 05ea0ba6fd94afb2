"""What a launch decides of a pair: which ports and GIDs are tried, over what, and whom it pairs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.base.c_numbers import leading_integer
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import uses
from preflight.fleet.pairs.records import PairError
from preflight.inputs.host_source import LaunchWords

if TYPE_CHECKING:
    from preflight.inputs.host_source import Sized

# Of the launch's ports those that other nodes connect to, as launch_services calls them.
PEERS_PORTS = ("RPC port", "metadata port", "bootstrap port")
# config.cpp of Mooncake: where an engine listens for its peers, each process on a port of its own.
ENGINE = "engine"
RANGE_VARIABLES = (("MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT"), ("MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT"))
DEFAULT_RANGE = (15000, 17000)
LARGEST_PORT = 65535
EPHEMERAL = range(32768, 61000)
LAUNCH_SECONDS = 20.0
# Of a span whose first ports all are taken nothing is learnt by looking on.
MOST_TRIED = 64

Json = dict[str, Any]


class Part(NamedTuple):
    """A launch on this node. over: rdma, or tcp where none of its processes uses RDMA.

    affinity: as in ``node_launch``. wanting: why not all that it takes can be tried, "" for none.
    ports: ``(what, first, last)``: those that other nodes connect to, any one of the span.
    """

    needs: LaunchNeeds
    over: str
    affinity: str
    ports: tuple[tuple[str, int, int], ...]


def part_of(words: LaunchWords) -> Part | None:
    """The launch as this node has it; None for none. Raises PairError and UsageError."""
    from preflight.inputs.host_source import open_host, size_within

    sized = size_within(words, open_host("/"), LAUNCH_SECONDS)
    if isinstance(sized, Unknown):
        raise PairError(sized.reason)
    if sized is None:
        return None
    from preflight.fleet.node.launch import affinity_of

    over = "rdma" if sized.needs.rdma_processes else "tcp"
    return Part(sized.needs, over, affinity_of(sized.needs) or "any", tuple(_ports(sized)))


def _ports(sized: Sized) -> Iterator[tuple[str, int, int]]:
    needs = sized.needs
    for port in needs.ports:
        if port.what in PEERS_PORTS and isinstance(port.port, int):
            yield port.what, port.port, port.port
    for service in needs.services:
        if service.kind == "dist-init" and needs.hosts > 1 and service.port:
            yield "dist-init port", service.port, service.port
    from preflight.fleet.node.launch import protocol_of

    if needs.rdma_processes or protocol_of(sized.sizing) != "":
        spans = {_engine_span(process.environment) for process in needs.processes}
        for first, last in sorted(spans):
            yield ENGINE, first, last


def _engine_span(environment: Mapping[str, str]) -> tuple[int, int]:
    """As ``ValidatePortRange`` of config.cpp: both are given and fit, or neither counts."""
    found = []
    for names, default in zip(RANGE_VARIABLES, DEFAULT_RANGE, strict=True):
        text = next((environment[name] for name in names if name in environment), None)
        found.append(default if text is None else leading_integer(text) or 0)
    first, last = found
    fits = all(1024 <= port <= LARGEST_PORT and port not in EPHEMERAL for port in found)
    return (first, last) if fits and first <= last else DEFAULT_RANGE


def wanting(rdma: RdmaFacts, needs: LaunchNeeds) -> str:
    """Why the launch has not the RDMA here that it asks for, or that is not known; "" for neither.

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


class Held(NamedTuple):
    """A TCP port that is listened on while the other side tries it."""

    what: str
    port: int


@contextlib.contextmanager
def holding(address: str, spans: tuple[tuple[str, int, int], ...]) -> Iterator[tuple[Held, ...]]:
    """Listen on a port of each span; one that somebody has is left alone, and not in the answer.

    Nobody is served: that a connection comes about is all that is asked.
    """
    held: list[Held] = []
    with contextlib.ExitStack() as open_:
        for what, first, last in spans:
            for port in range(first, min(last, first + MOST_TRIED - 1) + 1):
                try:
                    server = _listening(address, port)
                except (OSError, UnicodeError, OverflowError):
                    continue
                open_.enter_context(server)
                held.append(Held(what, server.getsockname()[1]))
                break
        yield tuple(held)


def _listening(address: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, port), family=family)
