"""What only the reports together show: masters, versions, path MTU, addresses, ports.

Each check takes the rows and yields a finding and the nodes that it blames: where there is one
right value, those that have another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from checks.releases.mooncake import work_together
from preflight.fleet.base.grouping import grouped
from preflight.fleet.base.node_sets import fold
from preflight.fleet.merge.addresses import Names, ServiceAddress, loops, split_address
from preflight.fleet.reports.records import FleetFinding, NodeRow

# A day: reports of one run are minutes apart, and what is older tells of another state.
MOST_AGE_SECONDS = 24 * 3600
# What the master's own port is called among those that a launch binds.
MASTER_PORT_NAME = "RPC port"
# What fleet rails finds and nobody else: fleet.subnet and the nodes' own rdma.subnets say the rest.
_BETWEEN_RAILS = ("fleet.rail-apart", "fleet.rail-mtu", "fleet.rail-unknown")

Rows = Sequence[tuple[int, NodeRow]]
Blamed = tuple[FleetFinding, Sequence[int]]


def fleet_findings(
    rows: Rows, facts: Mapping[str, Mapping[str, Sequence[int]]]
) -> Iterator[Blamed]:
    """Every finding of the fleet, in no order. rows: (place, row), of nodes with a whole report."""
    from preflight.fleet.merge.rails import rail_findings
    from preflight.fleet.rails.findings import rail_findings as findings_between_rails
    from preflight.fleet.rails.findings import rail_matrix

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
    for finding, places in findings_between_rails(rail_matrix(rows)):
        if finding.check in _BETWEEN_RAILS:
            yield finding, places


def _masters(rows: Rows, names: Names) -> Iterator[Blamed]:
    said = {at: row.launch.known_masters for at, row in rows if row.launch is not None}
    follows = "what one of them stores, the others never find"
    yield from _one_address("fleet.master", "master", said, follows, dict(rows), names)


def _metadata(rows: Rows, names: Names) -> Iterator[Blamed]:
    said = {
        at: tuple(sorted(address for address, _ in row.launch.known_services("metadata")))
        for at, row in rows
        if row.launch is not None
    }
    follows = "a node's segments are looked for where they were never written down"
    yield from _one_address("fleet.metadata", "metadata server", said, follows, dict(rows), names)


def _one_address(
    check: str,
    what: str,
    addresses: Mapping[int, tuple[str, ...]],
    follows: str,
    rows: Mapping[int, NodeRow],
    names: Names,
) -> Iterator[Blamed]:
    """One service that all nodes have to name alike."""
    places = {at: tuple(sorted(map(names.place, each))) for at, each in addresses.items() if each}
    said = {at: ", ".join(each) for at, each in addresses.items()}
    if len(places) < 2:
        return
    loopback = {at for at, each in places.items() if any(loops(one.host) for one in each)}
    # A node may call itself localhost where the others call it by its name.
    host_of_rest = {one.node for at, each in places.items() if at not in loopback for one in each}
    local = loopback - host_of_rest if len(loopback) == 1 else loopback
    if local:
        have = "; ".join(sorted({said[at] for at in local})[:3])
        text = f"each of them looks for the {what} on itself, so {follows}"
        if len(local) == 1:
            text = f"it looks for the {what} on itself and the others elsewhere, so {follows}"
        need = f"one address of the {what}, which all nodes reach"
        yield FleetFinding(check, "fail", "launch", have, need, text), sorted(local)
    elsewhere = [(tuple(one.same for one in places[at]), at) for at in places if at not in loopback]
    groups = grouped(elsewhere)
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


def _majority(groups: list[list[int]]) -> tuple[list[int] | None, list[list[int]]]:
    """The largest group, None where two are as large; and the others, the smallest first."""
    groups = sorted(groups, key=len)
    if len(groups) > 1 and len(groups[-1]) == len(groups[-2]):
        return None, groups
    return groups[-1], groups[:-1]


def _differ(some: Sequence[ServiceAddress], others: Sequence[ServiceAddress]) -> bool:
    """Whether two addresses are certainly two services: names can be aliases of one machine."""
    return len(some) != len(others) or any(
        one.port != other.port
        or (one.node is not None and other.node is not None and one.node != other.node)
        for one, other in zip(some, others, strict=True)
    )


def _rendezvous(rows: Rows) -> Iterator[Blamed]:
    """One server over several hosts, whose ranks look for rank 0 on themselves."""
    found = grouped(
        (address, at)
        for at, row in rows
        if row.launch is not None and row.launch.hosts > 1
        for address, own in row.launch.known_services("dist-init")
        if not own and loops(split_address(address)[0])
    )
    for address, places in found.items():
        text = "a rank looks for rank 0 on its own node: the server never forms"
        need = "the address of the node of rank 0 (--dist-init-addr)"
        yield FleetFinding("fleet.rendezvous", "fail", "launch", address, need, text), places


def _advertised(rows: Rows) -> Iterator[Blamed]:
    found: dict[str, dict[int, object]] = {}
    for at, row in rows:
        for host, _ in () if row.launch is None else row.launch.known_services("advertised"):
            found.setdefault(host.lower(), {})[at] = row.boot or at
    for host, machines in found.items():
        if len(set(machines.values())) > 1:
            text = "the others look for the segments of all of them on one machine"
            need = "a name or address of its own for each node"
            finding = FleetFinding("fleet.advertised", "fail", "launch", host, need, text)
            yield finding, list(machines)


def _versions(
    rows: Rows, facts: Mapping[str, Mapping[str, Sequence[int]]], names: Names
) -> Iterator[Blamed]:
    """Clients of other releases than the master's; more than one release on a node is another."""
    machines = dict(rows)
    masters = {at: row.launch.known_masters for at, row in rows if row.launch is not None}
    groups: dict[str, list[int]] = {}
    for wheels, places in facts.get("wheel.mooncake", {}).items():
        versions = sorted({wheel.rpartition(" ")[2] for wheel in wheels.split(",")})
        stores = [at for at in places if masters.get(at)]
        if stores:
            groups.setdefault(", ".join(versions), []).extend(stores)
    if len(groups) < 2:
        return
    version_of = {at: version for version, places in groups.items() for at in places}
    hosts = {names.place(master).node for each in masters.values() for master in each}
    of_master = {version_of[at] for at in hosts if at is not None and at in version_of}
    majority, _ = _majority(list(groups.values()))
    right, who = "", ""
    if len(of_master) == 1:
        (right,), who = of_master, "the node of the master"
    elif majority:
        right, who = version_of[majority[0]], _nodes(machines, majority)
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
    protocols = [(row.launch.protocol, at) for at, row in rows if row.launch is not None]
    groups = grouped((one, at) for one, at in protocols if isinstance(one, str) and one)
    if len(groups) < 2:
        return
    right, others = _majority(list(groups.values()))
    protocol_of = {at: protocol for protocol, places in groups.items() for at in places}
    need = f"{protocol_of[right[0]]}, as {_nodes(dict(rows), right)}" if right else "one protocol"
    for places in others:
        text = "segments are reached over the protocol that their owner speaks"
        have = protocol_of[places[0]]
        yield FleetFinding("fleet.protocol", "warn", "launch", have, need, text), places


