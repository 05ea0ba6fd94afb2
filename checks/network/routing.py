"""Where the kernel sends what a port of this host sends: ``ip rule``, and the tables it names.

A RoCE port resolves its peer with the GID's address as the source and the GID's interface as the
only way out (Linux drivers/infiniband/core/addr.c), so rules are held against these two; ports,
protocols, marks and the type of service are not set in that lookup (flowi of zeros).
"""

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown

# Actions of linux/fib_rules.h, and route types of linux/rtnetlink.h.
TO_TABLE, GO_TO, NOTHING = 1, 2, 3
UNICAST, THROW = 1, 9
REJECTS = (6, 7, 8)  # blackhole, unreachable, prohibit
# Selectors (FRA_*) that a lookup without ports, protocol, tunnel, flow label or type of service
# never meets, and their masks.
NEVER_MET = (-1, 12, 22, 23, 24, 25, 26, 27, 28, 29, 30)
# In routing_calls, of a table that was not read to its end.
CUT = -1

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class RoutingRule(NamedTuple):
    """A line of ``ip rule``; see ``routing_calls.rules``."""

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
    """Read the kernel's rules and routes, live or recorded."""
    rules, routes = known(root.call("routing.rules")), known(root.call("routing.routes"))
    try:
        read = tuple(_rule(row) for row in _list(rules))
        rows = tuple(_route(row) for row in _list(routes))
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        return Unknown(f"routing: the recorded answer is damaged: {error}")
    if any(row.table == CUT for row in rows):
        return Unknown("routing: more routes than are read")
    return RoutingTables(read, rows)


def _list(answer: object) -> list[Any]:
    if not isinstance(answer, list):
        raise TypeError("not a list")
    return answer


def _rule(row: dict[str, Any]) -> RoutingRule:
    """Read a recorded rule. Raises ValueError and the like if it is damaged."""
    for prefix in (row["from"], row["to"]):
        if prefix:
            ipaddress.ip_network(prefix, strict=False)
    mark = row["mark"]
    family, priority, action, table = (
        int(row[key]) for key in ("family", "priority", "action", "table")
    )
    return RoutingRule(
        family,
        priority,
        action,
        table,
        row["invert"] is True,
        str(row["from"]),
        str(row["to"]),
        str(row["iif"]),
        str(row["oif"]),
        None if mark is None else (int(mark[0]), int(mark[1])),
        None if row["goto"] is None else int(row["goto"]),
        None if row["suppress_prefix"] is None else int(row["suppress_prefix"]),
        tuple(int(number) for number in row["other"]),
    )


def _route(row: Sequence[Any]) -> TableRoute:
    """Read a recorded route. Raises ValueError and the like if it is damaged."""
    family, table, type_, destination, gateway, interface = row
    if destination:
        ipaddress.ip_network(destination, strict=False)
    return TableRoute(
        int(family), int(table), int(type_), str(destination), str(gateway), str(interface)
    )


@or_unknown
def exits(routing: RoutingTables, source: str, interface: str) -> tuple[str, ...] | Unknown:
    """Return the networks to which ``interface`` has a route for packets from ``source``.

    The tables are asked in the order of the rules. Unknown if a rule has a selector not read here.
    """
    address = ipaddress.ip_address(source)
    reachable: list[Network] = []
    whole = ipaddress.ip_network("0.0.0.0/0" if address.version == 4 else "::/0")
    open_: list[Network] = [whole]  # what no rule before has decided
    below = 0
    for rule in (rule for rule in routing.rules if rule.family == address.version):
        if rule.priority < below:
            continue
        asked = known(_asked(rule, address, interface, open_))
        if not asked:
            continue
        if rule.action == TO_TABLE:
            open_ = _of_table(routing.routes, rule, interface, asked, open_, reachable)
        elif rule.action in REJECTS:
            open_ = _without(open_, asked)
        elif rule.action == GO_TO and rule.goto is not None:
            if asked != open_:
                return Unknown(f"rule {rule.priority} jumps for some addresses and not for others")
            below = rule.goto
        elif rule.action != NOTHING:
            return Unknown(f"rule {rule.priority} has an action of its own ({rule.action})")
    return tuple(dict.fromkeys(str(network) for network in reachable))


def _asked(
    rule: RoutingRule,
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
    interface: str,
    open_: list[Network],
) -> list[Network] | Unknown:
    """Return the part of ``open_`` that the rule matches, for this source and interface."""
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
        return open_ if meets is not rule.invert else []
    inside = _within(open_, ipaddress.ip_network(rule.target, strict=False)) if meets else []
    return _without(open_, inside) if rule.invert else inside


def _of_table(
    routes: Iterable[TableRoute],
    rule: RoutingRule,
    interface: str,
    asked: list[Network],
    open_: list[Network],
    reachable: list[Network],
) -> list[Network]:
    """Add to ``reachable`` where the table leads out of ``interface``; return the rest.

    The most specific route decides; the kernel passes over routes out of another interface.
    """
    decided: list[Network] = []
    rows = [
        (ipaddress.ip_network(route.destination, strict=False), route)
        for route in routes
        if (route.family, route.table) == (rule.family, rule.table) and route.destination
    ]
    left = asked
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
    return _without(open_, decided)


def _within(networks: Iterable[Network], wanted: Network) -> list[Network]:
    """Return the parts of ``networks`` inside ``wanted``."""
    inside = (network for network in networks if network.overlaps(wanted))
    return [max(network, wanted, key=lambda each: each.prefixlen) for network in inside]


def _without(networks: Iterable[Network], taken: Iterable[Network]) -> list[Network]:
    """Return ``networks`` less all of ``taken``."""
    left = list(networks)
    for gone in taken:
        rest: list[Network] = []
        for network in left:
            if gone.subnet_of(network) and gone != network:  # type: ignore[arg-type]
                rest += network.address_exclude(gone)  # type: ignore[arg-type]
            elif not network.subnet_of(gone):  # type: ignore[arg-type]
                rest.append(network)
        left = rest
    return left
