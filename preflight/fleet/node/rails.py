"""A node's way to the others: its RDMA ports with their addresses, and its routing tables."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Mapping

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.network.routing import RoutingTables, exits
from checks.rdma.devices import Port, choose_gid
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.use import Use, port_of, uses
from checks.releases.mooncake import MooncakeRelease, release_of
from checks.run.facts import Facts
from preflight.fleet.node.records import Rail, Route

ROUTES = "/proc/net/route"
ROUTES_IPV6 = "/proc/net/ipv6_route"
# include/uapi/linux/route.h
_UP, _REJECT = 0x0001, 0x0200
# include/uapi/linux/ipv6_route.h: addresses of this host itself, which lead nowhere.
_LOCAL = 0x80000000
# A node of a large cluster has few; a router's full table is no news here.
MOST_ROUTES = 64


def rails(facts: Facts, needs: LaunchNeeds | None) -> tuple[Rail, ...] | Unknown:
    """Return every port of every RDMA device; () where there is none."""
    rdma = facts.topic("rdma")
    if isinstance(rdma, Unknown):
        return rdma
    if isinstance(rdma.nics, Unknown):
        return () if rdma.nics.absent else rdma.nics
    network = facts.topic("network")
    routing = network if isinstance(network, Unknown) else network.routing
    return tuple(with_exits(rail, routing) for rail in _rails(rdma, needs))


def with_exits(rail: Rail, routing: RoutingTables | Unknown) -> Rail:
    """Return the rail with its interface's routes, where its GID is an address of it."""
    if not isinstance(rail.gid, str) or not isinstance(rail.netdev, str) or not rail.netdev:
        return rail
    if rail.link_layer != "Ethernet":
        return rail
    if isinstance(routing, Unknown):
        return rail._replace(exits=Unknown(routing.reason))
    address = ipaddress.ip_address(rail.gid)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    found = exits(routing, str(mapped or address), rail.netdev)
    if not isinstance(found, Unknown):
        kept = [one for one in found if not one.startswith(("fe80:", "ff"))]
        found = tuple(kept[:MOST_ROUTES])
    return rail._replace(exits=found)


def _rails(rdma: RdmaFacts, needs: LaunchNeeds | None) -> Iterator[Rail]:
    taken: dict[tuple[str, int], Use] = {}
    doubt: Unknown | None = None
    found = [] if needs is None else uses(rdma, needs)
    for use in found:
        if isinstance(use.devices.names, Unknown):
            doubt = use.devices.names
        else:
            for name in use.devices.names:
                taken.setdefault((name, port_of(use.environment)), use)
    release = None if needs is None else release_of(needs.mooncake_version)
    for nic in rdma.present:
        for port in () if isinstance(nic.ports, Unknown) else nic.ports:
            use_of = taken.get((nic.name, port.number))
            takes: bool | Unknown | None = None
            if needs is not None:
                takes = doubt if use_of is None and doubt is not None else use_of is not None
            environment = (use_of or found[0]).environment if found else {}
            yield rail_of(rdma, nic, port, environment, release, takes)


def rails_in_use(rdma: RdmaFacts, needs: LaunchNeeds) -> Iterator[tuple[Rail, Use]]:
    """Yield each port that the launch takes, once for each use that takes another GID or MTU of it.

    A use whose devices are not known has none here.
    """
    release = release_of(needs.mooncake_version)
    seen: list[tuple[Rail, str]] = []
    for use in uses(rdma, needs):
        names = use.devices.names
        for nic in rdma.present:
            port = nic.port(port_of(use.environment))
            if isinstance(names, Unknown) or nic.name not in names or not isinstance(port, Port):
                continue
            rail = rail_of(rdma, nic, port, use.environment, release, True)
            mtu = use.environment.get("MC_MTU", "")
            if (rail, mtu) not in seen:
                seen.append((rail, mtu))
                yield rail, use


def rail_of(
    rdma: RdmaFacts,
    nic: Nic,
    port: Port,
    environment: Mapping[str, str],
    release: MooncakeRelease | None,
    used: bool | Unknown | None,
) -> Rail:
    """Return a port as a process with this environment takes it."""
    choice = choose_gid(port, environment, release)
    gid = choice if isinstance(choice, Unknown) else choice.gid
    mtu = _active_mtu_bytes(nic, port)
    rail = Rail(nic.name, port.number, used, port.state, port.rate, port.link_layer, mtu)
    if gid is None:
        return rail
    if isinstance(gid, Unknown):
        return rail._replace(gid_index=gid, gid_type=gid, gid=gid, netdev=gid)
    rail = rail._replace(gid_index=gid.number, gid_type=gid.kind, gid=gid.text, netdev=gid.netdev)
    interface = rdma.netdevs.get(gid.netdev) if isinstance(gid.netdev, str) else None
    if interface is None:
        return rail
    addresses = interface.addresses
    return rail._replace(
        netdev_mtu_bytes=interface.mtu_bytes,
        addresses=addresses
        if isinstance(addresses, Unknown)
        else tuple(f"{address}/{prefix}" for address, prefix in addresses),
    )


def _active_mtu_bytes(nic: Nic, port: Port) -> int | Unknown:
    ports = nic.verbs.ports
    if isinstance(ports, Unknown):
        return ports
    found = ports.get(port.number)
    return Unknown("libibverbs says nothing of it") if found is None else found.active_mtu_bytes


def routes(root: Root) -> tuple[Route, ...] | Unknown:
    """Read the main tables, IPv4 first; at most ``MOST_ROUTES`` of each.

    What other tables lead to is in each rail's ``exits``.
    """
    four = root.text(ROUTES)
    if isinstance(four, Unknown):
        return four
    six = root.text(ROUTES_IPV6)
    lines = [] if isinstance(six, Unknown) else six.splitlines()
    try:
        return (
            *list(_ipv4_routes(four.splitlines()[1:]))[:MOST_ROUTES],
            *list(_ipv6_routes(lines))[:MOST_ROUTES],
        )
    except (ValueError, IndexError) as error:
        return Unknown(f"{ROUTES}: not a routing table: {error}")


def _ipv4_routes(lines: list[str]) -> Iterator[Route]:
    """Read lines ``eth0 0001000A 00000000 0001 0 0 0 00FFFFFF …``: words in the host's order."""
    for line in lines:
        interface, destination, gateway, flags, _, _, _, mask = line.split()[:8]
        if not int(flags, 16) & _UP or int(flags, 16) & _REJECT:
            continue
        prefix = int(mask, 16).bit_count()
        via = "" if int(gateway, 16) == 0 else _ipv4(gateway)
        yield Route(f"{_ipv4(destination)}/{prefix}", via, interface)


def _ipv4(word: str) -> str:
    # The kernel prints the network's bytes as one number of its own; all that we run on are little.
    return ".".join(str(octet) for octet in struct.pack("<I", int(word, 16)))


def _ipv6_routes(lines: list[str]) -> Iterator[Route]:
    """Read lines ``destination prefix source prefix gateway metric refs use flags interface``."""
    for line in lines:
        words = line.split()
        flags = int(words[8], 16)
        if not flags & _UP or flags & (_REJECT | _LOCAL) or words[9] == "lo":
            continue
        via = "" if int(words[4], 16) == 0 else _ipv6(words[4])
        # Link-local and multicast prefixes stand on every interface and lead nowhere else.
        if words[0].startswith(("fe80", "ff00")):
            continue
        yield Route(f"{_ipv6(words[0])}/{int(words[1], 16)}", via, words[9])


def _ipv6(digits: str) -> str:
    return str(ipaddress.IPv6Address(bytes.fromhex(digits)))
