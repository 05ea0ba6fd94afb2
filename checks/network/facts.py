"""The host's network as servers meet it: addresses, port ranges, the launch's own ports, routes.

A RoCE port resolves its peer with the GID's address as the source and the GID's interface as the
only way out (Linux drivers/infiniband/core/addr.c), so rules are held against these two; ports,
protocols, marks and the type of service are not set in that lookup (flowi of zeros).
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NamedTuple

from checks.framework.needs import LaunchNeeds, Service
from checks.framework.patterns import answered, matched, of
from checks.framework.root import LIMIT_SECONDS, Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require

PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
SOCKETS = "/proc/net/sockstat"
LARGEST_PORT = 65535


class InterfaceAddress(NamedTuple):
    """One address of an interface of this network namespace."""

    interface: str
    address: str
    up: bool


class PortState(NamedTuple):
    """Whether a port can be bound; ``error`` is the kernel's name of the refusal."""

    free: bool
    error: str


class NetworkFacts(NamedTuple):
    """The network of a host, as this network namespace shows it."""

    addresses: tuple[InterfaceAddress, ...] | Unknown
    ephemeral: tuple[int, int] | Unknown  # first and last port given to outgoing connections
    reserved: tuple[tuple[int, int], ...] | Unknown  # ports of that range that are kept free
    ports: Mapping[int, PortState | Unknown]  # by number, those of the launch
    time_wait: int | Unknown = Unknown("not read", absent=True)  # closed, with ports not free yet
    routing: RoutingTables | Unknown = Unknown("not read", absent=True)


def read_network(root: Root, needs: LaunchNeeds | None) -> NetworkFacts:
    """Read the network below ``root``, and try to bind the launch's fixed ports.

    The addresses are read only without a launch, or if the launch advertises a name or calls a
    service that it starts.
    """
    numbers = {port.port for port in needs.ports if isinstance(port.port, int)} if needs else set()
    compared = needs is None or any(service.own for service in needs.services)
    return NetworkFacts(
        _addresses(root) if compared else Unknown("no name of the launch is held against them"),
        _range(root),
        _reserved(root),
        {number: _port(root, number) for number in sorted(numbers) if 0 < number <= LARGEST_PORT},
        _time_wait(root),
        read_routing(root),
    )


def _time_wait(root: Root) -> int | Unknown:
    """Count connections in TIME_WAIT: ``TCP: inuse 5 orphan 0 tw 3 alloc 7 mem 1``."""
    wrong = f"{SOCKETS}: has no count of TCP sockets in TIME_WAIT"
    return matched(root.text(SOCKETS), r"^TCP: (?:.* )?tw ([0-9]{1,11})(?: |$)", int, wrong)


def _addresses(root: Root) -> tuple[InterfaceAddress, ...] | Unknown:
    """Read the addresses of this host's interfaces."""
    return answered(
        root.call("network.addresses"),
        lambda rows: tuple(
            InterfaceAddress(str(row["interface"]), str(row["address"]), row["up"] is True)
            for row in rows
        ),
        "network.addresses: not a list of addresses",
    )


@or_unknown
def _range(root: Root) -> tuple[int, int] | Unknown:
    """Read the range of ephemeral ports as ``(first, last)``."""
    two = r"\A\s*([0-9]{1,5})\s+([0-9]{1,5})\s*\Z"
    content, wrong = root.text(PORT_RANGE), f"{PORT_RANGE}: not two ports:"
    first, last = require(matched(content, two, lambda *ports: map(int, ports), wrong))
    if not 1 <= first <= last <= LARGEST_PORT:
        return Unknown(f"{PORT_RANGE}: not a range of ports: '{first} {last}'")
    return first, last


@or_unknown
def _reserved(root: Root) -> tuple[tuple[int, int], ...] | Unknown:
    """Read the reserved ports (``8080,30000-30010``) as ranges; () for an empty or absent file."""
    content = require(none_if_absent(root.word(RESERVED), ""))
    spans: list[tuple[int, int]] = []
    for part in filter(None, map(str.strip, content.split(","))):
        first, dash, last = part.partition("-")
        if not all(word.isdecimal() and len(word) < 6 for word in (first, last)[: 1 + bool(dash)]):
            return Unknown(f"{RESERVED}: not a list of ports: {content[:40]!r}")
        spans.append((int(first), int(last or first)))
    return tuple(spans)


def _port(root: Root, number: int) -> PortState | Unknown:
    return answered(
        root.call("network.bind", number),
        lambda answer: PortState(of(bool, answer["free"]), str(answer.get("errno", ""))),
        f"network.bind {number}: no answer of whether it is free",
    )


