"""Which node's port is in another network than the same port of the others, or has no way to it.

Told from addresses, prefixes and routes alone; ``fleet measure`` tries whether packets get through.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from checks.framework.unknown import Unknown
from checks.rdma.devices import ROCE_1
from preflight.base.one_line import clean
from preflight.base.plain_data import fields
from preflight.fleet.base.decode import Json, Unread
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import nodes_text, plural
from preflight.fleet.reports.answers import FleetAnswer
from preflight.fleet.reports.rows import (
    STATUSES,
    FleetFinding,
    NodeRow,
    OnNodes,
    Rows,
    Unusable,
    nodes_object,
)
from preflight.report.machine import Rail
from preflight.verdict.report import fold as fold_words

INFINIBAND = "InfiniBand"
UNREAD = "what is routed out of it was not read"
NO_GID = "Mooncake takes no GID of it"
# Without a route out of a port's interface, Linux looks for the address on its very link.
UNLESS = ", unless both lie on one link{}: measure --serve there and --to here tells"
MOST_NAMED = 3


class Lane(NamedTuple):
    """The facts that decide which ports one port of a node reaches; like nodes have equal lanes.

    Attributes:
        network: Of the GID in use: ``10.0.1.0/24``, or the 64-bit subnet prefix of an InfiniBand
            port; Unknown if a fact is missing.
        exits: Other networks with a route out of the port's interface.
        doubt: Why exits may lack some, or "".
    """

    device: str
    port: int
    link_layer: str
    gid_type: str
    network: str | Unknown
    exits: tuple[str, ...] = ()
    doubt: str = ""

    @property
    def name(self) -> str:
        """``mlx5_0``, or ``mlx5_0:2`` for a port that is not the first."""
        return self.device if self.port == 1 else f"{self.device}:{self.port}"


class Reach(Enum):
    """Whether packets get from one lane to another, and how."""

    DIRECT = "direct"  # one network
    ROUTED = "routed"  # by a gateway, there and back
    UNROUTED = "no route"  # and yet both may lie on one link
    NONE = "none"
    UNKNOWN = "unknown"


class Way(NamedTuple):
    """How one lane reaches another.

    Attributes:
        reason: Why it does not, or why that is not known; else "".
    """

    reach: Reach
    reason: str = ""


def rail_answer(rows_read: Iterable[NodeRow], unusable: Sequence[Unusable]) -> FleetAnswer:
    """Say which nodes' RDMA ports do not reach the same port of other nodes.

    Args:
        rows_read: One a node; a row that does not describe its machine is left out.
        unusable: Texts that are no reports. With any, or without two nodes to compare, the status
            is not pass.
    """
    rows = {row.name: row for row in rows_read if row.whole}
    rows = {name: rows[name] for name in in_order(rows)}

    def place(on_nodes: OnNodes) -> tuple[object, ...]:
        finding = on_nodes.finding
        return STATUSES.index(finding.status), len(on_nodes.nodes), finding.check, finding.have

    findings, table = sorted(rail_findings(rows), key=place), rail_table(rows)
    lanes = [(rail, *each) for rail, of_rail in table.items() for each in of_rail.items()]
    compared = len({name for *_, nodes in lanes for name in nodes}) > 1
    verdict = f"{plural(len(rows), 'node')}, {plural(len(table), 'rail')}"
    if not compared:
        verdict += ": no two nodes with RDMA ports to compare"
    if named := {name for finding in findings for name in finding.nodes}:
        verdict += f": {plural(len(named), 'node')} not known to be reached on each"
    if lost := sum(text.times for text in unusable):
        verdict += f"; {lost} reports cannot be used (fleet merge says why)"
    return FleetAnswer(
        findings,
        verdict,
        {"not_usable": lost, "rails": [_rail_object(*each) for each in lanes]},
        ("rail", "GID", "network", "nodes"),
        [_rail_cells(*each) for each in lanes],
        unsure=bool(unusable) or not compared,
    )


def rail_table(rows: Rows) -> dict[str, dict[Lane, list[str]]]:
    """Return port name -> lane -> nodes, for the ports that launches take; all without launch."""
    lanes_by_port: dict[str, dict[Lane, list[str]]] = {}
    for name, row in rows.items():
        for rail in row.taken_rails:
            lane = lane_of(rail)
            lanes_by_port.setdefault(lane.name, {}).setdefault(lane, []).append(name)
    return lanes_by_port


def rail_findings(rows: Rows) -> Iterator[OnNodes]:
    """Yield for each reason the nodes with a port that does not reach the same port of most nodes.

    Nodes whose ports were not read are yielded last.

    A port that no other node has is compared with every port of the other nodes. If two networks
    have equally many nodes, the nodes of both are named.

    Args:
        rows: Of nodes with a whole report.
    """
    table = rail_table(rows)
    wrong: dict[str, list[tuple[Lane, Lane, Way]]] = {}
    usual = {rail: _usual(lanes) for rail, lanes in table.items()}
    for rail, lanes in table.items():
        holders = {name for nodes in lanes.values() for name in nodes}
        alone = len(holders) == 1
        for lane, nodes in lanes.items():
            # Mooncake pairs a name that no other node has with any.
            others = (peer for peer in usual.values() if set(table[peer.name][peer]) - holders)
            first: tuple[Lane, Lane, Way] | None = None
            for peer in others if alone else [usual[rail]]:
                to_peer = way(peer, lane)
                first = first or (lane, peer, to_peer)
                if to_peer.reach in (Reach.DIRECT, Reach.ROUTED):
                    break
            else:
                if first is None:
                    continue
                _, peer, to_peer = first
                for name in nodes:
                    wrong.setdefault(name, []).append(first)
                as_many = len(nodes) == len(lanes.get(peer, ()))
                tie = as_many and to_peer.reach is not Reach.UNKNOWN
                for name in lanes[peer] if tie and not alone else ():
                    wrong.setdefault(name, []).append((peer, lane, to_peer))
    nodes_by_finding: dict[FleetFinding, dict[str, None]] = {}
    for name, ways in wrong.items():
        for finding in _node_findings(ways, len(rows[name].taken_rails)):
            nodes_by_finding.setdefault(finding, {})[name] = None
    for name, row in rows.items():
        if isinstance(row.rails, Unknown):
            nodes_by_finding.setdefault(_unknown("RDMA ports", row.rails.reason), {})[name] = None
    yield from (OnNodes(finding, in_order(names)) for finding, names in nodes_by_finding.items())


def _usual(lanes: dict[Lane, list[str]]) -> Lane:
    """Return the lane of most nodes, with a known network if any has one."""
    return max(lanes, key=lambda lane: (isinstance(lane.network, str), len(lanes[lane])))


def _node_findings(ways: Sequence[tuple[Lane, Lane, Way]], ports: int) -> Iterator[FleetFinding]:
    """Yield the findings on one node's ports.

    Args:
        ways: (the port's lane, the other nodes' lane, the way between) for each port without a
            known way.
        ports: How many the node uses.
    """
    unknown = [triple for triple in ways if triple[2].reach is Reach.UNKNOWN]
    unrouted = [triple for triple in ways if triple[2].reach is Reach.UNROUTED]
    shut = [triple for triple in ways if triple[2].reach is Reach.NONE]
    no_port_left = len({lane.name for lane, *_ in (*unrouted, *shut)}) == ports
    check = "fleet.rail-apart" if no_port_left else "fleet.rail-same"
    text = "transfers that pick it wait for the retries to end, then take another"
    if no_port_left:
        text = "no transfer gets through between it and the other nodes"
    need = "a way to the same port of the others"
    if unrouted:
        doubts = dict.fromkeys(lane.doubt for *lanes, _ in unrouted for lane in lanes if lane.doubt)
        more = "".join(f", or a route does ({doubt})" for doubt in doubts)
        unless = UNLESS.format(more)
        yield FleetFinding(check, "unknown", *_ports(unrouted), need, text + unless)
    if shut:
        yield FleetFinding(check, "fail" if no_port_left else "warn", *_ports(shut), need, text)
    if unknown:
        yield _unknown(*_ports(unknown))


def _unknown(subject: str, reason: str) -> FleetFinding:
    text = "which nodes its transfers reach is not known"
    return FleetFinding("fleet.rail-unknown", "unknown", subject, reason, "", text)


def _ports(ways: Sequence[tuple[Lane, Lane, Way]]) -> tuple[str, str]:
    """Return the names of a node's ports as one text, and why they do not reach the others."""
    names = fold_words(list(dict.fromkeys(lane.name for lane, *_ in ways)))
    each = list(dict.fromkeys(between.reason for *_, between in ways))
    more = f", and {len(each) - MOST_NAMED} more" if len(each) > MOST_NAMED else ""
    return names, f"{', '.join(each[:MOST_NAMED])}{more}"


