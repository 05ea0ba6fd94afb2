"""What one end of a pair knows of itself: the ports that it takes, their GIDs, and its launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from checks.base.unknown import Unknown
from checks.rdma.port_checks import DEFAULT_MTU_BYTES
from preflight.fleet.merge.fields import WrongError
from preflight.fleet.merge.parts import rails as rails_of
from preflight.fleet.merge.parts import routes as routes_of
from preflight.fleet.merge.records import NodeRail, Route, Unread
from preflight.fleet.pairs.launch import Part
from preflight.fleet.pairs.records import Json, PairError, Port
from preflight.fleet.pairs.verbs import Connection
from preflight.fleet.rails.findings import talks
from preflight.fleet.rails.lanes import lane_of
from preflight.fleet.rails.rails import Group, Lane
from preflight.verbs.objects import VerbsError

FACTS_SECONDS = 20.0
OVER = ("rdma", "tcp")


class Used(NamedTuple):
    """A port with the GID that is taken of it: the same port may be there with another one."""

    rail: NodeRail
    gid_index: int

    @property
    def port(self) -> Port:
        mtu = self.rail.shape.mtu_bytes
        sized = mtu if isinstance(mtu, int) else None
        return Port(self.rail.shape.device, self.rail.shape.port, self.rail.gid, sized)


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
    from checks.run.reading import read_facts
    from preflight.fleet.node.launch import mtu_limit_bytes as limit_of
    from preflight.fleet.node.rails import rails, rails_in_use, routes, with_exits
    from preflight.fleet.pairs.launch import wanting
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
        rails = rails_of(facts.get("rails"), lambda shape: shape)
        routes = routes_of(facts.get("routes"))
    except WrongError as error:
        raise PairError(f"the other side's ports cannot be read: {error.args[1]}") from None
    if isinstance(rails, Unread):
        raise PairError(f"the other side could not read its ports: {rails.reason}")
    indexes = [row.get("gid_index") for row in facts["rails"]]
    used = tuple(
        Used(rail, index)
        for rail, index in zip(rails, indexes, strict=True)
        if rail.gid and type(index) is int
    )
    over, affinity, wanting = (str(facts.get(key, "")) for key in ("over", "affinity", "wanting"))
    ways = () if isinstance(routes, Unread) else routes
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
