"""The host's network as servers meet it: addresses, port ranges, and the launch's own ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown
from checks.network.routing import Routing, read_routing

PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"
SOCKETS = "/proc/net/sockstat"
LARGEST_PORT = 65535


class Address(NamedTuple):
    """One address of an interface of this network namespace."""

    interface: str
    address: str
    up: bool


class PortState(NamedTuple):
    """Whether a port can be bound; ``error`` is the kernel's name of the refusal."""

    free: bool
    error: str


class NetworkFacts(NamedTuple):
    """ephemeral: the first and last port that the kernel gives out for outgoing connections.

    reserved: ports that it leaves alone in that range. ports: by number, those of the launch.
    time_wait: closed connections whose ports are not yet given out again. routing: ip rule, and
    the routes of every table.
    """

    addresses: tuple[Address, ...] | Unknown
    ephemeral: tuple[int, int] | Unknown
    reserved: tuple[tuple[int, int], ...] | Unknown
    ports: Mapping[int, PortState | Unknown]
    time_wait: int | Unknown = Unknown("not read", absent=True)
    routing: Routing | Unknown = Unknown("not read", absent=True)


def read_network(root: Root, needs: LaunchNeeds | None) -> NetworkFacts:
    """Read the network below ``root``, and try to bind the ports of the launch."""
    numbers = {port.port for port in needs.ports if isinstance(port.port, int)} if needs else set()
    return NetworkFacts(
        _addresses(root),
        _range(root),
        _reserved(root),
        {number: _port(root, number) for number in sorted(numbers) if 0 < number <= LARGEST_PORT},
        _time_wait(root),
        read_routing(root),
    )


@or_unknown
def _time_wait(root: Root) -> int | Unknown:
    """``TCP: inuse 5 orphan 0 tw 3 alloc 7 mem 1``."""
    content = known(root.text(SOCKETS))
    for line in content.splitlines():
        words = line.split()
        if words[:1] == ["TCP:"] and "tw" in words[:-1]:
            count = words[words.index("tw") + 1]
            if count.isdecimal() and len(count) < 12:
                return int(count)
    return Unknown(f"{SOCKETS}: has no count of TCP sockets in TIME_WAIT")


@or_unknown
def _addresses(root: Root) -> tuple[Address, ...] | Unknown:
    answer = known(root.call("network.addresses"))
    try:
        return tuple(
            Address(str(entry["interface"]), str(entry["address"]), entry["up"] is True)
            for entry in answer
        )
    except (TypeError, KeyError, AttributeError):
        return Unknown("network.addresses: not a list of addresses")


@or_unknown
def _range(root: Root) -> tuple[int, int] | Unknown:
    content = known(root.text(PORT_RANGE))
    words = content.split()
    if len(words) != 2 or not all(word.isdecimal() and len(word) < 6 for word in words):
        return Unknown(f"{PORT_RANGE}: not two ports: {content.strip()[:40]!r}")
    first, last = int(words[0]), int(words[1])
    if not 1 <= first <= last <= LARGEST_PORT:
        return Unknown(f"{PORT_RANGE}: not a range of ports: {content.strip()[:40]!r}")
    return first, last


def _reserved(root: Root) -> tuple[tuple[int, int], ...] | Unknown:
    """``8080,30000-30010``; an empty line reserves nothing."""
    content = root.text(RESERVED)
    if isinstance(content, Unknown):
        return () if content.absent else content
    spans: list[tuple[int, int]] = []
    for part in content.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not first:
            continue
        numbers = (first, last) if dash else (first,)
        if not all(word.isdecimal() and len(word) < 6 for word in numbers):
            return Unknown(f"{RESERVED}: not a list of ports: {content.strip()[:40]!r}")
        spans.append((int(first), int(last or first)))
    return tuple(spans)


@or_unknown
def _port(root: Root, number: int) -> PortState | Unknown:
    answer = known(root.call("network.bind", number))
    if not isinstance(answer, dict) or not isinstance(answer.get("free"), bool):
        return Unknown(f"network.bind {number}: no answer of whether it is free")
    return PortState(answer["free"], str(answer.get("errno", "")))
