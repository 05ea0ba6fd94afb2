"""Can a launch bind its ports, be reached at the address that it names, and reach its services?"""

from collections.abc import Iterator

from checks.framework.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Subject,
    UnjudgedError,
    command,
    or_unjudged,
    passed,
    skip,
)
from checks.framework.needs import BoundPort, LaunchNeeds, Service
from checks.framework.problem import Problems, the_launch
from checks.framework.unknown import Unknown, must_be_read, require
from checks.network.facts import (
    ABSENT_KEY,
    LARGEST_PORT,
    METADATA_PATH,
    NOT_FOUND,
    NOT_HTTP,
    PORT_RANGE,
    SOCKETS,
    NetworkFacts,
    ServiceAnswer,
    ServiceFacts,
    has_no_address,
    key_of,
)

CHECKS = Problems()
# What a kernel gives out where nobody set another (net/ipv4/af_inet.c, inet_init_net).
STOCK_RANGE = (32768, 60999)


def _ports(needs: LaunchNeeds | None) -> tuple[BoundPort, ...]:
    ports = the_launch(needs).ports
    if not ports:
        raise UnjudgedError(skip("the launch binds no fixed port"))
    return ports


@CHECKS("network.port-taken", ports=_ports)
def port_taken(ports: tuple[BoundPort, ...], network: NetworkFacts) -> Iterator[Finding]:
    """Judge whether each port of the launch is free here, and bound once by the launch."""
    must_be_read(network)
    for port in ports:
        same = (other for other in ports if isinstance(other.port, int))
        at = (port.network, port.port)
        at_port = [other for other in same if (other.network, other.port) == at]
        yield _judge_port(port, network, at_port)


@or_unjudged
def _judge_port(port: BoundPort, network: NetworkFacts, same: list[BoundPort]) -> Finding:
    """Judge one port of the launch: its number, its other users, and whether it is free here.

    Args:
        same: All ports of the launch with this number in this network, ``port`` included, in their
            order.
    """
    finding = passed(f"{port.what} of {port.owner}")
    number = finding.require(port.port)
    finding = finding._replace(need=f"port {number}")
    evidence: tuple[Evidence, ...] = (Evidence(port.origin, str(number)),)
    judged = finding._replace(evidence=evidence)
    if not 0 < number <= LARGEST_PORT:
        text, need = f"no port has the number {number}", f"at most {LARGEST_PORT}"
        advice = f"give a port from 1 to {LARGEST_PORT} at {port.origin}"
        return judged.failed(text, advice, have=f"port {number}", need=need)
    place = next(index for index, other in enumerate(same) if other is port)
    # One that has ended before the next begins takes nothing of it: a guide's alternatives. Where
    # one process binds both, its own processes meet at one of them.
    others = [
        other
        for index, other in enumerate(same)
        if index != place and other.pod == port.pod and _meet(port.address, other.address)
        if _together(port, other)
        or (port.owner == other.owner and port.inner != other.inner)
        or not same[min(index, place)].waited
    ]
    need = f"port {number} for one alone"
    open_words = [user.unless for user in (port, *others) if user.unless]
    if open_words and others:
        text = f"{others[0].what} of {others[0].owner} binds it too, unless {open_words[0]}"
        return judged.undecided(f"{text}, which is not known, gives another port", need=need)
    sure = [other for other in others if other.turn == port.turn]
    if any(_together(port, other) for other in sure):
        text = f"{port.owner} publishes it twice: the engine refuses the later one"
        advice = f"give one of them another port of the host at {port.origin}"
        return judged.failed(text, advice, have="published twice", need=f"port {number} once")
    if sure:
        text = f"{sure[0].what} of {sure[0].owner} binds it too: the later one ends"
        return judged.failed(text, "give one of them another port", have="two processes", need=need)
    if others:
        text = f"{others[0].what} of {others[0].owner} binds it too, unless the launch has ended "
        return judged.undecided(f"{text}one of the two before it starts the other", need=need)
    if port.inner:
        return skip("no other process of the launch binds it", finding.subject)
    if port.network:
        return judged._replace(have=f"a network of its own: {port.network}")
    state = finding.require(network.ports.get(number, Unknown(f"port {number}: not tried")))
    if state.free:
        return judged._replace(have="free")
    evidence = (*evidence, Evidence(f"bind {number}", state.error))
    judged = finding._replace(have=state.error, evidence=evidence)
    if state.error == "EACCES" and port.address is not None:
        return finding.undecided("the engine binds it as root, which this user cannot try")
    if state.error == "EACCES":
        return judged.failed("this user may not bind so low a port", "use a port of 1024 or more")
    if state.error != "EADDRINUSE":
        return finding.undecided(f"bind {number}: {state.error}")
    if port.unless:
        text = f"another process holds it, unless {port.unless}, which is not known, gives another"
        return finding.undecided(text)
    return judged.failed(
        "another process holds it: this one ends, or requests reach the wrong one",
        f"end what holds it (ss -ltnp 'sport = :{number}'), or give another port",
    )


