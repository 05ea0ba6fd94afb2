"""A report's rails, routes and launch, as records; what is not as it should be is a WrongError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from preflight.fleet.merge.fields import (
    WrongError,
    fact_field,
    kind_of,
    list_field,
    number_field,
    text_field,
    unread_field,
)
from preflight.fleet.merge.records import (
    NodeLaunch,
    NodeRail,
    RailShape,
    Route,
    Trouble,
    Unread,
)

_LARGEST_PORT = 65535


def rails(rows: Any, keep: Callable[[Any], Any]) -> tuple[NodeRail, ...] | Unread:
    if isinstance(rows, dict):
        return unread_field(rows, "rails")
    if not isinstance(rows, list):
        raise WrongError(Trouble.WRONG, f"rails is {kind_of(rows)}, not a list")
    found = []
    for at, row in enumerate(rows):
        if not isinstance(row, dict):
            raise WrongError(Trouble.WRONG, f"rails[{at}] is {kind_of(row)}, not an object")
        where = f"rails[{at}]"
        shape = RailShape(
            text_field(row, "device", where),
            number_field(row, "port", where),
            fact_field(row, "used", where, bool),
            fact_field(row, "state", where, str),
            fact_field(row, "rate", where, str),
            fact_field(row, "link_layer", where, str),
            fact_field(row, "mtu_bytes", where, int),
            fact_field(row, "netdev", where, str),
            fact_field(row, "gid_type", where, str),
            fact_field(row, "netdev_mtu_bytes", where, int),
        )
        addresses = row.get("addresses")
        if isinstance(addresses, list):
            if not all(isinstance(one, str) for one in addresses):
                raise WrongError(Trouble.WRONG, f"{where}: addresses is no list of texts")
        else:
            fact_field(row, "addresses", where, int)
            addresses = []
        gid = fact_field(row, "gid", where, str)
        known = gid if isinstance(gid, str) else ""
        found.append(NodeRail(keep(shape), known, tuple(addresses), _exits(row, where)))
    return tuple(found)


def _exits(row: dict[str, Any], where: str) -> tuple[str, ...] | Unread | None:
    value = row.get("exits")
    if value is None:
        return None
    if isinstance(value, dict):
        return unread_field(value, f"{where}.exits")
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise WrongError(Trouble.WRONG, f"{where}: exits is no list of texts")
    return tuple(value)


def routes(rows: Any) -> tuple[Route, ...] | Unread:
    if isinstance(rows, dict):
        return unread_field(rows, "routes")
    if not isinstance(rows, list):
        raise WrongError(Trouble.WRONG, f"routes is {kind_of(rows)}, not a list")
    found = []
    for at, row in enumerate(rows):
        if isinstance(row, dict):  # a record as an object
            row = [row.get(name) for name in Route._fields]
        if not isinstance(row, list) or [type(one) for one in row] != [str] * 3:
            raise WrongError(Trouble.WRONG, f"routes[{at}] is not three texts")
        found.append(Route(*row))
    return tuple(found)


def launch_of(launch: Any) -> NodeLaunch:
    if not isinstance(launch, dict):
        raise WrongError(Trouble.WRONG, f"launch is {kind_of(launch)}, not an object")
    masters = [one for one in list_field(launch, "masters", "launch") if isinstance(one, str)]
    protocol = fact_field(launch, "protocol", "launch", str)
    affinity = fact_field(launch, "affinity", "launch", str)
    return NodeLaunch(
        text_field(launch, "source", "launch"),
        number_field(launch, "hosts", "launch"),
        "" if protocol is None else protocol,
        tuple(masters),
        tuple(_services(list_field(launch, "services", "launch"))),
        _size(launch, "segment_bytes"),
        _size(launch, "stores"),
        tuple(_ports(list_field(launch, "ports", "launch"))),
        fact_field(launch, "mtu_limit_bytes", "launch", int),
        affinity if isinstance(affinity, str) else "",
    )


def _services(rows: list[Any]) -> Iterator[tuple[str, str, bool]]:
    for at, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str):
            raise WrongError(Trouble.WRONG, f"launch: services[{at}] is not a kind and a place")
        if isinstance(row[1], str) and isinstance(row[2], bool):
            yield row[0], row[1], row[2]


def _ports(rows: list[Any]) -> Iterator[tuple[str, int]]:
    for at, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str):
            raise WrongError(Trouble.WRONG, f"launch: ports[{at}] is not what and a number")
        if type(row[1]) is int:
            if not 0 <= row[1] <= _LARGEST_PORT:
                raise WrongError(Trouble.WRONG, f"launch: ports[{at}] is {row[1]}: not a port")
            yield row[0], row[1]


def _size(launch: dict[str, Any], name: str) -> int | Unread:
    value = fact_field(launch, name, "launch", int)
    return Unread("the report does not say") if value is None else value
