"""Addresses across nodes: path MTU, addresses that two machines have, subnets without a route.

Which device reaches which is not judged here; a rail is held against the same device of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.base.unknown import Unknown
from checks.rdma.reach_checks import DEFAULT_MTU_BYTES
from preflight.fleet.base.grouping import by_size, grouped
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.node.records import Route
from preflight.fleet.rails.lanes import covers, network, subnet_of
from preflight.fleet.reports.rows import FleetFinding, NodeRow, OnNodes, Rows

MOST_SUBNETS = 4


class Interface(NamedTuple):
    """Behind a rail, with what it leads to by all tables, where the report says that."""

    netdev: str
    exits: tuple[str, ...] | None


def subnet_findings(rows: Rows) -> Iterator[OnNodes]:
    yield from _path_mtus(rows)
    yield from _addresses(rows)
    yield from _subnets(rows)


def _path_mtus(rows: Rows) -> Iterator[OnNodes]:
    """Judge the path MTUs.

    A QP takes the smaller of MC_MTU and the port's active MTU, and the two ends do not negotiate
    (rdma_endpoint.cpp).
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    unsaid = False
    for name, row in rows.items():
        launch = row.launch
        if launch is None or "rdma" not in str(launch.protocol):
            continue
        limit = launch.mtu_limit_bytes
        unsaid |= not isinstance(limit, int)
        most = limit if isinstance(limit, int) else DEFAULT_MTU_BYTES
        mtus = [rail.mtu_bytes for rail in row.taken_rails]
        sizes = {min(mtu, most) for mtu in mtus if isinstance(mtu, int)}
        if sizes:
            groups.setdefault(tuple(sorted(sizes)), []).append(name)
    if len(groups) < 2:
        return
    usual, others = by_size(groups)
    text = "the ends of a connection do not negotiate it: transfers end with remote invalid request"
    if unsaid:
        least = min(size for sizes in groups for size in sizes)
        text += f", unless MC_MTU={least} is set on every node, which the reports do not say"
    need = "one path MTU on all nodes" if usual is None else f"{_sizes(usual)}, as most nodes"
    status = "unknown" if unsaid else "fail"
    for group in others:
        finding = FleetFinding("fleet.path-mtu", status, "RDMA ports", _sizes(group), need, text)
        yield OnNodes(finding, groups[group])


def _sizes(sizes: Sequence[int]) -> str:
    return f"path MTU {' and '.join(str(size) for size in sizes)} B"


def _addresses(rows: Rows) -> Iterator[OnNodes]:
    """Judge addresses that two machines have: such an address reaches one of them."""
    owners = grouped(
        (written.partition("/")[0], (name, rail.device))
        for name, row in rows.items()
        for rail in row.known_rails
        for written in rail.known_addresses
    )
    for address, held in owners.items():
        if len(held) < 2 or _anywhere(address):
            continue
        first, boot = held[0][0], rows[held[0][0]].boot
        others = {
            name: device
            for name, device in held
            if name != first and not (boot and rows[name].boot == boot)
        }
        if others:
            devices = {first: held[0][1], **others}
            have = f"{address} on {', '.join(sorted(set(devices.values())))} of each"
            text = "two machines have one address: transfers to either reach the one that ARP finds"
            need = "an address of its own"
            finding = FleetFinding("fleet.address", "fail", address, have, need, text)
            yield OnNodes(finding, list(devices))


def _anywhere(address: str) -> bool:
    """Return whether every host may have it: loopback, link-local; or it is no address."""
    found = network(address)
    return found is None or found.is_loopback or found.is_link_local or found.is_unspecified


def _subnets(rows: Rows) -> Iterator[OnNodes]:
    """Judge a device that two nodes have in two subnets: it needs a route out of its interface."""
    rails: dict[tuple[str, int], dict[str, dict[str, Interface]]] = {}
    for name, row in rows.items():
        for rail in row.taken_rails:
            netdev = rail.netdev if isinstance(rail.netdev, str) else ""
            out = Interface(netdev, None if isinstance(rail.exits, Unknown) else rail.exits)
            for subnet in filter(None, map(subnet_of, rail.known_addresses)):
                of_rail = rails.setdefault((rail.device, rail.port), {})
                of_rail.setdefault(subnet, {})[name] = out
    # A node with addresses in two subnets is in both; IPv4 and IPv6 are ways of their own.
    found = [
        (one.finding, (device, one.nodes))
        for (device, _), subnets in rails.items()
        for version in (".", ":")
        for one in _unrouted({net: at for net, at in subnets.items() if version in net}, rows)
    ]
    from preflight.check.report import fold

    for finding, held in grouped(found).items():
        devices = fold([device for device, _ in held])
        yield OnNodes(finding._replace(subject=devices), held[0][1])


def _unrouted(
    subnets: Mapping[str, Mapping[str, Interface]], rows: Mapping[str, NodeRow]
) -> Iterator[OnNodes]:
    """Yield nodes of other subnets than most, whose tables do not lead from the rail to those."""
    if len(subnets) < 2:
        return
    usual, *others = sorted(subnets, key=lambda name: (-len(subnets[name]), name))
    unread: set[str] = set()
    # A fabric may have a subnet for each link: one finding, not ten thousand.
    cut: dict[tuple[str, bool], list[tuple[str, str]]] = {}
    for subnet in others:
        for name, out in subnets[subnet].items():
            routes = rows[name].routes
            if name in subnets[usual]:
                continue
            if isinstance(routes, Unknown) and out.exits is None:
                unread.add(name)
            elif not _routed(routes, out, usual):
                cut.setdefault((out.netdev, out.exits is not None), []).append((subnet, name))
    need = f"{usual}, as most nodes, or a route to it"
    for (netdev, all_read), held in cut.items():
        nets = [net for net, _ in held]
        some = ", ".join(dict.fromkeys(nets[:MOST_SUBNETS]))
        more = " and others" if len(set(nets)) > MOST_SUBNETS else ""
        have = f"{some}{more}, no route to {usual} out of {netdev or 'its interface'}"
        other = "" if all_read else "or a route of another table (ip rule) leads to it, "
        text = (
            "without a route the kernel asks for the address on the rail's own link: it is there, "
            f"{other}or nothing does: fleet pairs tells"
        )
        finding = FleetFinding("fleet.subnet", "unknown", "", have, need, text)
        yield OnNodes(finding, in_order(name for _, name in held))
    if unread:
        have = f"another subnet than {usual}, and routes that were not read"
        text = "whether the nodes reach each other over this rail cannot be told"
        finding = FleetFinding("fleet.subnet", "unknown", "", have, need, text)
        yield OnNodes(finding, in_order(unread))


def _routed(routes: tuple[Route, ...] | Unknown, out: Interface, subnet: str) -> bool:
    """Return whether all tables lead to ``subnet``; the main one, where others are not known."""
    wanted = network(subnet)
    leads: Iterable[str] = ()
    if out.exits is not None:
        leads = out.exits
    elif not isinstance(routes, Unknown):
        leads = (route.destination for route in routes if route.interface == out.netdev)
    return wanted is not None and any(covers(one, wanted) for one in leads)