# A metadata server answers a key that nobody wrote with 404 and these words, in C++ and in Python
# (http_metadata_server.cpp, mooncake/http_metadata_server.py); other servers' 404 has other words.
METADATA_PATH = "/metadata"
ABSENT_KEY = "?key=mooncake-preflight"
NOT_FOUND = "metadata not found"
NOT_HTTP = 0  # as the status of an answer

# EAI_NONAME and EAI_NODATA of netdb.h: the name service answered, and there is no address.
_NO_ADDRESS = ("-2", "-5")


# Seconds after which Mooncake's own client gives a master up (measured, 0.3.13.post1).
PATIENCE = 4.3


class ServiceAnswer(NamedTuple):
    """The answer of one service.

    What was not asked is Unknown.
    """

    addresses: tuple[str, ...] | Unknown  # of its name
    open: bool | Unknown  # whether something listens
    refusal: str = ""  # the error's name and text if nothing listens
    late: str = ""  # how long it gave no answer, if something listens
    # The status of the HTTP answer, or NOT_HTTP; of a master what Mooncake's client said, 0: ready.
    code: int | Unknown = Unknown("not asked")
    body: str = ""  # of the HTTP answer, or why it is not HTTP


class ServiceFacts(NamedTuple):
    """The services' answers, by ``key_of``.

    Services of the launch itself are only resolved.
    """

    answers: Mapping[tuple[str, str, int | None], ServiceAnswer]


def key_of(service: Service) -> tuple[str, str, int | None]:
    """Return the key of a service in ``ServiceFacts``."""
    host = service.host if isinstance(service.host, str) else ""
    return service.kind, host, service.port


# Of the time limit, for all services together: one that never ends its answer hides no other's.
ASKING_SHARE = 0.9


def read_services(root: Root, needs: LaunchNeeds | None) -> ServiceFacts:
    """Ask every service of the launch whose host is known, all at the same time."""
    import threading

    services = needs.services if needs else ()
    asked = [each for each in services if isinstance(each.host, str) and each.host]
    limit = ASKING_SHARE * LIMIT_SECONDS.get()
    late = Unknown(f"it was not asked to the end within {limit:g} s")
    answers = {key_of(each): ServiceAnswer(late, late) for each in asked}

    def ask(service: Service) -> None:
        answers[key_of(service)] = _ask(root, service)

    threads = [
        # A thread begins with no context: the time limit goes with it.
        threading.Thread(target=copy_context().run, args=(ask, service), daemon=True)
        for service in asked
    ]
    started = 0
    with suppress(RuntimeError):  # no thread is to be had: pids.max, ulimit -u or -v
        for thread in threads:
            thread.start()
            started += 1
    for service in asked[started:]:
        ask(service)
    until = time.monotonic() + limit
    for thread in threads[:started]:
        thread.join(max(0.0, until - time.monotonic()))
    return ServiceFacts(dict(answers))


def _ask(root: Root, service: Service) -> ServiceAnswer:
    """Ask one service: resolve its name, connect, and ask a master or HTTP metadata server for an
    answer.

    A service that the launch starts itself, or without a port, is only resolved.
    """
    host, port = str(service.host), service.port
    addresses: tuple[str, ...] | Unknown = (host,)
    if not _is_address(host):
        reply = root.call("services.resolve", host)
        addresses = Unknown("services.resolve: no address")
        if isinstance(reply, Unknown) or (isinstance(reply, list) and reply):
            addresses = reply if isinstance(reply, Unknown) else tuple(map(str, reply))
    if service.own or port is None or isinstance(addresses, Unknown):
        return ServiceAnswer(addresses, Unknown("not asked"))
    reply = root.call("services.connect", host, port)
    if not isinstance(reply, dict):
        why = reply if isinstance(reply, Unknown) else Unknown("services.connect: no answer")
        return ServiceAnswer(addresses, why)
    if reply.get("open") is not True:
        refusal = f"{reply.get('error', '')}: {reply.get('text', '')}"
        tried = reply.get("timeout", 0.0)
        if reply.get("error") == "timeout" and isinstance(tried, int | float) and tried < PATIENCE:
            late = f"no connection within {tried:g} s: a firewall, or a slow or dead host"
            return ServiceAnswer(addresses, Unknown(f"{late} (a longer --timeout tells more)"))
        return ServiceAnswer(addresses, False, refusal)
    answer = ServiceAnswer(addresses, True)
    spoken = ("master", "master-admin", "metadata-http")
    return _speak(root, service, port, answer) if service.kind in spoken else answer


def has_no_address(why: Unknown) -> bool:
    """Return whether the resolver said that a name has none; else nobody asked, or answered."""
    return why.code in _NO_ADDRESS


