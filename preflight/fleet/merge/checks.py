"""What only the reports together show: masters, versions, path MTU, addresses, ports.

Each check takes the rows and yields a finding and the nodes that it blames: where there is one
right value, those that have another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from checks.releases.mooncake import work_together
from preflight.fleet.base.node_sets import fold
from preflight.fleet.merge.addresses import Names, Place, loops, split_place
from preflight.fleet.reports.records import FleetFinding, NodeRow

# A day: reports of one run are minutes apart, and what is older tells of another state.
MOST_AGE_SECONDS = 24 * 3600
# What the master's own port is called among those that a launch binds.
MASTER_PORT_NAME = "RPC port"

Rows = Sequence[tuple[int, NodeRow]]
Blamed = tuple[FleetFinding, Sequence[int]]


def fleet_findings(
    rows: Rows, facts: Mapping[str, Mapping[str, Sequence[int]]]
) -> Iterator[Blamed]:
    """Every finding of the fleet, in no order. rows: (place, row), of nodes with a whole report."""
    from preflight.fleet.merge.rails import rail_findings

    names = Names(rows)
    yield from _masters(rows, names)
    yield from _metadata(rows, names)
    yield from _rendezvous(rows)
    yield from _advertised(rows)
    yield from _versions(rows, facts, names)
    yield from _protocols(rows)
    yield from _master_ports(rows, names)
    yield from _same_machine(rows)
    yield from _ages(rows)
    yield from rail_findings(rows)
    yield from _between_rails(rows)


# What fleet rails finds and nobody else: fleet.subnet and the nodes' own rdma.subnets say the rest.
_BETWEEN_RAILS = ("fleet.rail-apart", "fleet.rail-mtu", "fleet.rail-unknown")


def _between_rails(rows: Rows) -> Iterator[Blamed]:
    from preflight.fleet.rails.findings import rail_findings, rail_matrix

    for finding, places in rail_findings(rail_matrix(rows)):
        if finding.check in _BETWEEN_RAILS:
            yield finding, places


def _masters(rows: Rows, names: Names) -> Iterator[Blamed]:
    places = {
        at: tuple(sorted(names.place(master) for master in row.launch.known_masters))
        for at, row in rows
        if row.launch is not None and row.launch.known_masters
    }
    said = {at: row.launch.known_masters for at, row in rows if row.launch is not None}
    yield from _one_address(
        "fleet.master",
        "master",
        places,
        {at: ", ".join(masters) for at, masters in said.items()},
        "what one of them stores, the others never find",
        dict(rows),
    )


def _metadata(rows: Rows, names: Names) -> Iterator[Blamed]:
    said = {
        at: tuple(address for address, _ in row.launch.known_services("metadata"))
        for at, row in rows
        if row.launch is not None
    }
    said = {at: addresses for at, addresses in said.items() if addresses}
    yield from _one_address(
        "fleet.metadata",
        "metadata server",
        {at: tuple(sorted(map(names.place, addresses))) for at, addresses in said.items()},
        {at: ", ".join(sorted(addresses)) for at, addresses in said.items()},
        "a node's segments are looked for where they were never written down",
        dict(rows),
    )


def _one_address(
    check: str,
    what: str,
    places: Mapping[int, tuple[Place, ...]],
    said: Mapping[int, str],
    follows: str,
    rows: Mapping[int, NodeRow],
) -> Iterator[Blamed]:
    """One service that all nodes have to name alike."""
    if len(places) < 2:
        return
    loopback = {at for at, each in places.items() if any(loops(one.host) for one in each)}
    # A node may call itself localhost where the others call it by its name.
    host_of_rest = {one.node for at, each in places.items() if at not in loopback for one in each}
    local = loopback - host_of_rest if len(loopback) == 1 else loopback
    if local:
        have = _shared(said, local)
        text = f"each of them looks for the {what} on itself, so {follows}"
        if len(local) == 1:
            text = f"it looks for the {what} on itself and the others elsewhere, so {follows}"
        need = f"one address of the {what}, which all nodes reach"
        yield FleetFinding(check, "fail", "launch", have, need, text), sorted(local)
    groups: dict[tuple[object, ...], list[int]] = {}
    for at, each in places.items():
        if at not in loopback:
            groups.setdefault(tuple(one.same for one in each), []).append(at)
    if len(groups) < 2:
        return
    right, others = _majority(list(groups.values()))
    for group in others:
        first = (right or others[0])[0]
        if group[0] == first:
            continue
        certain = _differ(places[first], places[group[0]])
        text = (
            f"other nodes name another {what}: {follows}"
            if certain
            else f"other nodes name it otherwise: whether that is one {what} cannot be told here"
        )
        status = "fail" if certain else "unknown"
        blamed = group if right else sorted([*group, *others[0]])
        need = f"{said[first]}, as {_nodes(rows, right or others[0])}"
        yield FleetFinding(check, status, "launch", said[group[0]], need, text), blamed


def _shared(said: Mapping[int, str], places: set[int]) -> str:
    return "; ".join(sorted({said[at] for at in places})[:3])


def _majority(groups: list[list[int]]) -> tuple[list[int] | None, list[list[int]]]:
    """The largest group, None where two are as large; and the others, the smallest first."""
    groups = sorted(groups, key=len)
    if len(groups) > 1 and len(groups[-1]) == len(groups[-2]):
        return None, groups
    return groups[-1], groups[:-1]


def _differ(some: Sequence[Place], others: Sequence[Place]) -> bool:
    """Whether two addresses are certainly two services: names can be aliases of one machine."""
    if len(some) != len(others):
        return True
    for one, other in zip(some, others, strict=True):
        if one.port != other.port:
            return True
        if one.node is not None and other.node is not None and one.node != other.node:
            return True
    return False


def _rendezvous(rows: Rows) -> Iterator[Blamed]:
    """One server over several hosts, whose ranks look for rank 0 on themselves."""
    found: dict[str, list[int]] = {}
    for at, row in rows:
        if row.launch is None or row.launch.hosts < 2:
            continue
        for address, own in row.launch.known_services("dist-init"):
            if not own and loops(split_place(address)[0]):
                found.setdefault(address, []).append(at)
    for address, places in found.items():
        text = "a rank looks for rank 0 on its own node: the server never forms"
        need = "the address of the node of rank 0 (--dist-init-addr)"
        yield FleetFinding("fleet.rendezvous", "fail", "launch", address, need, text), places


def _advertised(rows: Rows) -> Iterator[Blamed]:
    found: dict[str, list[int]] = {}
    for at, row in rows:
        for host, _ in () if row.launch is None else row.launch.known_services("advertised"):
            found.setdefault(host.lower(), []).append(at)
    machines = dict(rows)
    for host, places in found.items():
        if len({machines[at].boot or at for at in places}) > 1:
            text = "the others look for the segments of all of them on one machine"
            need = "a name or address of its own for each node"
            yield FleetFinding("fleet.advertised", "fail", "launch", host, need, text), places


def _versions(
    rows: Rows, facts: Mapping[str, Mapping[str, Sequence[int]]], names: Names
) -> Iterator[Blamed]:
    """Clients of other releases than the master's; more than one release on a node is another."""
    stores = {
        at: row.launch for at, row in rows if row.launch is not None and row.launch.known_masters
    }
    groups: dict[str, list[int]] = {}
    for wheels, places in facts.get("wheel.mooncake", {}).items():
        versions = sorted({wheel.rpartition(" ")[2] for wheel in wheels.split(",")})
        groups.setdefault(", ".join(versions), []).extend(at for at in places if at in stores)
    groups = {version: places for version, places in groups.items() if places}
    if len(groups) < 2:
        return
    version_of = {at: version for version, places in groups.items() for at in places}
    hosts = {
        names.place(master).node for launch in stores.values() for master in launch.known_masters
    }
    of_master = {version_of[at] for at in hosts if at is not None and at in version_of}
    machines = dict(rows)
    if len(of_master) == 1:
        (right,) = of_master
        who = "the node of the master"
    else:
        majority, _ = _majority(list(groups.values()))
        right = version_of[majority[0]] if majority else ""
        who = _nodes(machines, majority) if majority else ""
    for version, places in groups.items():
        if version == right:
            continue
        need = f"Mooncake {right}, as {who}" if right else "one version of Mooncake everywhere"
        status, text = _RELEASES[work_together(version, right)]
        found = FleetFinding(
            "fleet.mooncake-version", status, "wheel.mooncake", f"Mooncake {version}", need, text
        )
        yield found, sorted(places)


