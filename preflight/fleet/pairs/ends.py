"""One end of a pair: its ports and GIDs, and what its launch decides of what is tried."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.base.written_numbers import leading_integer
from checks.rdma.facts import RdmaFacts
from checks.rdma.reach_checks import DEFAULT_MTU_BYTES
from checks.rdma.use import uses
from preflight.fleet.node.records import Rail
from preflight.fleet.pairs.talk import EndFacts, OpenPort, PairError, UsedPort
from preflight.fleet.pairs.verbs import Connection
from preflight.fleet.rails.findings import talks
from preflight.inputs.launch_words import LaunchWords
from preflight.verbs.objects import VerbsError

if TYPE_CHECKING:
    from preflight.inputs.host_source import Sized

FACTS_SECONDS = 20.0
LAUNCH_SECONDS = 20.0
# Of the launch's ports those that other nodes connect to, as launch_services calls them.
PEERS_PORTS = ("RPC port", "metadata port", "bootstrap port")
# config.cpp of Mooncake: where an engine listens for its peers, each process on a port of its own.
ENGINE = "engine"
RANGE_VARIABLES = (("MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT"), ("MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT"))
DEFAULT_RANGE = (15000, 17000)
LARGEST_PORT = 65535
EPHEMERAL = range(32768, 61000)
# Of a span whose first ports all are taken nothing is learnt by looking on.
MOST_TRIED = 64

# (what, first, last)
Span = tuple[str, int, int]


class LaunchHere(NamedTuple):
    """A launch on this node. over: rdma, or tcp where none of its processes uses RDMA.

    affinity: as in ``NodeLaunch``. spans: of the ports that other nodes connect to, any one of it.
    """

    needs: LaunchNeeds
    over: str
    affinity: str
    spans: tuple[Span, ...]


class OwnEnd(NamedTuple):
    """This end. mtu_limits: of each port in use, by device, port and GID index. spans: TCP ports of
    the launch that are held open."""

    facts: EndFacts
    mtu_limits: Mapping[tuple[str, int, int], int]
    spans: tuple[Span, ...]

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
    from checks.network.routing import read_routing
    from checks.run.facts import read_facts
    from preflight.fleet.node.launch import mtu_limit_bytes as limit_of
    from preflight.fleet.node.rails import rails, rails_in_use, routes, with_exits

    launch = launch_here(words)
    root = Root()
    facts = read_facts(root, launch.needs if launch else None, FACTS_SECONDS, ("rdma",))
    found = rails(facts, launch.needs if launch else None)
    if isinstance(found, Unknown):
        raise PairError(f"the RDMA ports of this node cannot be read: {found.reason}")
    rows: list[tuple[Rail, int]] = [(rail, mtu_limit_bytes or DEFAULT_MTU_BYTES) for rail in found]
    if launch is not None:
        rows = [
            (rail, mtu_limit_bytes or limit_of(use.environment))
            for rail, use in rails_in_use(facts.rdma, launch.needs)
        ]
    routing, main = read_routing(root), routes(root)
    own = EndFacts(
        tuple(with_exits(rail, routing) for rail, _ in rows),
        () if isinstance(main, Unknown) else main,
        launch.over if launch else "",
        launch.affinity if launch else "",
        wanting(facts.rdma, launch.needs) if launch else "",
    )
    limits = {
        (rail.device, rail.port, rail.gid_index): limit
        for rail, limit in reversed(rows)
        if isinstance(rail.gid_index, int)
    }
    return OwnEnd(own, limits, launch.spans if launch else ())


def launch_here(words: LaunchWords) -> LaunchHere | None:
    """Return the launch as this node has it; None for none. Raises PairError and UsageError."""
    from preflight.fleet.node.launch import affinity_of
    from preflight.inputs.host_source import open_host, size_within

    sized = size_within(words, open_host("/"), LAUNCH_SECONDS)
    if isinstance(sized, Unknown):
        raise PairError(sized.reason)
    if sized is None:
        return None
    over = "rdma" if sized.needs.rdma_processes else "tcp"
    return LaunchHere(sized.needs, over, affinity_of(sized.needs) or "any", tuple(_spans(sized)))


def _spans(sized: Sized) -> Iterator[Span]:
    from preflight.fleet.node.launch import protocol_of

    needs = sized.needs
    for port in needs.ports:
        if port.what in PEERS_PORTS and isinstance(port.port, int):
            yield port.what, port.port, port.port
    for service in needs.services:
        if service.kind == "dist-init" and needs.hosts > 1 and service.port:
            yield "dist-init port", service.port, service.port
    if needs.rdma_processes or protocol_of(sized.sizing) != "":
        for first, last in sorted({engine_span(one.environment) for one in needs.processes}):
            yield ENGINE, first, last


def engine_span(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return the first and last port, as ``ValidatePortRange`` of config.cpp takes them.

    Both are given and fit, or neither counts.
    """
    found = []
    for names, default in zip(RANGE_VARIABLES, DEFAULT_RANGE, strict=True):
        text = next((environment[name] for name in names if name in environment), None)
        found.append(default if text is None else leading_integer(text) or 0)
    first, last = found
    fits = all(1024 <= port <= LARGEST_PORT and port not in EPHEMERAL for port in found)
    return (first, last) if fits and first <= last else DEFAULT_RANGE


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


def pairs_of(mine: EndFacts, theirs: EndFacts, asked: str) -> Iterator[tuple[UsedPort, UsedPort]]:
    """Yield which port to try with which, equal names first.

    They matter most, should the time run out. asked: of equal names alone (same), any with any, or
    "" for as the launches pair them: from either side, as each sends.
    """
    here, there = mine.used, theirs.used
    names = [[used.rail.device for used in end] for end in (here, there)]
    if asked:
        chosen = {
            (one, other)
            for one, name in enumerate(names[0])
            for other, peer in enumerate(names[1])
            if asked == "any" or name == peer
        }
    else:
        chosen = talks(mine.kind, theirs.kind)
    by_name = sorted(sorted(chosen), key=lambda pair: names[0][pair[0]] != names[1][pair[1]])
    return ((here[one], there[other]) for one, other in by_name)


@contextlib.contextmanager
def holding(address: str, spans: tuple[Span, ...]) -> Iterator[tuple[OpenPort, ...]]:
    """Listen on a port of each span; one that somebody has is left alone, and not in the answer.

    Nobody is served: that a connection comes about is all that is asked.
    """
    held: list[OpenPort] = []
    with contextlib.ExitStack() as open_:
        for what, first, last in spans:
            for port in range(first, min(last, first + MOST_TRIED - 1) + 1):
                try:
                    server = listening(address, port)
                except (OSError, UnicodeError, OverflowError):
                    continue
                open_.enter_context(server)
                held.append(OpenPort(what, server.getsockname()[1]))
                break
        yield tuple(held)


def listening(address: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, port), family=family)
