"""One end of a pair: its ports and GIDs, and what its launch decides of what is tried."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.base.c_numbers import leading_integer
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import RdmaFacts
from checks.rdma.reach_checks import DEFAULT_MTU_BYTES
from checks.rdma.use import uses
from preflight.fleet.base.decode import WrongError, decoder
from preflight.fleet.node.records import Rail, Route
from preflight.fleet.pairs.records import Json, PairError, Port
from preflight.fleet.pairs.verbs import Connection
from preflight.fleet.rails.findings import talks
from preflight.fleet.rails.rails import Group, Lane, lane_of
from preflight.inputs.launch_words import LaunchWords
from preflight.verbs.objects import VerbsError

if TYPE_CHECKING:
    from preflight.inputs.host_source import Sized


FACTS_SECONDS = 20.0
OVER = ("rdma", "tcp")


class Used(NamedTuple):
    """A port with the GID that is taken of it: the same port may be there with another one."""

    rail: Rail
    gid_index: int

    @property
    def port(self) -> Port:
        mtu = self.rail.mtu_bytes
        sized = mtu if isinstance(mtu, int) else None
        return Port(self.rail.device, self.rail.port, str(self.rail.gid), sized)


class Known(NamedTuple):
    """A node's ports with a GID; both ends read the same form. over, affinity: as in ``Part``; ""
    where no launch says it. wanting: what stands in the way of the launch's own RDMA there."""

    used: tuple[Used, ...]
    routes: tuple[Route, ...]
    over: str
    affinity: str
    wanting: str

    def lane(self, used: Used) -> Lane:
        return lane_of(used.rail, self.routes)

    @property
    def group(self) -> Group:
        return Group(tuple(map(self.lane, self.used)), (0,), self.affinity)


def own_facts(part: Part | None, mtu_limit_bytes: int | None) -> Json:
    """``rails``, ``routes`` and the launch of this machine, as one end tells the other.

    mtu_limit_bytes: None for the launch's own MC_MTU. Raises PairError.
    """
    from checks.base.root import Root
    from checks.network.routing import read_routing
    from checks.run.facts import read_facts
    from preflight.fleet.node.launch import mtu_limit_bytes as limit_of
    from preflight.fleet.node.rails import rails, rails_in_use, routes, with_exits
    from preflight.render.plain_data import plain

    root = Root()
    needs = None if part is None else part.needs
    facts = read_facts(root, needs, FACTS_SECONDS, ("rdma",))
    found = rails(facts, needs)
    if isinstance(found, Unknown):
        raise PairError(f"the RDMA ports of this node cannot be read: {found.reason}")
    most = mtu_limit_bytes or DEFAULT_MTU_BYTES
    routing = read_routing(root)
    rows = [{**plain(with_exits(rail, routing)), "mtu_limit_bytes": most} for rail in found]
    lacks = ""
    if needs is not None:
        rows = [
            {
                **plain(with_exits(rail, routing)),
                "mtu_limit_bytes": mtu_limit_bytes or limit_of(use.environment),
            }
            for rail, use in rails_in_use(facts.rdma, needs)
        ]
        lacks = wanting(facts.rdma, needs)
    ways = routes(root)
    return {
        "rails": rows,
        "routes": plain(ways) if isinstance(ways, Unknown) else [list(way) for way in ways],
        "over": "" if part is None else part.over,
        "affinity": "" if part is None else part.affinity,
        "wanting": lacks,
    }


def known(facts: Json) -> Known:
    """Of ``own_facts``, or what the other side says its are. Raises PairError."""
    try:
        rails = decoder(tuple[Rail, ...] | Unknown)(facts.get("rails"), "rails")
        routes = decoder(tuple[Route, ...] | Unknown)(facts.get("routes"), "routes")
    except WrongError as error:
        raise PairError(f"the other side's ports cannot be read: {error.args[0]}") from None
    if isinstance(rails, Unknown):
        raise PairError(f"the other side could not read its ports: {rails.reason}")
    used = tuple(
        Used(rail, rail.gid_index)
        for rail in rails
        if isinstance(rail.gid, str) and isinstance(rail.gid_index, int)
    )
    over, affinity, wanting = (str(facts.get(key, "")) for key in ("over", "affinity", "wanting"))
    ways = () if isinstance(routes, Unknown) else routes
    return Known(used, ways, over if over in OVER else "", affinity, wanting)


def pairs_of(mine: Known, theirs: Known, asked: str) -> Iterator[tuple[Used, Used]]:
    """Whom to try with whom, equal names first: they matter most, should the time run out.

    asked: of equal names alone (same), any with any, or "" for as the launches pair them: from
    either side, as each sends.
    """
    one, other = mine.group, theirs.group
    if asked:
        chosen = {
            (here, there)
            for here, lane in enumerate(one.lanes)
            for there, peer in enumerate(other.lanes)
            if asked == "any" or lane.device == peer.device
        }
    else:
        chosen = talks(one, other)

    def order(pair: tuple[int, int]) -> tuple[bool, int, int]:
        here, there = pair
        return one.lanes[here].device != other.lanes[there].device, here, there

    for here, there in sorted(chosen, key=order):
        yield mine.used[here], theirs.used[there]


def connection(facts: Json, device: Any, port: Any, gid_index: Any) -> Connection:
    """A queue pair of one's own port, with a GID in use on it. Raises PairError and VerbsError."""
    wanted = (device, port, gid_index)
    for row in facts["rails"]:
        if type(gid_index) is int and (row["device"], row["port"], row["gid_index"]) == wanted:
            break
    else:
        raise PairError(f"{str(device)[:40]} port {str(port)[:10]} has no such GID in use here")
    try:
        return Connection(device, port, gid_index, row["mtu_limit_bytes"])
    except VerbsError:
        raise
    except (OSError, AttributeError) as error:
        raise PairError(f"libibverbs cannot be used here: {error}") from None


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