def _master_ports(rows: Rows, names: Names) -> Iterator[Blamed]:
    """The node on which others look for the master, and whose launch needs the port itself."""
    launches = {at: row.launch for at, row in rows if row.launch is not None}
    masters = [names.place(one) for launch in launches.values() for one in launch.known_masters]
    for node, master in dict.fromkeys((one.node, one.port) for one in masters):
        if node is None or node not in launches:
            continue
        for what, port in launches[node].ports:
            if isinstance(port, int) and str(port) == master and what != MASTER_PORT_NAME:
                text = "nodes look for the master there, and only one of them can have the port"
                need = f"port {port} left to the master"
                yield FleetFinding("fleet.port", "fail", what, f"port {port}", need, text), [node]


def _same_machine(rows: Rows) -> Iterator[Blamed]:
    for boot, places in grouped((row.boot, at) for at, row in rows if row.boot).items():
        if len(places) > 1:
            text = "one machine under several names: its memory and its NICs are counted for each"
            found = FleetFinding("fleet.same-machine", "warn", "node", f"boot {boot}", "", text)
            yield found, places


def _ages(rows: Rows) -> Iterator[Blamed]:
    made = {at: row.made_unix_seconds for at, row in rows if row.made_unix_seconds > 0}
    newest = max(made.values(), default=0)
    old = [at for at, seconds in made.items() if seconds < newest - MOST_AGE_SECONDS]
    if old:
        days = (newest - min(made.values())) / MOST_AGE_SECONDS
        have = f"made up to {days:.1f} days before the newest"
        text = "what they tell may be over, or their clocks are wrong"
        found = FleetFinding("fleet.old-report", "warn", "report", have, "within a day", text)
        yield found, sorted(old)


def _nodes(rows: Mapping[int, NodeRow], places: Sequence[int]) -> str:
    return fold(rows[at].node for at in places)
