"""A host's RDMA ports as others see them: the address that each speaks from, and its ways out."""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.network.facts import RoutingTables, exits
from checks.rdma.devices import Port, choose_gid
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.use import Use, port_of, uses
from checks.releases.mooncake import MooncakeRelease, release_of
from checks.run.facts import Facts

# A node of a large cluster has few; a router's full table is no news here.
MOST_ROUTES = 64


class Rail(NamedTuple):
    """One port of an RDMA device, and the address that it speaks from.

    used: Mooncake takes this device for the launch; None if no launch says so. state, rate,
    link_layer: the kernel's words. mtu_bytes: the active MTU. gid_index, gid_type, gid: those
    that Mooncake takes, None if it takes none. netdev: the interface behind the GID, "" without.
    addresses: ``10.0.0.1/24``, those of the interface. exits: networks with a route out of that
    interface for the GID's address, by all tables in the order of ``ip rule``; None without a
    GID, and for an InfiniBand port.
    """

    device: str
    port: int
    used: bool | Unknown | None = None
    state: str | Unknown | None = None
    rate: str | Unknown | None = None
    link_layer: str | Unknown | None = None
    mtu_bytes: int | Unknown | None = None
    gid_index: int | Unknown | None = None
    gid_type: str | Unknown | None = None
    gid: str | Unknown | None = None
    netdev: str | Unknown | None = ""
    netdev_mtu_bytes: int | Unknown | None = None
    addresses: tuple[str, ...] | Unknown = ()
    exits: tuple[str, ...] | Unknown | None = None

    @property
    def known_addresses(self) -> tuple[str, ...]:
        return () if isinstance(self.addresses, Unknown) else self.addresses


def rails(facts: Facts, needs: LaunchNeeds | None) -> tuple[Rail, ...] | Unknown:
    """Return every port of every RDMA device; () without a device."""
    rdma = facts.topic("rdma")
    if isinstance(rdma, Unknown):
        return rdma
    if isinstance(rdma.nics, Unknown):
        return () if rdma.nics.absent else rdma.nics
    network = facts.topic("network")
    routing = network if isinstance(network, Unknown) else network.routing
    return tuple(with_exits(rail, routing) for rail in _rails(rdma, needs))


def with_exits(rail: Rail, routing: RoutingTables | Unknown) -> Rail:
    """Return the rail with its interface's routes, if its GID is an address of that interface."""
    named = isinstance(rail.netdev, str) and rail.netdev and rail.link_layer == "Ethernet"
    if not isinstance(rail.gid, str) or not isinstance(rail.netdev, str) or not named:
        return rail
    if isinstance(routing, Unknown):
        return rail._replace(exits=Unknown(routing.reason))
    address = ipaddress.ip_address(rail.gid)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    networks = exits(routing, str(mapped or address), rail.netdev)
    if not isinstance(networks, Unknown):
        kept = [network for network in networks if not network.startswith(("fe80:", "ff"))]
        networks = tuple(kept[:MOST_ROUTES])
    return rail._replace(exits=networks)


def _rails(rdma: RdmaFacts, needs: LaunchNeeds | None) -> Iterator[Rail]:
    """Yield each port of each device, with the use that the launch makes of it."""
    taken: dict[tuple[str, int], Use] = {}
    doubt: Unknown | None = None
    launch_uses = [] if needs is None else uses(rdma, needs)
    for use in launch_uses:
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
            environment = (use_of or launch_uses[0]).environment if launch_uses else {}
            yield _rail(rdma, nic, port, environment, release, takes)


def _rail(
    rdma: RdmaFacts,
    nic: Nic,
    port: Port,
    environment: Mapping[str, str],
    release: MooncakeRelease | None,
    used: bool | Unknown | None,
) -> Rail:
    """Describe one port as a process with this environment uses it."""
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
    texts = addresses if isinstance(addresses, Unknown) else tuple(f"{a}/{n}" for a, n in addresses)
    return rail._replace(netdev_mtu_bytes=interface.mtu_bytes, addresses=texts)


def _active_mtu_bytes(nic: Nic, port: Port) -> int | Unknown:
    ports = nic.verbs.ports
    if isinstance(ports, Unknown):
        return ports
    seen = ports.get(port.number)
    return Unknown("libibverbs says nothing of it") if seen is None else seen.active_mtu_bytes
