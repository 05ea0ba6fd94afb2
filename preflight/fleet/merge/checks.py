"""What only the reports together show: masters, versions, services, machines, ages.

Each function yields a finding with the nodes that it blames: where there is one right value, those
that have another. Its parameters name what it judges: ``rows`` of nodes with a whole report, their
``launches``, ``facts`` (name -> value -> nodes), and the ``owners`` of addresses.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from checks.framework.problem import Problems
from checks.rdma.reach_checks import DEFAULT_MTU_BYTES
from checks.releases.mooncake import work_together
from preflight.fleet.base.node_sets import fold, in_order
from preflight.fleet.base.text import grouped, largest_and_others
from preflight.fleet.rails import rail_findings
from preflight.fleet.reports.rows import FleetFinding, NodeLaunch, OnNodes, Rows
from preflight.processes.ports import split_address

DEFAULT_MASTER_PORT = 50051  # mooncake_master --rpc_port
# A day: reports of one run are minutes apart, and what is older tells of another state.
MOST_AGE_SECONDS = 24 * 3600

FLEET = Problems("../../verdict/pages")
Launches = Mapping[str, NodeLaunch]


class ServiceAddress(NamedTuple):
    """An address as the fleet knows it.

    Attributes:
        name: Of the node that has it, "" if that is not known.
    """

    host: str
    port: str
    name: str

    @property
    def process(self) -> tuple[str, str]:
        """Return a key that is equal if two addresses certainly lead to one process."""
        return self.name or self.host, self.port


class Owners:
    """Which node a host name or an address belongs to, as far as the reports tell."""

    def __init__(self, rows: Rows) -> None:
        """Take each node's names and addresses; a name that two nodes have leads to neither."""
        self._nodes: dict[str, str] = {}
        for name, row in rows.items():
            addresses = (each for rail in row.known_rails for each in rail.known_addresses)
            hosts = {row.name, row.host, *(address.partition("/")[0] for address in addresses)}
            for host in map(str.lower, hosts - {""}):
                known = self._nodes.get(host, name) == name
                self._nodes[host] = name if known else ""

    def of(self, address: str) -> ServiceAddress:
        """Return the address with the node that has it.

        Without a port: DEFAULT_MASTER_PORT.
        """
        split = split_address(address)
        host, port = split.host.lower(), str(split.port or DEFAULT_MASTER_PORT)
        return ServiceAddress(host, port, self._nodes.get(host, ""))


def loops(host: str) -> bool:
    """Return whether a host is each node itself: 127.0.0.1, 0.0.0.0 and the like."""
    return host in ("localhost", "::1", "::", "0.0.0.0") or host.startswith(("127.", "localhost."))


def fleet_findings(
    rows: Rows, facts: Mapping[str, Mapping[str, Sequence[str]]]
) -> Iterator[OnNodes]:
    """Yield every finding that only the reports together show, in no order.

    Args:
        rows: Of nodes with a whole report.
        facts: Name -> value -> nodes.
    """
    launches = {name: row.launch for name, row in rows.items() if row.launch is not None}
    given = {"rows": rows, "launches": launches, "facts": facts, "owners": Owners(rows)}
    for problem in FLEET.problems:
        for found in problem.answers(given):
            yield found._replace(finding=found.finding._replace(check=problem.id))
    yield from rail_findings(rows)


@FLEET("fleet.master")
def _masters(launches: Launches, owners: Owners) -> Iterator[OnNodes]:
    follows = "what one of them stores, the others never find"
    return _one_address("master", "master", launches, follows, owners)


@FLEET("fleet.metadata")
def _metadata(launches: Launches, owners: Owners) -> Iterator[OnNodes]:
    follows = "nodes look up each other's segments on a server that does not have them"
    return _one_address("metadata", "metadata server", launches, follows, owners)