_RELEASES = {
    True: ("warn", "these releases were seen to work together; sizes and defaults differ"),
    False: (
        "fail",
        "client and master do not understand each other: the setup or every put ends with -900 "
        "(RPC call failed)",
    ),
    None: ("unknown", "these releases were not tried together: some fail at the first put"),
}


def _protocols(rows: Rows) -> Iterator[Blamed]:
    groups: dict[str, list[int]] = {}
    for at, row in rows:
        if row.launch is not None and isinstance(row.launch.protocol, str) and row.launch.protocol:
            groups.setdefault(row.launch.protocol, []).append(at)
    right, others = _majority(list(groups.values())) if groups else (None, [])
    if len(groups) < 2:
        return
    protocol_of = {at: protocol for protocol, places in groups.items() for at in places}
    need = f"{protocol_of[right[0]]}, as {_nodes(dict(rows), right)}" if right else "one protocol"
    for places in others:
        text = "segments are reached over the protocol that their owner speaks"
        have = protocol_of[places[0]]
        yield FleetFinding("fleet.protocol", "warn", "launch", have, need, text), places


def _master_ports(rows: Rows, names: Names) -> Iterator[Blamed]:
    """The node on which others look for the master, and whose launch needs the port itself."""
    machines = dict(rows)
    seen: set[tuple[int, str]] = set()
    for _, row in rows:
        for master in () if row.launch is None else row.launch.known_masters:
            place = names.place(master)
            if place.node is None or (place.node, place.port) in seen:
                continue
            seen.add((place.node, place.port))
            launch = machines[place.node].launch
            for what, port in () if launch is None else launch.ports:
                if str(port) == place.port and what != MASTER_PORT_NAME:
                    text = "nodes look for the master there, and only one of them can have the port"
                    need = f"port {port} left to the master"
                    found = FleetFinding("fleet.port", "fail", what, f"port {port}", need, text)
                    yield found, [place.node]


def _same_machine(rows: Rows) -> Iterator[Blamed]:
    machines: dict[str, list[int]] = {}
    for at, row in rows:
        if row.boot:
            machines.setdefault(row.boot, []).append(at)
    for boot, places in machines.items():
        if len(places) > 1:
            text = "one machine under several names: its memory and its NICs are counted for each"
            found = FleetFinding("fleet.same-machine", "warn", "node", f"boot {boot}", "", text)
            yield found, places


def _ages(rows: Rows) -> Iterator[Blamed]:
    newest = max((row.made_unix_seconds for _, row in rows), default=0)
    old = [
        (newest - row.made_unix_seconds, at)
        for at, row in rows
        if 0 < row.made_unix_seconds < newest - MOST_AGE_SECONDS
    ]
    if old:
        days = max(old)[0] / MOST_AGE_SECONDS
        have = f"made up to {days:.1f} days before the newest"
        text = "what they tell may be over, or their clocks are wrong"
        found = FleetFinding("fleet.old-report", "warn", "report", have, "within a day", text)
        yield found, sorted(at for _, at in old)


def _nodes(rows: Mapping[int, NodeRow], places: Sequence[int]) -> str:
    return fold(rows[at].node for at in places)