def _together(port: BoundPort, other: BoundPort) -> bool:
    """Tell whether a container engine publishes both ports for one container, so at one time."""
    return port.address is not None and other.address is not None and port.owner == other.owner


def _meet(address: str | None, other: str | None) -> bool:
    """Tell whether two addresses cannot both be bound at one port; "" is all addresses.

    None, an address that the process chooses, conflicts with "" and None, and with no stated
    address.
    """
    if address is None or other is None:
        return not address and not other
    return address == other or not address or not other


@CHECKS("network.port-range", ports=_ports)
def port_range(ports: tuple[BoundPort, ...], network: NetworkFacts) -> Iterator[Finding]:
    """Judge whether the kernel may hand a port that the launch binds on the host to an outgoing
    connection.

    With the range of a stock kernel the finding passes, with advice.
    """
    span, reserved = require(network.ephemeral), require(network.reserved)
    have = f"{span[0]} to {span[1]} are for outgoing connections"
    kept = ",".join(f"{a}-{b}" if a != b else str(a) for a, b in reserved)
    risky = [
        port
        for port in ports
        if isinstance(port.port, int) and not port.network and not port.inner
        if span[0] <= port.port <= span[1]
        if not any(first <= port.port <= last for first, last in reserved)
    ]
    wanted = ",".join([kept] * bool(kept) + [str(port.port) for port in risky])
    for port in risky:
        evidence = (Evidence(PORT_RANGE, f"{span[0]} {span[1]}"),)
        subject, need = f"{port.what} of {port.owner}", f"port {port.port}"
        finding = passed(subject, have, need, evidence=evidence)
        if tuple(span) == STOCK_RANGE:
            text = (
                "inside the range of a stock kernel, where a connection seldom holds it when the "
                f"server restarts: reserve it (net.ipv4.ip_local_reserved_ports={wanted}) if no "
                "restart may fail"
            )
            yield finding._replace(text=text)
            continue
        yield finding.warned(
            "an outgoing connection may hold it when the server restarts",
            "reserve it",
            (Setting(Kind.SYSCTL, "net.ipv4.ip_local_reserved_ports", wanted, kept),),
        )
    if not risky:
        yield passed("ports", have)


@CHECKS("network.time-wait")
def time_wait(needs: LaunchNeeds, network: NetworkFacts) -> Iterator[Finding]:
    """Warn if TIME_WAIT holds half of the ephemeral ports, and the launch moves data over TCP."""
    embedded = any(service.kind == "master" for service in needs.services)
    stores = ("store_service", "mooncake_client", *(["sglang"] if embedded else []))
    if all(each.program not in stores or each.rdma is not None for each in needs.processes):
        yield skip("no process of the launch moves data over TCP")
        return
    span, resting = require(network.ephemeral), require(network.time_wait)
    ports = span[1] - span[0] + 1
    have, need = f"{resting} in TIME_WAIT", f"less than half of {ports}"
    evidence = (Evidence(SOCKETS, f"tw {resting}"), Evidence(PORT_RANGE, f"{span[0]} {span[1]}"))
    finding = passed("host", have, need, evidence=evidence)
    text = "new connections fail once all ports are in TIME_WAIT"
    advice = "keep connections open (MC_TCP_ENABLE_CONNECTION_POOL=1), or widen the range"
    yield finding if 2 * resting < ports else finding.warned(text, advice)


@CHECKS("network.advertised-address")
def advertised(
    needs: LaunchNeeds, network: NetworkFacts, services: ServiceFacts
) -> Iterator[Finding]:
    """Judge whether each name that a store of the launch advertises leads to this host."""
    names = [service for service in needs.services if service.kind == "advertised"]
    if not names:
        yield skip("the launch advertises no name of its own")
    for service in names:
        yield _judge_name(service, services.answers.get(key_of(service)), network)


def _ends_where_it_binds(finding: Finding, service: Service) -> Finding:
    """Return the finding of an address that this host lacks, for a process that binds it too."""
    if not service.binds:
        return finding
    text = f"{finding.text}; mooncake_client binds its own port there, and ends with exit 1"
    return finding._replace(text=text, consequence=Consequence.WILL_NOT_START)


