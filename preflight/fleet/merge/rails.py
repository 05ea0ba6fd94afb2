"""Rails across nodes, as far as two nodes' facts tell: path MTU, addresses, subnets.

Which device reaches which is not judged here; a rail is held against the same device of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.fleet.base.grouping import grouped
from preflight.fleet.base.networks import covers, network, subnet_of
from preflight.fleet.merge.records import Variant
from preflight.fleet.node.records import Rail, Route
from preflight.fleet.reports.records import FleetFinding, NodeRow

# Mooncake's MC_MTU where nobody sets it: a QP takes the smaller of it and the port's active MTU,
# and the two ends do not negotiate (rdma_endpoint.cpp).
DEFAULT_LIMIT_BYTES = 4096
MOST_SUBNETS = 4

Rows = Sequence[tuple[int, NodeRow]]


class Out(NamedTuple):
    """A rail's interface, and what is behind it by all tables, where the report says that."""

    netdev: str
    exits: tuple[str, ...] | None


Blamed = tuple[FleetFinding, Sequence[int]]


def rail_findings(rows: Rows) -> Iterator[Blamed]:
    """rows: (place, row)."""
    yield from _path_mtus(rows)
    yield from _addresses(rows)
    yield from _subnets(rows)


def _rails(row: NodeRow) -> Iterator[Rail]:
    """Those that the launch takes; all of them where no launch says which."""
    return (rail for rail in row.known_rails if rail.used is not False)


def _path_mtus(rows: Rows) -> Iterator[Blamed]:
    groups: dict[tuple[int, ...], list[int]] = {}
    unsaid = False
    for at, row in rows:
        launch = row.launch
        if launch is None or "rdma" not in str(launch.protocol):
            continue
        limit = launch.mtu_limit_bytes
        unsaid |= not isinstance(limit, int)
        most = limit if isinstance(limit, int) else DEFAULT_LIMIT_BYTES
        sizes = {
            min(rail.mtu_bytes, most) for rail in _rails(row) if isinstance(rail.mtu_bytes, int)
        }
        if sizes:
            groups.setdefault(tuple(sorted(sizes)), []).append(at)
    if len(groups) < 2:
        return
    by_size = sorted(groups.items(), key=lambda group: -len(group[1]))
    tie = len(by_size[0][1]) == len(by_size[1][1])
    usual = _sizes(by_size[0][0])
    text = "the ends of a connection do not negotiate it: transfers end with remote invalid request"
    if unsaid:
        least = min(size for sizes in groups for size in sizes)
        text += f", unless MC_MTU={least} is set on every node, which the reports do not say"
    for group, places in by_size if tie else by_size[1:]:
        need = "one path MTU on all nodes" if tie else f"{usual}, as most nodes"
        status = "unknown" if unsaid else "fail"
        found = FleetFinding("fleet.path-mtu", status, "RDMA ports", _sizes(group), need, text)
        yield found, places


def _sizes(sizes: Sequence[int]) -> str:
    return f"path MTU {' and '.join(str(size) for size in sizes)} B"


def _addresses(rows: Rows) -> Iterator[Blamed]:
    """An address that two machines have reaches one of them."""
    owners: dict[str, tuple[int, str]] = {}
    twice: dict[str, dict[int, str]] = {}
    machines = dict(rows)
    for at, row in rows:
        for rail in row.known_rails:
            for written in rail.known_addresses:
                address = written.partition("/")[0]
                first, device = owners.setdefault(address, (at, rail.device))
                if first != at and not _one_machine(machines[first], row):
                    twice.setdefault(address, {first: device})[at] = rail.device
    for address, devices in twice.items():
        if _anywhere(address):
            continue
        have = f"{address} on {', '.join(sorted(set(devices.values())))} of each"
        text = "two machines answer to one address: transfers to either reach the one that is found"
        found = FleetFinding("fleet.address", "fail", address, have, "an address of its own", text)
        yield found, sorted(devices)


def _one_machine(one: NodeRow, other: NodeRow) -> bool:
    return bool(one.boot) and one.boot == other.boot


def _anywhere(address: str) -> bool:
    """Every host may have it: loopback, link-local."""
    import ipaddress

    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return True
    return parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified


def _subnets(rows: Rows) -> Iterator[Blamed]:
    """The same device of two nodes in two subnets needs a route, out of that device's interface."""
    rails: dict[tuple[str, int], dict[str, dict[int, Out]]] = {}
    for at, row in rows:
        for rail in _rails(row):
            netdev = rail.netdev if isinstance(rail.netdev, str) else ""
            for written in rail.known_addresses:
                subnet = subnet_of(written)
                if subnet is not None:
                    of_rail = rails.setdefault((rail.device, rail.port), {})
                    of_rail.setdefault(subnet, {})[at] = Out(
                        netdev, None if isinstance(rail.exits, Unknown) else rail.exits
                    )
    machines = dict(rows)
    found: dict[FleetFinding, tuple[list[str], Sequence[int]]] = {}
    for (device, _), subnets in rails.items():
        # A node with addresses in two subnets is in both; IPv4 and IPv6 are ways of their own.
        for version in (".", ":"):
            of_version = {name: nodes for name, nodes in subnets.items() if version in name}
            for finding, places in _unrouted(of_version, machines):
                found.setdefault(finding, ([], places))[0].append(device)
    from preflight.check.report import fold

    for finding, (devices, places) in found.items():
        yield finding._replace(subject=fold(devices)), places


def _unrouted(
    subnets: Mapping[str, Mapping[int, Out]], machines: Mapping[int, NodeRow]
) -> Iterator[Blamed]:
    """Nodes of other subnets than most, whose tables do not lead from the rail to those."""
    if len(subnets) < 2:
        return
    usual, *others = sorted(subnets, key=lambda name: (-len(subnets[name]), name))
    unread: set[int] = set()
    cut: dict[tuple[str, bool], tuple[list[str], set[int]]] = {}
    for subnet in others:
        for at, out in subnets[subnet].items():
            routes = machines[at].routes
            if at in subnets[usual]:
                continue
            if isinstance(routes, Unknown) and out.exits is None:
                unread.add(at)
            elif not _routed(routes, out, usual):
                # A fabric may have a subnet for each link: one finding, not ten thousand.
                key = out.netdev, out.exits is not None
                names, places = cut.setdefault(key, ([], set()))
                names.append(subnet)
                places.add(at)
    need = f"{usual}, as most nodes, or a route to it"
    for (netdev, all_read), (names, places) in cut.items():
        some = ", ".join(dict.fromkeys(names[:MOST_SUBNETS]))
        more = " and others" if len(set(names)) > MOST_SUBNETS else ""
        have = f"{some}{more}, no route to {usual} out of {netdev or 'its interface'}"
        other = "" if all_read else "or a route of another table (ip rule) leads to it, "
        text = (
            "without a route the kernel asks for the address on the rail's own link: it is there, "
            f"{other}or nothing does: fleet pairs tells"
        )
        yield FleetFinding("fleet.subnet", "unknown", "", have, need, text), sorted(places)
    if unread:
        have = f"another subnet than {usual}, and routes that were not read"
        text = "whether the nodes reach each other over this rail cannot be told"
        yield FleetFinding("fleet.subnet", "unknown", "", have, need, text), sorted(unread)


def _routed(routes: tuple[Route, ...] | Unknown, out: Out, subnet: str) -> bool:
    """Whether all tables lead to ``subnet``; the main table, where the others are not known."""
    wanted = network(subnet)
    if out.exits is not None:
        leads: Iterable[str] = out.exits
    elif isinstance(routes, Unknown):
        return False
    else:
        leads = (route.destination for route in routes if route.interface == out.netdev)
    return wanted is not None and any(covers(one, wanted) for one in leads)


def devices_of(row: NodeRow, gpus: str) -> str:
    """``8 x 400 Gb/sec (4X NDR) ACTIVE, 8 x NVIDIA H800``; "" for neither."""
    if isinstance(row.rails, Unknown):
        ports = "RDMA ports not read"
    else:
        kinds = Counter(
            f"{rail.rate if isinstance(rail.rate, str) else 'rate unknown'} "
            f"{rail.state if isinstance(rail.state, str) else 'state unknown'}"
            for rail in row.rails
        )
        ports = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    return ", ".join(part for part in (ports, gpus) if part)


def grouped_devices(rows: Rows, gpus: Mapping[str, Sequence[int]]) -> tuple[Variant, ...]:
    """Nodes by what devices they have, those with what few have first."""
    gpus_of = {at: names for names, places in gpus.items() for at in places}
    groups = grouped((devices_of(row, gpus_of.get(at, "")), at) for at, row in rows)
    return tuple(
        Variant(devices or "no RDMA device and no GPU", places)
        for devices, places in sorted(groups.items(), key=lambda item: len(item[1]))
    )