def _one_address(
    role: str, what: str, launches: Launches, follows: str, owners: Owners
) -> Iterator[OnNodes]:
    """Yield findings on nodes that name another address of a service than the others do.

    Nothing if fewer than two nodes name the service.

    Args:
        role: Of the service among those of a launch.
        what: The service in words.
        follows: What goes wrong then, in words.
        owners: Tells which node an address belongs to.
    """
    addresses = {name: launch.addresses_of(role) for name, launch in launches.items()}
    named = ((name, each) for name, each in addresses.items() if each)
    processes = {name: tuple(sorted(map(owners.of, each))) for name, each in named}
    written = {name: ", ".join(each) for name, each in addresses.items()}
    if len(processes) < 2:
        return
    loopback = {name for name, each in processes.items() if any(loops(a.host) for a in each)}
    # A node may call itself localhost where the others call it by its name.
    rest = [address for name, each in processes.items() if name not in loopback for address in each]
    local = loopback - {address.name for address in rest} if len(loopback) == 1 else loopback
    if local:
        have = "; ".join(sorted({written[name] for name in local})[:3])
        text = f"each of them looks for the {what} on itself, so {follows}"
        if len(local) == 1:
            text = f"it looks for the {what} on itself and the others elsewhere, so {follows}"
        need = f"one address of the {what}, which all nodes reach"
        yield OnNodes(FleetFinding("", "fail", "launch", have, need, text), in_order(local))
    away = [(name, each) for name, each in processes.items() if name not in loopback]
    groups = grouped((tuple(address.process for address in each), name) for name, each in away)
    if len(groups) < 2:
        return
    right, others = largest_and_others(groups)
    most = groups[others[0] if right is None else right]
    for key in others:
        nodes = groups[key]
        if nodes is most:
            continue
        some, others_of = processes[most[0]], processes[nodes[0]]
        # Names can be aliases of one host.
        certain = len(some) != len(others_of) or any(
            a.port != b.port or (a.name and b.name and a.name != b.name)
            for a, b in zip(some, others_of, strict=True)
        )
        status, text = "fail", f"other nodes name another {what}: {follows}"
        if not certain:
            status = "unknown"
            text = f"other nodes name it otherwise: whether that is one {what} cannot be told here"
        blamed = nodes if right else in_order([*nodes, *most])
        need = f"{written[most[0]]}, as {fold(most)}"
        yield OnNodes(FleetFinding("", status, "launch", written[nodes[0]], need, text), blamed)


@FLEET("fleet.advertised")
def _advertised(rows: Rows, launches: Launches) -> Iterator[OnNodes]:
    """Judge names, other than loopback ones, under which stores of several machines register."""
    names = grouped(
        (service.host.lower(), name)
        for name, launch in launches.items()
        for service in launch.services
        if service.kind == "advertised" and isinstance(service.host, str)
        if not loops(service.host.lower())
    )
    for host, nodes in names.items():
        if len({rows[name].boot or name for name in nodes}) > 1:
            text = "the others look for the segments of all of them on one machine"
            need = "a name or address of its own for each node"
            finding = FleetFinding("", "fail", "launch", host, need, text)
            yield OnNodes(finding, list(dict.fromkeys(nodes)))


@FLEET("fleet.protocol")
def _protocols(launches: Launches) -> Iterator[OnNodes]:
    """Warn of nodes whose known protocol is not the most common one; of all nodes in a tie."""
    protocols = [(launch.share.protocol, name) for name, launch in launches.items()]
    groups = grouped((value, name) for value, name in protocols if isinstance(value, str) and value)
    if len(groups) < 2:
        return
    right, others = largest_and_others(groups)
    need = "one protocol" if right is None else f"{right}, as {fold(groups[right])}"
    text = "segments are reached over the protocol that their owner speaks"
    for protocol in others:
        finding = FleetFinding("", "warn", "launch", protocol, need, text)
        yield OnNodes(finding, groups[protocol])


@FLEET("fleet.address")
def _addresses(rows: Rows) -> Iterator[OnNodes]:
    """Judge addresses of RDMA ports that two machines share, but not loopback or link-local."""
    owners = grouped(
        (address.partition("/")[0], (name, rail.device))
        for name, row in rows.items()
        for rail in row.known_rails
        for address in rail.known_addresses
    )
    for address, holders in owners.items():
        try:
            parsed = ip_address(address)
        except ValueError:
            continue
        if parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified:
            continue  # which several hosts may have
        devices = dict(holders)
        if len({rows[name].boot or name for name in devices}) > 1:
            have = f"{address} on {', '.join(sorted(set(devices.values())))} of each"
            text = "two machines have one address: transfers to either reach the one that ARP finds"
            need = "an address of its own"
            finding = FleetFinding("", "fail", address, have, need, text)
            yield OnNodes(finding, in_order(devices))


