"""Checks of the ports that a launch binds and of the address that it gives to others."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, skip, unknown
from checks.base.needs import LaunchNeeds, Port
from checks.base.unknown import Unknown
from checks.network.facts import LARGEST_PORT, PORT_RANGE, SOCKETS, NetworkFacts
from checks.network.services import has_no_address, key_of
from checks.run.facts import Facts

CHECKS = CheckSet()
_NO_PORTS = "the launch binds no fixed port"
# Kubernetes' default --service-node-port-range.
NODE_PORTS = (30000, 32767)


def _ports(check: str, needs: LaunchNeeds | None) -> tuple[Port, ...] | Finding:
    if needs is None:
        return skip(check)
    return needs.ports or skip(check, _NO_PORTS)


_TAKEN = "network.port-taken"


@CHECKS.declare(_TAKEN, "network")
def port_taken(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each port of each process."""
    ports = _ports(_TAKEN, needs)
    if isinstance(ports, Finding):
        yield ports
        return
    users: dict[int, list[Port]] = {}
    for port in ports:
        if isinstance(port.port, int):
            users.setdefault(port.port, []).append(port)
    for port in ports:
        yield _port(port, facts.network, users)


def _port(port: Port, network: NetworkFacts, users: dict[int, list[Port]]) -> Finding:
    subject = f"{port.what} of {port.owner}"
    if isinstance(port.port, Unknown):
        return unknown(_TAKEN, subject, port.port.reason)
    need = f"port {port.port}"
    evidence: tuple[Evidence, ...] = (Evidence(port.origin, str(port.port)),)
    if not 0 < port.port <= LARGEST_PORT:
        text = f"a port is a number from 1 to {LARGEST_PORT}"
        return Finding(_TAKEN, Status.FAIL, subject, "", need, "", text, evidence)
    others = [other for other in users[port.port] if other is not port]
    if others:
        text = f"{others[0].what} of {others[0].owner} binds it too: the later one ends"
        advice = "give one of them another port"
        return Finding(_TAKEN, Status.FAIL, subject, "two users", need, "", text, evidence, advice)
    state = network.ports.get(port.port, Unknown(f"port {port.port}: not tried"))
    if isinstance(state, Unknown):
        return unknown(_TAKEN, subject, state.reason, need=need)
    if state.free:
        return Finding(_TAKEN, Status.PASS, subject, "free", need, "", "", evidence)
    evidence = (*evidence, Evidence(f"bind {port.port}", state.error))
    if state.error == "EACCES":
        text = "this user may not bind so low a port"
        advice = "use a port of 1024 or more"
    elif state.error == "EADDRINUSE":
        text = "somebody holds it: the process ends, or answers go to the wrong one"
        advice = f"end what holds it (ss -ltnp 'sport = :{port.port}'), or give another port"
    else:
        return unknown(_TAKEN, subject, f"bind {port.port}: {state.error}", need=need)
    return Finding(_TAKEN, Status.FAIL, subject, state.error, need, "", text, evidence, advice)


_RANGE = "network.port-range"