def _is_address(host: str) -> bool:
    """Tell whether ``host`` is an address, which needs no name service."""
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _speak(root: Root, service: Service, port: int, answer: ServiceAnswer) -> ServiceAnswer:
    """Ask a service that accepts connections, and return ``answer`` with its reply.

    A master's RPC port is asked by Mooncake's own client, any other by HTTP.
    """
    path = "" if service.kind == "master" else "/health"
    if service.kind == "metadata-http":
        path = (service.path or METADATA_PATH) + ABSENT_KEY
    call, asked = ("services.http", (path,)) if path else ("services.master", ())
    reply = root.call(call, str(service.host), port, *asked)
    if isinstance(reply, Unknown):
        return answer._replace(code=reply)
    reply = reply if isinstance(reply, dict) else {}
    code, error = reply.get("status" if path else "code"), reply.get("error")
    if reply.get("timeout"):
        return answer._replace(late=f"no answer within {reply['timeout']} s")
    if isinstance(code, int):
        return answer._replace(code=code, body=str(reply.get("body", "")))
    if path:
        return answer._replace(code=NOT_HTTP, body=f"GET {path}: {error or 'no HTTP answer'}")
    why = Unknown(f"Mooncake's client could not ask: {error or 'no answer'}")
    return answer._replace(code=why)


# Actions of linux/fib_rules.h, and route types of linux/rtnetlink.h.
TO_TABLE, GO_TO, NOTHING = 1, 2, 3
UNICAST, THROW = 1, 9
REJECTS = (6, 7, 8)  # blackhole, unreachable, prohibit
# Selectors (FRA_*) that a lookup without ports, protocol, tunnel, flow label or type of service
# never meets, and their masks.
NEVER_MET = (-1, 12, 22, 23, 24, 25, 26, 27, 28, 29, 30)
# In calls.routes, of a table that was not read to its end.
CUT = -1

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class RoutingRule(NamedTuple):
    """A line of ``ip rule``; see ``calls.rules``."""

    family: int
    priority: int
    action: int
    table: int
    invert: bool
    source: str
    target: str
    iif: str
    oif: str
    mark: tuple[int, int] | None
    goto: int | None
    suppress_prefix: int | None
    other: tuple[int, ...]


class TableRoute(NamedTuple):
    """A route of any table; destination: ``10.0.0.0/24``."""

    family: int
    table: int
    type: int
    destination: str
    gateway: str
    interface: str


class RoutingTables(NamedTuple):
    """What a host's kernel looks routes up in."""

    rules: tuple[RoutingRule, ...]  # in the kernel's order, of both families
    routes: tuple[TableRoute, ...]


@or_unknown
def read_routing(root: Root) -> RoutingTables | Unknown:
    """Read the kernel's rules and routes, live or recorded; Unknown if not all routes were read."""
    wrong = "routing: the recorded answer is damaged"
    answers = require(root.call("routing.rules")), require(root.call("routing.routes"))
    rules = require(answered(answers[0], lambda rows: tuple(map(_recorded_rule, rows)), wrong))
    routes = require(answered(answers[1], lambda rows: tuple(map(_recorded_route, rows)), wrong))
    if any(row.table == CUT for row in routes):
        return Unknown("routing: more routes than are read")
    return RoutingTables(rules, routes)


def _recorded_rule(row: dict[str, Any]) -> RoutingRule:
    """Read a recorded rule.

    Raises:
        ValueError: If it is damaged.
        TypeError: If it is damaged.
        LookupError: If it is damaged.
    """
    for network in filter(None, (row["from"], row["to"])):
        ipaddress.ip_network(network, strict=False)
    family, priority, action, table = (
        int(row[key]) for key in ("family", "priority", "action", "table")
    )
    source, target, iif, oif = (str(row[key]) for key in ("from", "to", "iif", "oif"))
    goto, prefix = (None if row[n] is None else int(row[n]) for n in ("goto", "suppress_prefix"))
    mark = None if row["mark"] is None else (int(row["mark"][0]), int(row["mark"][1]))
    other, invert = tuple(map(int, row["other"])), row["invert"] is True
    return RoutingRule(
        family, priority, action, table, invert, source, target, iif, oif, mark, goto, prefix, other
    )


def _recorded_route(row: Sequence[Any]) -> TableRoute:
    """Read a recorded route.

    Raises:
        ValueError: If it is damaged.
        TypeError: If it is damaged.
    """
    family, table, type_, destination, gateway, interface = row
    if destination:
        ipaddress.ip_network(destination, strict=False)
    return TableRoute(
        int(family), int(table), int(type_), str(destination), str(gateway), str(interface)
    )