@FLEET("fleet.mooncake-version")
def _versions(
    launches: Launches, facts: Mapping[str, Mapping[str, Sequence[str]]], owners: Owners
) -> Iterator[OnNodes]:
    """Judge the Mooncake releases of nodes whose launch names a master.

    The right release is that of the master's node, or of most nodes if the reports do not tell; in
    a tie none is right.
    """
    masters = {name: launch.addresses_of("master") for name, launch in launches.items()}
    groups = grouped(
        (", ".join(sorted({wheel.rpartition(" ")[2] for wheel in wheels.split(",")})), name)
        for wheels, names in facts.get("wheel.mooncake", {}).items()
        for name in names
        if masters.get(name)
    )
    if len(groups) < 2:
        return
    version_of = {name: version for version, names in groups.items() for name in names}
    hosts = {owners.of(master).name for each in masters.values() for master in each}
    of_master = {version_of[host] for host in hosts if host in version_of}
    right, who = "", ""
    if len(of_master) == 1:
        (right,), who = of_master, "the node of the master"
    elif (most := largest_and_others(groups)[0]) is not None:
        right, who = most, fold(groups[most])
    for version, names in groups.items():
        if version == right:
            continue
        need = f"Mooncake {right}, as {who}" if right else "one version of Mooncake everywhere"
        status, text = _RELEASES[work_together(version, right)]
        have = f"Mooncake {version}"
        finding = FleetFinding("", status, "wheel.mooncake", have, need, text)
        yield OnNodes(finding, in_order(names))


_RELEASES = {
    True: ("warn", "these releases were seen to work together; sizes and defaults differ"),
    False: (
        "fail",
        "client and master do not understand each other: the setup or every put ends with -900 "
        "(RPC call failed)",
    ),
    None: ("unknown", "these releases were not tried together: some fail at the first put"),
}


@FLEET("fleet.same-machine")
def _same_machine(rows: Rows) -> Iterator[OnNodes]:
    """Judge one machine, known by its boot id, that reports under several names."""
    for boot, names in grouped((row.boot, name) for name, row in rows.items() if row.boot).items():
        if len(names) > 1:
            text = "one machine under several names: its memory and its NICs are counted for each"
            have = f"boot {boot}"
            yield OnNodes(FleetFinding("", "warn", "node", have, "", text), names)


@FLEET("fleet.old-report")
def _ages(rows: Rows) -> Iterator[OnNodes]:
    """Judge reports that are more than a day older than the newest, but none without a time."""
    made = {name: row.made_unix_seconds for name, row in rows.items() if row.made_unix_seconds > 0}
    newest = max(made.values(), default=0)
    old = [name for name, seconds in made.items() if seconds < newest - MOST_AGE_SECONDS]
    if old:
        days = (newest - min(made.values())) / MOST_AGE_SECONDS
        have = f"made up to {days:.1f} days before the newest"
        text = "these reports may be out of date, or the clocks are wrong"
        finding = FleetFinding("", "warn", "report", have, "within a day", text)
        yield OnNodes(finding, old)


@FLEET("fleet.path-mtu")
def _path_mtus(rows: Rows) -> Iterator[OnNodes]:
    """Judge path MTUs that differ between RDMA launches: QPs negotiate none (rdma_endpoint.cpp).

    The findings are unknown if a report does not say its launch's limit (MC_MTU).
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    unsaid = False
    for name, row in rows.items():
        if row.launch is None or "rdma" not in str(row.launch.share.protocol):
            continue
        limit = row.share_value("mtu_limit_bytes")
        unsaid |= not isinstance(limit, int)
        most = limit if isinstance(limit, int) else DEFAULT_MTU_BYTES
        mtus = [rail.mtu_bytes for rail in row.taken_rails]
        if sizes := {min(mtu, most) for mtu in mtus if isinstance(mtu, int)}:
            groups.setdefault(tuple(sorted(sizes)), []).append(name)
    if len(groups) < 2:
        return
    usual, others = largest_and_others(groups)
    text = "the ends of a connection do not negotiate it: transfers end with remote invalid request"
    if unsaid:
        least = min(size for sizes in groups for size in sizes)
        text += f", unless MC_MTU={least} is set on every node, which the reports do not say"
    need = "one path MTU on all nodes" if usual is None else f"{_sizes(usual)}, as most nodes"
    status = "unknown" if unsaid else "fail"
    for group in others:
        finding = FleetFinding("", status, "RDMA ports", _sizes(group), need, text)
        yield OnNodes(finding, groups[group])


def _sizes(sizes: Sequence[int]) -> str:
    return f"path MTU {' and '.join(str(size) for size in sizes)} B"