@CHECKS.declare(_RANGE, "network")
def port_range(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each port of each process."""
    ports = _ports(_RANGE, needs)
    if isinstance(ports, Finding):
        yield ports
        return
    span, reserved = facts.network.ephemeral, facts.network.reserved
    if isinstance(span, Unknown) or isinstance(reserved, Unknown):
        reason = span if isinstance(span, Unknown) else reserved
        yield unknown(_RANGE, "host", reason.reason if isinstance(reason, Unknown) else "")
        return
    have = f"{span[0]} to {span[1]} are given out"
    kept = ",".join(f"{a}-{b}" if a != b else str(a) for a, b in reserved)
    risky = [
        port
        for port in ports
        if isinstance(port.port, int)
        and span[0] <= port.port <= span[1]
        and not any(first <= port.port <= last for first, last in reserved)
    ]
    wanted = ",".join([kept] * bool(kept) + [str(port.port) for port in risky])
    for port in risky:
        yield Finding(
            _RANGE,
            Status.WARN,
            f"{port.what} of {port.owner}",
            have,
            f"port {port.port}",
            text="an outgoing connection may hold it when the server restarts",
            evidence=(Evidence(PORT_RANGE, f"{span[0]} {span[1]}"),),
            advice="reserve it",
            settings=(Setting(Kind.SYSCTL, "net.ipv4.ip_local_reserved_ports", wanted, kept),),
        )
    if not risky:
        yield Finding(_RANGE, Status.PASS, "ports", have)


_CONNECTIONS = "network.time-wait"


@CHECKS.declare(_CONNECTIONS, "network")
def time_wait(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """The host, where a process of the launch moves data over TCP."""
    if needs is None:
        yield skip(_CONNECTIONS)
        return
    if not _moves_over_tcp(needs):
        yield skip(_CONNECTIONS, "no process of the launch moves data over TCP")
        return
    span, resting = facts.network.ephemeral, facts.network.time_wait
    if isinstance(span, Unknown) or isinstance(resting, Unknown):
        reason = span if isinstance(span, Unknown) else resting
        yield unknown(_CONNECTIONS, "host", reason.reason if isinstance(reason, Unknown) else "")
        return
    ports = span[1] - span[0] + 1
    have, need = f"{resting} resting", f"less than half of {ports}"
    evidence = (Evidence(SOCKETS, f"tw {resting}"), Evidence(PORT_RANGE, f"{span[0]} {span[1]}"))
    if 2 * resting < ports:
        yield Finding(_CONNECTIONS, Status.PASS, "host", have, need, evidence=evidence)
        return
    yield Finding(
        _CONNECTIONS,
        Status.WARN,
        "host",
        have,
        need,
        text="connections fail when all of them rest",
        evidence=evidence,
        advice="keep connections open (MC_TCP_ENABLE_CONNECTION_POOL=1), or widen the range",
    )


def _moves_over_tcp(needs: LaunchNeeds) -> bool:
    """Whether a store of the launch, or one inside a server, uses no RDMA."""
    embedded = any(service.kind == "master" for service in needs.services)
    stores = ("store_service", "mooncake_client", *(["sglang"] if embedded else []))
    return any(process.program in stores and process.rdma is None for process in needs.processes)


_ADVERTISED = "network.advertised-address"


@CHECKS.declare(_ADVERTISED, "network", "services")
def advertised(facts: Facts, needs: LaunchNeeds | None) -> Iterator[Finding]:
    """Each name that a store of the launch advertises."""
    if needs is None:
        yield skip(_ADVERTISED)
        return
    names = [service for service in needs.services if service.kind == "advertised"]
    if not names:
        yield skip(_ADVERTISED, "the launch advertises no name of its own")
    for service in names:
        if isinstance(service.host, Unknown):
            yield unknown(_ADVERTISED, service.owner, service.host.reason)
            continue
        answer = facts.services.answers.get(key_of(service))
        found = Unknown("not resolved") if answer is None else answer.addresses
        yield _advertised(service.host, service.origin, found, facts.network)


def _advertised(
    name: str, origin: str, found: tuple[str, ...] | Unknown, network: NetworkFacts
) -> Finding:
    need = "an address of this host"
    evidence = (Evidence(origin, name),)
    if isinstance(found, Unknown):
        if has_no_address(found):
            text = "the name does not resolve: no peer can connect"
            return Finding(_ADVERTISED, Status.FAIL, name, "", need, "", text, evidence)
        return unknown(_ADVERTISED, name, found.reason, need=need)
    have = ", ".join(found)
    if is_loopback(found[0]):
        text = "peers on other hosts cannot connect"
        advice = "set MOONCAKE_LOCAL_HOSTNAME to an address that peers can reach"
        return Finding(_ADVERTISED, Status.WARN, name, have, need, "", text, evidence, advice)
    if isinstance(network.addresses, Unknown):
        return unknown(_ADVERTISED, name, network.addresses.reason, have, need)
    own = {entry.address: entry for entry in network.addresses}
    if found[0] not in own:
        text = "no interface here has this address: peers reach another host, or none"
        return Finding(_ADVERTISED, Status.FAIL, name, have, need, "", text, evidence)
    if not own[found[0]].up:
        text = f"the interface {own[found[0]].interface} is down"
        return Finding(_ADVERTISED, Status.FAIL, name, have, need, "", text, evidence)
    return Finding(_ADVERTISED, Status.PASS, name, have, need, "", "", evidence)


def is_loopback(address: str) -> bool:
    """127.0.0.0/8 and ::1."""
    return address.startswith("127.") or address == "::1"