@or_unknown
def exits(routing: RoutingTables, source: str, interface: str) -> tuple[str, ...] | Unknown:
    """Return the networks that the kernel reaches from ``source`` through ``interface``, as text.

    Args:
        source: An IP address. Rules and tables are followed in the kernel's order.

    Returns:
        Unknown if a rule has a selector or an action that is not read here, or jumps for only some
        destinations.
    """
    address = ipaddress.ip_address(source)
    reachable: list[Network] = []
    whole = ipaddress.ip_network("0.0.0.0/0" if address.version == 4 else "::/0")
    undecided: list[Network] = [whole]  # what no rule before has decided
    below = 0
    for rule in (rule for rule in routing.rules if rule.family == address.version):
        if rule.priority < below:
            continue
        matching = require(_matching_part(rule, address, interface, undecided))
        if not matching:
            continue
        if rule.action == TO_TABLE:
            undecided = _look_up(routing.routes, rule, interface, matching, undecided, reachable)
        elif rule.action in REJECTS:
            undecided = _without(undecided, matching)
        elif rule.action == GO_TO and rule.goto is not None:
            if matching != undecided:
                return Unknown(f"rule {rule.priority} jumps for some addresses and not for others")
            below = rule.goto
        elif rule.action != NOTHING:
            return Unknown(f"rule {rule.priority} has an action of its own ({rule.action})")
    return tuple(dict.fromkeys(str(network) for network in reachable))


def _matching_part(
    rule: RoutingRule,
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    interface: str,
    undecided: list[Network],
) -> list[Network] | Unknown:
    """Return the part of ``undecided`` that the rule matches for packets from ``address`` by
    ``interface``.

    Args:
        undecided: The destinations that no earlier rule decided.

    Returns:
        Unknown if the rule has a selector that is not read.
    """
    unread = [number for number in rule.other if number not in NEVER_MET]
    if unread:
        return Unknown(f"rule {rule.priority} has a selector that is not read ({unread[0]})")
    meets = (
        not rule.other
        and (not rule.source or address in ipaddress.ip_network(rule.source, strict=False))
        and rule.iif in ("", "lo")
        and rule.oif in ("", interface)
        and (rule.mark is None or rule.mark[0] & rule.mark[1] == 0)
    )
    if not rule.target:
        return undecided if meets is not rule.invert else []
    inside = _within(undecided, ipaddress.ip_network(rule.target, strict=False)) if meets else []
    return _without(undecided, inside) if rule.invert else inside


def _look_up(
    routes: Iterable[TableRoute],
    rule: RoutingRule,
    interface: str,
    matching: list[Network],
    undecided: list[Network],
    reachable: list[Network],
) -> list[Network]:
    """Add to ``reachable`` the networks that the rule's table sends out of ``interface``.

    Args:
        matching: The part of ``undecided`` that the rule matches. Returns ``undecided`` without the
            networks that the table decided.
    """
    decided: list[Network] = []
    rows = [
        (ipaddress.ip_network(route.destination, strict=False), route)
        for route in routes
        if (route.family, route.table) == (rule.family, rule.table) and route.destination
    ]
    left = matching
    for network, route in sorted(rows, key=lambda item: -item[0].prefixlen):
        rejects = route.type in REJECTS
        leads = route.type == UNICAST and route.interface == interface
        if not (rejects or leads or route.type == THROW):
            continue
        part = _within(left, network)
        suppressed = rule.suppress_prefix is not None and network.prefixlen <= rule.suppress_prefix
        if leads and not suppressed:
            reachable += part
        else:
            left = _without(left, part)
        if rejects or (leads and not suppressed):
            decided += part
    return _without(undecided, decided)


def _within(networks: Iterable[Network], wanted: Network) -> list[Network]:
    """Return the parts of ``networks`` inside ``wanted``."""
    inside = (network for network in networks if network.overlaps(wanted))
    return [max(network, wanted, key=lambda each: each.prefixlen) for network in inside]


def _without(networks: Iterable[Network], taken: Iterable[Network]) -> list[Network]:
    """Return the parts of ``networks`` that are in none of ``taken``."""
    taken = list(taken)
    # To take a network out of a larger one leaves dozens: what goes as a whole goes first.
    left = [each for each in networks if not any(each.subnet_of(gone) for gone in taken)]  # type: ignore[arg-type]
    for gone in taken:
        rest: list[Network] = []
        for network in left:
            if gone.subnet_of(network) and gone != network:  # type: ignore[arg-type]
                rest += network.address_exclude(gone)  # type: ignore[arg-type]
            elif not network.subnet_of(gone):  # type: ignore[arg-type]
                rest.append(network)
        left = rest
    return left