def _rail_object(rail: str, lane: Lane, nodes: Sequence[str]) -> Json:
    """Return one of the rails of ``schemas/rails-v1.schema.json``."""
    of_lane = fields(lane, "link_layer", "gid_type", "network")
    more = {"routes": list(lane.exits), "doubt": lane.doubt or None}
    return {"rail": rail, **of_lane, **more, "nodes": nodes_object(nodes)}


def _rail_cells(rail: str, lane: Lane, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return one lane of a rail as cells of a row: rail, GID type or link layer, network, nodes."""
    network = lane.network
    network = network if isinstance(network, str) else f"unknown: {network.reason}"
    return clean(rail), lane.gid_type or lane.link_layer, clean(network), nodes_text(nodes)


def lane_of(rail: Rail) -> Lane:
    """Return the lane of one port; a missing fact makes its network Unknown."""
    layer = rail.link_layer if isinstance(rail.link_layer, str) else ""
    gid_type = rail.gid_type if isinstance(rail.gid_type, str) else ""
    own_network = gid_network(layer, rail.gid, rail.known_addresses)
    if not isinstance(rail.link_layer, str):
        own_network = Unread(_why(rail.link_layer, "the link layer"))
    elif not isinstance(rail.gid_type, str) and layer != INFINIBAND:
        own_network = Unread(_why(rail.gid_type, "the type of its GID"))
    doubt, exits = UNREAD, tuple[str, ...]()
    if isinstance(rail.exits, Unknown):
        doubt = f"{UNREAD}: {rail.exits.reason}"
    elif rail.exits is not None:
        doubt, exits = "", tuple(sorted(route for route in rail.exits if network(route)))
    is_known = isinstance(own_network, str)
    others = tuple(route for route in exits if is_known and route != own_network)
    return Lane(rail.device, rail.port, layer, gid_type, own_network, others, doubt)


def _why(fact: Unknown | None, what: str) -> str:
    return NO_GID if fact is None else f"{what} was not read: {fact.reason}"


def gid_network(link_layer: str, gid: object, addresses: Iterable[str]) -> str | Unknown:
    """Return the network of a port's GID.

    For InfiniBand it is the GID's 64-bit subnet prefix, otherwise the network of the same address
    in ``addresses``.

    Args:
        gid: An IPv4 address, or eight groups of hexadecimal digits.
        addresses: Those of the port's interface, as ``10.0.0.1/24``.

    Returns:
        Unknown if ``gid`` or ``addresses`` do not tell it.
    """
    if not isinstance(gid, str) or not gid:
        return Unread(NO_GID)
    try:
        gid_address = ipaddress.ip_address(gid)
    except ValueError:
        return Unread(f"{gid!r} is no GID")
    if link_layer == INFINIBAND:
        if gid_address.version == 4:
            return Unread(f"{gid} is no GID of an InfiniBand port")
        return str(ipaddress.IPv6Network((int(gid_address) >> 64 << 64, 64)).network_address)
    mapped = gid_address.ipv4_mapped if isinstance(gid_address, ipaddress.IPv6Address) else None
    address = mapped or gid_address
    if address.is_link_local:
        return Unread("the GID is link-local: it tells no network")
    for written in addresses:
        try:
            interface = ipaddress.ip_interface(written)
        except ValueError:
            continue
        if interface.ip == address:
            return str(interface.network)
    # Without the address: like nodes are to have equal lanes.
    return Unread("the GID's address is on no interface here: its prefix is not known")


def way(lane: Lane, other: Lane) -> Way:
    """Return the way between two lanes; their order changes only the reason's words."""
    if lane.link_layer != other.link_layer:
        return Way(Reach.NONE, f"{lane.link_layer} on one side, {other.link_layer} on the other")
    if isinstance(lane.network, Unknown):
        return Way(Reach.UNKNOWN, lane.network.reason)
    if isinstance(other.network, Unknown):
        return Way(Reach.UNKNOWN, other.network.reason)
    if lane.network == other.network and lane.gid_type == other.gid_type:
        return Way(Reach.DIRECT)
    if lane.link_layer == INFINIBAND:
        # Routers between InfiniBand subnets exist, and no file of a host shows them.
        return Way(Reach.UNKNOWN, f"InfiniBand subnets {lane.network} and {other.network}")
    if lane.gid_type != other.gid_type:
        return Way(Reach.NONE, f"GIDs of {lane.gid_type} and of {other.gid_type}")
    mine, theirs = network(lane.network), network(other.network)
    assert mine is not None
    assert theirs is not None
    if mine.version != theirs.version:
        return Way(Reach.NONE, f"IPv{mine.version} and IPv{theirs.version}")
    if mine.overlaps(theirs):
        # Who takes whom for a neighbour depends on the single address.
        return Way(Reach.UNKNOWN, f"prefixes differ: {mine} and {theirs}")
    if lane.gid_type == ROCE_1:
        return Way(Reach.NONE, f"{mine} and {theirs}: RoCE v1 is not routed")
    there = any(covers(leads, theirs) for leads in lane.exits)
    back = any(covers(leads, mine) for leads in other.exits)
    if there and back:
        return Way(Reach.ROUTED)
    if there or back:
        missing, target = (other, mine) if there else (lane, theirs)
        return Way(Reach.UNROUTED, f"{missing.device} has no route back to {target}")
    return Way(Reach.UNROUTED, f"no route between {mine} and {theirs}")


Network = IPv4Network | IPv6Network


@lru_cache(maxsize=1 << 16)
def network(written: str) -> Network | None:
    """Return the network in a text as ``10.0.0.1/24``, None if the text is none."""
    try:
        return ip_network(written, strict=False)
    except ValueError:
        return None


def covers(written: str, wanted: Network) -> bool:
    """Return whether a route to ``written`` leads to ``wanted``."""
    target = network(written)
    alike = target is not None and target.version == wanted.version
    return alike and wanted.subnet_of(target)  # type: ignore[arg-type]