@or_unjudged
def _judge_name(service: Service, answer: ServiceAnswer | None, network: NetworkFacts) -> Finding:
    """Judge the address under which a store registers itself.

    The first address that its name resolves to must be of an interface that is up here, and no
    loopback.
    """
    name = passed(Subject(service.owner, "process")).require(service.host)
    finding = passed(Subject(name, "address"), need="an address of this host")
    judged = finding._replace(evidence=(Evidence(service.origin, name),))
    resolved = Unknown("not resolved") if answer is None else answer.addresses
    if isinstance(resolved, Unknown) and has_no_address(resolved):
        advice = "advertise an address of this host, or have the name resolve to one"
        unresolved = judged.failed("the name does not resolve: no peer can connect", advice)
        return _ends_where_it_binds(unresolved, service)
    addresses = finding.require(resolved)
    have, first = ", ".join(addresses), addresses[0]
    finding, judged = finding._replace(have=have), judged._replace(have=have)
    if is_loopback(first):
        advice = "set MOONCAKE_LOCAL_HOSTNAME to an address that peers can reach"
        return judged.warned("peers on other hosts cannot connect", advice)
    mine = {entry.address: entry for entry in finding.require(network.addresses)}
    if first not in mine:
        here = ", ".join(at for at, entry in mine.items() if entry.up and not is_loopback(at))
        named = f" ({here})" if here else ""
        foreign = judged.failed(
            "no interface here has this address: peers reach another host, or none",
            f"advertise an address of this host, on the network of its peers{named}",
        )
        return _ends_where_it_binds(foreign, service)
    if not mine[first].up:
        interface = mine[first].interface
        up = command("ip", "link", "set", "dev", interface, "up", now="down", as_root=True)
        advice = f"bring {interface} up (on the host)"
        return judged.failed(f"the interface {interface} is down", advice, (up,))
    return judged


def is_loopback(address: str) -> bool:
    """Return whether an address is in 127.0.0.0/8, or ::1."""
    return address.startswith("127.") or address == "::1"


ANY_IPV4 = "0.0.0.0"
_CORRECT = "correct the address, or end what listens there and start the right one"


def _contacted_services(needs: LaunchNeeds | None) -> list[tuple[Service, int]]:
    """Return each service that the launch contacts, with the number of hosts of the launch.

    Addresses that the launch advertises are left out.

    Raises:
        UnjudgedError: Without a launch, or if it contacts no service.
    """
    launch = the_launch(needs)
    called = [(each, launch.hosts) for each in launch.services if each.kind != "advertised"]
    if not called:
        raise UnjudgedError(skip("the launch contacts no service from this host"))
    return called


def _subject(service: Service) -> str:
    """Name a service with its address: ``master 10.0.0.1:50051``."""
    host = service.name if isinstance(service.host, Unknown) else service.host
    if not host:
        port = "" if service.port is None else f" at port {service.port}"
        return f"{service.kind}{port}, whose host is not known"
    port = "" if service.port is None else f":{service.port}"
    return f"{service.kind} {host}{port}"


@CHECKS("service.address", called=_contacted_services)
def address(called: list[tuple[Service, int]], services: ServiceFacts) -> list[Finding]:
    answers = services.answers
    return [_judge_address(each, answers.get(key_of(each)), hosts) for each, hosts in called]


@or_unjudged
def _judge_address(service: Service, answer: ServiceAnswer | None, hosts: int) -> Finding:
    """Judge a service's address: it has a port, resolves, and is no loopback if ``hosts`` > 1."""
    finding = passed(_subject(service))
    judged = finding._replace(evidence=(Evidence(service.origin, finding.require(service.host)),))
    if service.port is None:
        return judged.failed("there is no port in the address", "write host:port")
    resolved = Unknown("not resolved") if answer is None else answer.addresses
    if isinstance(resolved, Unknown) and has_no_address(resolved):
        advice = "write an address, or a name that every host of the launch can resolve"
        return judged.failed(f"the name does not resolve here ({resolved.reason})", advice)
    addresses = finding.require(resolved)
    judged = judged._replace(have=", ".join(addresses))
    if hosts > 1 and is_loopback(addresses[0]):
        text = f"the launch runs on {hosts} hosts, and each would connect to itself"
        return judged.warned(text, "write the address of the host where it runs")
    return judged


@CHECKS("service.reachable", called=_contacted_services)
def reachable(
    called: list[tuple[Service, int]], services: ServiceFacts, network: NetworkFacts
) -> list[Finding]:
    return [
        _judge_reachable(each, services.answers.get(key_of(each)), network) for each, _ in called
    ]


