"""Checks of the ports that a launch binds and of the address that it gives to others."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    UnjudgedError,
    passed,
    skip,
    unknown,
)
from checks.base.needs import LaunchNeeds, Port, Service
from checks.base.unknown import Unknown, known, must_be_read
from checks.network.facts import (
    ABSENT_KEY,
    LARGEST_PORT,
    METADATA_PATH,
    NOT_FOUND,
    PORT_RANGE,
    SOCKETS,
    Answer,
    NetworkFacts,
    ServiceFacts,
    has_no_address,
    key_of,
)

CHECKS = CheckSet()
_NO_PORTS = "the launch binds no fixed port"


def _ports(needs: LaunchNeeds | None) -> tuple[Port, ...]:
    ports = the_launch(needs).ports
    if not ports:
        raise UnjudgedError(skip(_NO_PORTS))
    return ports


@CHECKS.check("network.port-taken", _ports)
def port_taken(ports: tuple[Port, ...], network: NetworkFacts) -> Iterator[Finding]:
    """Each port of each process."""
    must_be_read(network)
    users: dict[int, list[Port]] = {}
    for port in ports:
        if isinstance(port.port, int):
            users.setdefault(port.port, []).append(port)
    for port in ports:
        yield _port(port, network, users)


def _port(port: Port, network: NetworkFacts, users: dict[int, list[Port]]) -> Finding:
    subject = f"{port.what} of {port.owner}"
    if isinstance(port.port, Unknown):
        return unknown(subject, port.port.reason)
    need = f"port {port.port}"
    evidence: tuple[Evidence, ...] = (Evidence(port.origin, str(port.port)),)
    if not 0 < port.port <= LARGEST_PORT:
        text = f"a port is a number from 1 to {LARGEST_PORT}"
        return passed(subject, need=need, evidence=evidence).failed(text)
    others = [other for other in users[port.port] if other is not port]
    if others:
        text = f"{others[0].what} of {others[0].owner} binds it too: the later one ends"
        advice = "give one of them another port"
        return passed(subject, "two users", need, evidence=evidence).failed(text, advice)
    state = network.ports.get(port.port, Unknown(f"port {port.port}: not tried"))
    if isinstance(state, Unknown):
        return unknown(subject, state.reason, need=need)
    if state.free:
        return passed(subject, "free", need, evidence=evidence)
    evidence = (*evidence, Evidence(f"bind {port.port}", state.error))
    if state.error == "EACCES":
        text = "this user may not bind so low a port"
        advice = "use a port of 1024 or more"
    elif state.error == "EADDRINUSE":
        text = "somebody holds it: the process ends, or answers go to the wrong one"
        advice = f"end what holds it (ss -ltnp 'sport = :{port.port}'), or give another port"
    else:
        return unknown(subject, f"bind {port.port}: {state.error}", need=need)
    return passed(subject, state.error, need, evidence=evidence).failed(text, advice)


@CHECKS.check("network.port-range", _ports)
def port_range(ports: tuple[Port, ...], network: NetworkFacts) -> Iterator[Finding]:
    """Each port of each process."""
    span, reserved = known(network.ephemeral), known(network.reserved)
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
        yield passed(
            f"{port.what} of {port.owner}",
            have,
            f"port {port.port}",
            evidence=(Evidence(PORT_RANGE, f"{span[0]} {span[1]}"),),
        ).warned(
            "an outgoing connection may hold it when the server restarts",
            "reserve it",
            (Setting(Kind.SYSCTL, "net.ipv4.ip_local_reserved_ports", wanted, kept),),
        )
    if not risky:
        yield passed("ports", have)


@CHECKS.check("network.time-wait", the_launch)
def time_wait(needs: LaunchNeeds, network: NetworkFacts) -> Iterator[Finding]:
    """The host, where a process of the launch moves data over TCP."""
    if not _moves_over_tcp(needs):
        yield skip("no process of the launch moves data over TCP")
        return
    span, resting = known(network.ephemeral), known(network.time_wait)
    ports = span[1] - span[0] + 1
    have, need = f"{resting} resting", f"less than half of {ports}"
    evidence = (Evidence(SOCKETS, f"tw {resting}"), Evidence(PORT_RANGE, f"{span[0]} {span[1]}"))
    if 2 * resting < ports:
        yield passed("host", have, need, evidence=evidence)
        return
    yield passed("host", have, need, evidence=evidence).warned(
        "connections fail when all of them rest",
        "keep connections open (MC_TCP_ENABLE_CONNECTION_POOL=1), or widen the range",
    )


def _moves_over_tcp(needs: LaunchNeeds) -> bool:
    """Whether a store of the launch, or one inside a server, uses no RDMA."""
    embedded = any(service.kind == "master" for service in needs.services)
    stores = ("store_service", "mooncake_client", *(["sglang"] if embedded else []))
    return any(process.program in stores and process.rdma is None for process in needs.processes)


@CHECKS.check("network.advertised-address", the_launch)
def advertised(
    needs: LaunchNeeds, network: NetworkFacts, services: ServiceFacts
) -> Iterator[Finding]:
    """Each name that a store of the launch advertises."""
    names = [service for service in needs.services if service.kind == "advertised"]
    if not names:
        yield skip("the launch advertises no name of its own")
    for service in names:
        if isinstance(service.host, Unknown):
            yield unknown(service.owner, service.host.reason)
            continue
        answer = services.answers.get(key_of(service))
        found = Unknown("not resolved") if answer is None else answer.addresses
        yield _advertised(service.host, service.origin, found, network)


def _advertised(
    name: str, origin: str, found: tuple[str, ...] | Unknown, network: NetworkFacts
) -> Finding:
    need = "an address of this host"
    evidence = (Evidence(origin, name),)
    if isinstance(found, Unknown):
        if has_no_address(found):
            text = "the name does not resolve: no peer can connect"
            return passed(name, need=need, evidence=evidence).failed(text)
        return unknown(name, found.reason, need=need)
    have = ", ".join(found)
    if is_loopback(found[0]):
        text = "peers on other hosts cannot connect"
        advice = "set MOONCAKE_LOCAL_HOSTNAME to an address that peers can reach"
        return passed(name, have, need, evidence=evidence).warned(text, advice)
    if isinstance(network.addresses, Unknown):
        return unknown(name, network.addresses.reason, have, need)
    own = {entry.address: entry for entry in network.addresses}
    if found[0] not in own:
        text = "no interface here has this address: peers reach another host, or none"
        return passed(name, have, need, evidence=evidence).failed(text)
    if not own[found[0]].up:
        text = f"the interface {own[found[0]].interface} is down"
        return passed(name, have, need, evidence=evidence).failed(text)
    return passed(name, have, need, evidence=evidence)


def is_loopback(address: str) -> bool:
    """127.0.0.0/8 and ::1."""
    return address.startswith("127.") or address == "::1"


_NONE = "the launch talks to nothing"


def _talking(needs: LaunchNeeds | None) -> LaunchNeeds:
    launch = the_launch(needs)
    if not _called(launch):
        raise UnjudgedError(skip(_NONE))
    return launch


def _called(needs: LaunchNeeds) -> list[Service]:
    return [service for service in needs.services if service.kind != "advertised"]


def _subject(service: Service) -> str:
    port = "" if service.port is None else f":{service.port}"
    host = "?" if isinstance(service.host, Unknown) else service.host
    return f"{service.kind} {host}{port}"


@CHECKS.check("service.address", _talking)
def address(needs: LaunchNeeds, services: ServiceFacts) -> Iterator[Finding]:
    """Each service."""
    for service in _called(needs):
        yield _address(service, services.answers.get(key_of(service)), needs.hosts)


def _address(service: Service, answer: Answer | None, hosts: int) -> Finding:
    subject, evidence = _subject(service), (Evidence(service.origin, str(service.host)),)
    if isinstance(service.host, Unknown):
        return unknown(subject, service.host.reason)
    if service.port is None:
        text = "there is no port in the address"
        advice = "write host:port"
        return passed(subject, evidence=evidence).failed(text, advice)
    found = Unknown("not resolved") if answer is None else answer.addresses
    if isinstance(found, Unknown):
        if has_no_address(found):
            text = f"the name does not resolve here ({found.reason})"
            return passed(subject, evidence=evidence).failed(text)
        return unknown(subject, found.reason)
    have = ", ".join(found)
    if hosts > 1 and is_loopback(found[0]):
        text = f"the launch runs on {hosts} hosts, and each would talk to itself"
        return passed(subject, have, evidence=evidence).warned(text)
    return passed(subject, have, evidence=evidence)


@CHECKS.check("service.reachable", _talking)
def reachable(needs: LaunchNeeds, services: ServiceFacts) -> Iterator[Finding]:
    """Each service that the launch does not start itself."""
    for service in _called(needs):
        yield _reachable(service, services.answers.get(key_of(service)))


def _reachable(service: Service, answer: Answer | None) -> Finding:
    subject = _subject(service)
    if service.own:
        return passed(subject, "the launch itself starts it")
    if isinstance(service.host, Unknown) or answer is None:
        reason = service.host.reason if isinstance(service.host, Unknown) else "not asked"
        return unknown(subject, reason)
    if isinstance(answer.open, Unknown):
        why = answer.addresses if isinstance(answer.addresses, Unknown) else answer.open
        return unknown(subject, why.reason)
    if not answer.open:
        text = f"nothing answers there ({answer.refusal})"
        evidence = (Evidence(f"connect {subject}", answer.refusal),)
        advice = "start it, or correct the address"
        return passed(subject, "no answer", evidence=evidence).failed(text, advice)
    if service.kind == "metadata-http":
        return _metadata(subject, answer)
    if service.kind == "master-admin":
        return _admin(subject, answer)
    if service.kind == "master":
        return _master(subject, answer)
    return passed(subject, "something listens")


def _metadata(subject: str, answer: Answer) -> Finding:
    if isinstance(answer.status, Unknown):
        text = f"it speaks no HTTP ({answer.status.reason})"
        return passed(subject, "open").failed(text)
    have = f"HTTP {answer.status}"
    evidence = (Evidence(f"GET {METADATA_PATH}{ABSENT_KEY}", f"{answer.status} {answer.body}"),)
    if answer.status == 404 and NOT_FOUND in answer.body:
        return passed(subject, "a metadata server", evidence=evidence)
    need = f"404 {NOT_FOUND}"
    text = "an HTTP server, and no metadata server at this path"
    if answer.status == 401:
        text = "the metadata server wants a token: set MC_METADATA_HTTP_TOKEN"
    return passed(subject, have, need, evidence=evidence).failed(text)


def _admin(subject: str, answer: Answer) -> Finding:
    if isinstance(answer.status, Unknown):
        text = f"it speaks no HTTP ({answer.status.reason})"
        return passed(subject, "open").failed(text)
    body = "".join(answer.body.split())
    evidence = (Evidence("GET /health", answer.body[:200]),)
    have = f"HTTP {answer.status}"
    if answer.status == 200 and '"service_ready":true' in body:
        return passed(subject, "service_ready", evidence=evidence)
    # "status" is always ok there: what counts is service_ready.
    text = "the master does not say service_ready: it is not serving, or it is something else"
    return passed(subject, have, "service_ready true", evidence=evidence).failed(text)


def _master(subject: str, answer: Answer) -> Finding:
    if answer.refusal:
        text = f"something listens, and gives Mooncake's own client {answer.refusal}"
        return passed(subject, "open", "a master").failed(text)
    if isinstance(answer.code, Unknown):
        reason = f"something listens; whether it is a master is not known ({answer.code.reason})"
        return unknown(subject, reason, have="open")
    evidence = (Evidence("setup with rpc_only", f"returned {answer.code}"),)
    if answer.code == 0:
        return passed(subject, "a master, ready", evidence=evidence)
    text = "Mooncake's own client gets no service from it: another program, or another version"
    have = f"open, setup returned {answer.code}"
    return passed(subject, have, "0", evidence=evidence).failed(text)
