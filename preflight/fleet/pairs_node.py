"""What one end of a pair knows of itself: its ports as its report has them, and their GIDs."""

from __future__ import annotations

from typing import Any, NamedTuple

from checks.unknown import Unknown
from preflight.fleet.fleet_records import NodeRail, Route, Unread
from preflight.fleet.merge_fields import WrongError
from preflight.fleet.merge_parts import rails as rails_of
from preflight.fleet.merge_parts import routes as routes_of
from preflight.fleet.pairs_records import Json, PairError, Port
from preflight.fleet.pairs_verbs import Connection, pair_library
from preflight.fleet.rails import Lane
from preflight.fleet.rails_lanes import lane_of

FACTS_SECONDS = 20.0


class Known(NamedTuple):
    """A node's ports with a GID, and the lanes of them; both ends read the same form."""

    rails: tuple[NodeRail, ...]
    routes: tuple[Route, ...]

    def port(self, rail: NodeRail) -> Port:
        mtu = rail.shape.mtu_bytes
        sized = mtu if isinstance(mtu, int) else None
        return Port(rail.shape.device, rail.shape.port, rail.gid, sized)

    def lane(self, rail: NodeRail) -> Lane:
        return lane_of(rail, self.routes)


def own_facts() -> Json:
    """``rails`` and ``routes`` of this machine, as a report has them. Raises PairError."""
    from checks.reading import read_facts
    from checks.root import Root
    from preflight.check.plain_data import plain
    from preflight.fleet.node_rails import rails, routes

    root = Root()
    found = rails(read_facts(root, None, FACTS_SECONDS, ("rdma",)), None)
    if isinstance(found, Unknown):
        raise PairError(f"the RDMA ports of this node cannot be read: {found.reason}")
    ways = routes(root)
    rows = plain(ways) if isinstance(ways, Unknown) else [list(way) for way in ways]
    return {"rails": plain(found), "routes": rows}


def known(facts: Json) -> Known:
    """Of ``own_facts``, or what the other side says its are. Raises PairError."""
    try:
        rails = rails_of(facts.get("rails"), lambda shape: shape)
        routes = routes_of(facts.get("routes"))
    except WrongError as error:
        raise PairError(f"the other side's ports cannot be read: {error.args[1]}") from None
    if isinstance(rails, Unread):
        raise PairError(f"the other side could not read its ports: {rails.reason}")
    with_gid = tuple(rail for rail in rails if rail.gid)
    return Known(with_gid, () if isinstance(routes, Unread) else routes)


def gid_index(facts: Json, device: Any, port: Any) -> int:
    """That of the GID in use on one's own port. Raises PairError."""
    for rail in facts["rails"]:
        if (rail["device"], rail["port"]) == (device, port) and isinstance(rail["gid_index"], int):
            return int(rail["gid_index"])
    raise PairError(f"{str(device)[:40]} port {str(port)[:10]} has no GID in use here")


def connection(facts: Json, device: str, port: int, mtu_limit_bytes: int) -> Connection:
    """A queue pair of one's own port. Raises PairError and VerbsError."""
    index = gid_index(facts, device, port)
    try:
        loaded = pair_library()
    except (OSError, AttributeError) as error:
        raise PairError(f"libibverbs cannot be used here: {error}") from None
    return Connection(loaded, device, port, index, mtu_limit_bytes)