@or_unjudged
def _judge_reachable(
    service: Service, answer: ServiceAnswer | None, network: NetworkFacts
) -> Finding:
    """Judge whether a service answers, each kind in the protocol that it speaks.

    A service that the launch itself starts is not asked: its address is judged.
    """
    finding = passed(_subject(service))
    if service.own:
        finding = finding._replace(have="the launch itself starts it")
        if answer is None or isinstance(answer.addresses, Unknown):
            return finding  # service.address says it
        return _judge_own(finding, service, answer.addresses, network)
    finding.require(service.host)
    if answer is None:
        return finding.undecided("not asked")
    if isinstance(answer.open, Unknown):
        finding.require(answer.addresses)
    if not finding.require(answer.open):
        return finding.failed(
            f"nothing answers there ({answer.refusal})",
            "start it, or correct the address",
            have="no answer",
            evidence=(Evidence(f"connect {finding.subject}", answer.refusal),),
        )
    if answer.late:
        text = f"something listens, and gives {answer.late}: try a longer --timeout"
        return finding.undecided(text, have="open")
    judge_http = {"metadata-http": _judge_metadata, "master-admin": _judge_admin}.get(service.kind)
    if judge_http is not None:
        if finding._replace(have="open").require(answer.code) == NOT_HTTP:
            return finding.failed(f"it does not answer HTTP ({answer.body})", _CORRECT, have="open")
        return judge_http(finding._replace(have=f"HTTP {answer.code}"), answer)
    if service.kind == "master":
        return _judge_master_answer(finding._replace(have="open"), answer)
    return finding._replace(have="something listens")


def _judge_own(
    finding: Finding, service: Service, addresses: tuple[str, ...], network: NetworkFacts
) -> Finding:
    """Judge whether a service of the launch is asked at an address where it will listen, and if it
    is loopback, whether this host has that.

    Args:
        addresses: Of the name by which it is asked. Of a recorded host whose addresses were not
            kept, loopback is taken to be up.
    """
    seen, loopback = network.addresses, all(map(is_loopback, addresses))
    here = None if isinstance(seen, Unknown) else {entry.address for entry in seen if entry.up}
    if loopback and here is not None and not any(_has_loopback(each, here) for each in addresses):
        text = f"no interface that is up has {addresses[0]}: connections to this host itself fail"
        up = command("ip", "link", "set", "dev", "lo", "up", now="down", as_root=True)
        return finding.failed(text, "bring lo up, with its address", (up,), have="no loopback")
    if not service.bound or any(
        bound in ("::", address) or (bound == ANY_IPV4 and ":" not in address)
        for bound in service.bound
        for address in addresses
    ):
        return finding
    if not loopback and {*addresses} - {entry.address for entry in finding.require(seen)}:
        return finding  # another host serves it too
    wanted = "::" if ":" in addresses[0] else ANY_IPV4
    bound = " and ".join(dict.fromkeys(service.bound))
    text = f"the launch's {service.kind} listens at {bound} alone: clients end with -600"
    return finding.failed(text, f"give the {service.kind} --rpc_address={wanted}", have=bound)


def _has_loopback(address: str, here: set[str]) -> bool:
    """Tell whether a loopback address is of this host, which has all of 127.0.0.0/8 or none."""
    return address in here or (address[:4] == "127." and any(each[:4] == "127." for each in here))


def _judge_metadata(finding: Finding, answer: ServiceAnswer) -> Finding:
    """Judge the answer of an HTTP metadata server: only 404 with Mooncake's own words passes."""
    evidence = (Evidence(f"GET {METADATA_PATH}{ABSENT_KEY}", f"{answer.code} {answer.body}"),)
    finding = finding._replace(evidence=evidence)
    if answer.code == 404 and NOT_FOUND in answer.body:
        return finding._replace(have="a metadata server")
    text, advice = "an HTTP server, without a metadata server at this path", _CORRECT
    if answer.code == 401:
        text, advice = "the metadata server wants a token", "set MC_METADATA_HTTP_TOKEN"
    return finding.failed(text, advice, need="a metadata server")


def _judge_admin(finding: Finding, answer: ServiceAnswer) -> Finding:
    """Judge the answer of a master's HTTP port: only 200 with ``service_ready`` true passes."""
    finding = finding._replace(evidence=(Evidence("GET /health", answer.body[:200]),))
    if answer.code == 200 and '"service_ready":true' in "".join(answer.body.split()):
        return finding._replace(have="service_ready")
    # "status" is always ok there: what counts is service_ready.
    text = "the master does not answer service_ready: it does not serve yet, or is another program"
    advice = f"wait until it serves, and look at its log; or {_CORRECT}"
    return finding.failed(text, advice, need="service_ready true")


def _judge_master_answer(finding: Finding, answer: ServiceAnswer) -> Finding:
    """Judge the code that Mooncake's own client got from a master: only 0 passes."""
    if isinstance(answer.code, Unknown):
        why = answer.code.reason
        return finding.undecided(f"something listens; whether it is a master is not known ({why})")
    evidence = (Evidence("setup with rpc_only", f"returned {answer.code}"),)
    finding = finding._replace(evidence=evidence)
    if answer.code == 0:
        return finding._replace(have="a master, ready")
    return finding.failed(
        "Mooncake's own client cannot use it: it is another program, or another release",
        f"{_CORRECT}; or install the same release of Mooncake on both sides",
        have=f"open, setup returned {answer.code}",
        need="0",
    )
