"""Which NIC of one node reaches which of another, told from addresses, prefixes and routes alone.

Nodes whose ports lie in the same networks behave alike and are one group: what is compared is
pairs of groups, so a fleet of thousands costs as much as its few kinds of nodes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from checks.base.unknown import Unknown
from checks.rdma.devices import ROCE_1
from preflight.check.rails import Rail
from preflight.fleet.base.text import grouped
from preflight.fleet.reports.rows import NodeRow

INFINIBAND = "InfiniBand"
UNREAD = "what is routed out of it was not read"
NO_GID = "Mooncake takes no GID of it"


class Lane(NamedTuple):
    """What decides whom one port of a node reaches.

    network: that of the GID in use: ``10.0.1.0/24``, or the 64-bit subnet prefix of an InfiniBand
    port. exits: networks that have a route out of the port's interface, without its own. Unknown:
    a fact is missing. Addresses themselves are no part of it: like nodes have equal lanes.
    doubt: why exits may lack some, "" for none.
    """

    device: str
    port: int
    link_layer: str
    gid_type: str
    network: str | Unknown
    exits: tuple[str, ...] = ()
    doubt: str = ""


class Reach(Enum):
    DIRECT = "direct"  # one network
    ROUTED = "routed"  # by a gateway, there and back
    UNROUTED = "no route"  # and yet both may lie on one link
    NONE = "none"
    UNKNOWN = "unknown"


class Way(NamedTuple):
    """reason: why not, or why it is not known."""

    reach: Reach
    reason: str = ""


class NodeKind(NamedTuple):
    """Nodes with equal lanes. affinity: as in ``LaunchShare``, "" where no launch says it.

    number: among the kinds of the fleet, from 0.
    """

    lanes: tuple[Lane, ...]
    nodes: tuple[str, ...]
    affinity: str = ""
    number: int = 0


class KindPair(NamedTuple):
    """Two kinds, or one within itself. ways: [lane of one][lane of the other]."""

    one: NodeKind
    other: NodeKind
    ways: tuple[tuple[Way, ...], ...]

    def pair(self, at: int, to: int) -> LanePair:
        return LanePair(self.one.lanes[at], self.other.lanes[to], self.ways[at][to])

    @property
    def pairs(self) -> list[LanePair]:
        """Return every lane of one kind with every lane of the other."""
        return [
            self.pair(at, to)
            for at in range(len(self.one.lanes))
            for to in range(len(self.other.lanes))
        ]


class LanePair(NamedTuple):
    """A port of one kind of nodes, one of the other, and the way between them."""

    mine: Lane
    theirs: Lane
    way: Way


def lanes_of(row: NodeRow) -> tuple[Lane, ...] | Unknown:
    """Return the lane of each port that the launch takes; of all, where no launch says which."""
    if isinstance(row.rails, Unknown):
        return row.rails
    return tuple(map(lane_of, row.taken_rails))


def lane_of(rail: Rail) -> Lane:
    """Return the lane of one port; what is missing makes its network Unknown."""
    layer = rail.link_layer if isinstance(rail.link_layer, str) else ""
    kind = rail.gid_type if isinstance(rail.gid_type, str) else ""
    found = gid_network(layer, rail.gid, rail.known_addresses)
    if not isinstance(rail.link_layer, str):
        found = Unknown(_why(rail.link_layer, "the link layer"))
    elif not isinstance(rail.gid_type, str) and layer != INFINIBAND:
        found = Unknown(_why(rail.gid_type, "the type of its GID"))
    doubt, exits = UNREAD, tuple[str, ...]()
    if isinstance(rail.exits, Unknown):
        doubt = f"{UNREAD}: {rail.exits.reason}"
    elif rail.exits is not None:
        doubt, exits = "", tuple(sorted(one for one in rail.exits if network(one) is not None))
    others = tuple(one for one in exits if one != found) if isinstance(found, str) else ()
    return Lane(rail.device, rail.port, layer, kind, found, others, doubt)


def _why(fact: Unknown | None, what: str) -> str:
    return NO_GID if fact is None else f"{what} was not read: {fact.reason}"


def gid_network(link_layer: str, gid: object, addresses: Iterable[str]) -> str | Unknown:
    """Return the network that a port speaks in: of the address in its GID, by its interface's
    prefix.

    gid: an IPv4 address, or eight groups of hexadecimal digits. addresses: those of the interface,
    as ``10.0.0.1/24``.
    """
    if not isinstance(gid, str) or not gid:
        return Unknown(NO_GID)
    try:
        given = ipaddress.ip_address(gid)
    except ValueError:
        return Unknown(f"{gid!r} is no GID")
    if link_layer == INFINIBAND:
        if given.version == 4:
            return Unknown(f"{gid} is no GID of an InfiniBand port")
        return str(ipaddress.IPv6Network((int(given) >> 64 << 64, 64)).network_address)
    address = (given.ipv4_mapped or given) if isinstance(given, ipaddress.IPv6Address) else given
    if address.is_link_local:
        return Unknown("the GID is link-local: it tells no network")
    for written in addresses:
        try:
            interface = ipaddress.ip_interface(written)
        except ValueError:
            continue
        if interface.ip == address:
            return str(interface.network)
    # Without the address: like nodes are to have equal lanes.
    return Unknown("the GID's address is on no interface here: its prefix is not known")


def node_kinds(nodes: Iterable[tuple[str, Sequence[Lane], str]]) -> list[NodeKind]:
    """Return nodes (name, lanes, affinity) by what they have, the largest kind first."""
    found = grouped(((tuple(lanes), affinity), node) for node, lanes, affinity in nodes)
    largest_first = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        NodeKind(lanes, tuple(held), affinity, number)
        for number, ((lanes, affinity), held) in enumerate(largest_first)
    ]


def meetings(found: Sequence[NodeKind]) -> list[KindPair]:
    """Return each pair of kinds once, and each kind within itself where it has two nodes."""
    return [
        KindPair(one, other, tuple(tuple(way(a, b) for b in other.lanes) for a in one.lanes))
        for at, one in enumerate(found)
        for other in found[at:]
        if (one is not other or len(one.nodes) > 1) and one.lanes and other.lanes
    ]


def way(one: Lane, other: Lane) -> Way:
    """Return the way between two lanes; the order of the two changes only the reason's words."""
    if one.link_layer != other.link_layer:
        return Way(Reach.NONE, f"{one.link_layer} on one side, {other.link_layer} on the other")
    if isinstance(one.network, Unknown):
        return Way(Reach.UNKNOWN, one.network.reason)
    if isinstance(other.network, Unknown):
        return Way(Reach.UNKNOWN, other.network.reason)
    if one.network == other.network and one.gid_type == other.gid_type:
        return Way(Reach.DIRECT)
    if one.link_layer == INFINIBAND:
        # Routers between InfiniBand subnets exist, and no file of a host shows them.
        return Way(Reach.UNKNOWN, f"InfiniBand subnets {one.network} and {other.network}")
    if one.gid_type != other.gid_type:
        return Way(Reach.NONE, f"GIDs of {one.gid_type} and of {other.gid_type}")
    mine, theirs = network(one.network), network(other.network)
    assert mine is not None
    assert theirs is not None
    if mine.version != theirs.version:
        return Way(Reach.NONE, f"IPv{mine.version} and IPv{theirs.version}")
    if mine.overlaps(theirs):
        # Who takes whom for a neighbour depends on the single address.
        return Way(Reach.UNKNOWN, f"prefixes differ: {mine} and {theirs}")
    if one.gid_type == ROCE_1:
        return Way(Reach.NONE, f"{mine} and {theirs}: RoCE v1 is not routed")
    there = any(covers(leads, theirs) for leads in one.exits)
    back = any(covers(leads, mine) for leads in other.exits)
    if there and back:
        return Way(Reach.ROUTED)
    if there or back:
        missing, target = (other, mine) if there else (one, theirs)
        return Way(Reach.UNROUTED, f"{missing.device} has no route back to {target}")
    return Way(Reach.UNROUTED, f"no route between {mine} and {theirs}")


Network = IPv4Network | IPv6Network


@lru_cache(maxsize=1 << 16)
def network(written: str) -> Network | None:
    """Return the network that is written; None for what is none."""
    try:
        return ip_network(written, strict=False)
    except ValueError:
        return None


def covers(written: str, wanted: Network) -> bool:
    """Return whether a route to ``written`` leads to ``wanted``."""
    found = network(written)
    if found is None or found.version != wanted.version:
        return False
    return wanted.subnet_of(found)  # type: ignore[arg-type]
