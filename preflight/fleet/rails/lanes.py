"""The lanes of a node, of what its report says of its RDMA ports, addresses and routes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_network

from checks.base.unknown import Unknown
from preflight.fleet.merge.rails import subnet_of
from preflight.fleet.node.records import Rail, Route
from preflight.fleet.rails.rails import INFINIBAND, MAIN_ALONE, Lane, gid_network
from preflight.fleet.reports.records import NodeRow

NO_GID = "Mooncake takes no GID of it"


def lanes_of(row: NodeRow) -> tuple[Lane, ...] | Unknown:
    """Of each port that the launch takes; of each there is, where no launch says which."""
    if isinstance(row.rails, Unknown):
        return row.rails
    routes = () if isinstance(row.routes, Unknown) else row.routes
    return tuple(lane_of(rail, routes) for rail in row.rails if rail.used is not False)


def lane_of(rail: Rail, routes: tuple[Route, ...]) -> Lane:
    """Of one port; what is missing makes its network Unknown."""
    link_layer, gid_type = rail.link_layer, rail.gid_type
    named = link_layer if isinstance(link_layer, str) else ""
    network = _network_of(rail)
    if not isinstance(link_layer, str):
        network = Unknown(_why(link_layer, "the link layer"))
    elif not isinstance(gid_type, str) and named != INFINIBAND:
        network = Unknown(_why(gid_type, "the type of its GID"))
    exits, doubt = _ways_out(rail, routes)
    if not isinstance(network, str):
        exits = ()
    kind = gid_type if isinstance(gid_type, str) else ""
    others = tuple(one for one in exits if one != network)
    return Lane(rail.device, rail.port, named, kind, network, others, doubt)


def _ways_out(rail: Rail, routes: tuple[Route, ...]) -> tuple[tuple[str, ...], str]:
    """By all tables where the report has them; else by the main table, and what is in doubt."""
    if rail.exits is None:
        doubt = MAIN_ALONE
    elif isinstance(rail.exits, Unknown):
        doubt = f"{MAIN_ALONE}: {rail.exits.reason}"
    else:
        return tuple(sorted(filter(_is_network, rail.exits))), ""
    netdev = rail.netdev
    return (_exits(routes, netdev) if isinstance(netdev, str) else ()), doubt


def _why(fact: str | Unknown | None, what: str) -> str:
    return f"{what} was not read: {fact.reason}" if isinstance(fact, Unknown) else NO_GID


def _network_of(rail: Rail) -> str | Unknown:
    if not isinstance(rail.gid, str):
        return Unknown(NO_GID)
    layer = rail.link_layer
    if isinstance(layer, str) and layer != INFINIBAND:
        for written in rail.known_addresses:
            if written.startswith(f"{rail.gid}/"):
                plain = subnet_of(written)
                if plain is not None:
                    return plain
    return gid_network(layer if isinstance(layer, str) else "", rail.gid, rail.known_addresses)


@lru_cache(maxsize=1 << 14)
def _exits(routes: Sequence[Route], interface: str) -> tuple[str, ...]:
    """What is reached out of an interface; IPv6's own link is nobody's network."""
    found = {
        route.destination
        for route in routes
        if route.interface == interface and not route.destination.startswith(("fe80:", "ff"))
    }
    return tuple(sorted(filter(_is_network, found)))


@lru_cache(maxsize=1 << 14)
def _is_network(written: str) -> bool:
    """A report may say anything."""
    try:
        ip_network(written, strict=False)
    except ValueError:
        return False
    return True
