"""Whose address it is, as far as the reports tell: host names and the addresses of RDMA ports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from preflight.fleet.reports.records import NodeRow

DEFAULT_MASTER_PORT = 50051  # mooncake_master --rpc_port

Rows = Sequence[tuple[int, NodeRow]]


class ServiceAddress(NamedTuple):
    """An address as the fleet knows it. node: whose it is, None where that cannot be told."""

    host: str
    port: str
    node: int | None

    @property
    def same(self) -> tuple[object, str]:
        """Equal where it is certain that two addresses lead to one process."""
        return self.host if self.node is None else self.node, self.port


class Names:
    """Which node a host name or an address belongs to."""

    def __init__(self, rows: Rows) -> None:
        self._nodes: dict[str, int | None] = {}
        for place, row in rows:
            addresses = [one for rail in row.known_rails for one in rail.known_addresses]
            own = {row.node, row.host, *(one.partition("/")[0] for one in addresses)}
            for name in own - {""}:
                # What two nodes go by leads to neither.
                known = self._nodes.get(name.lower(), place) == place
                self._nodes[name.lower()] = place if known else None

    def place(self, address: str) -> ServiceAddress:
        host, port = split_address(address)
        return ServiceAddress(host, port, self._nodes.get(host))


def split_address(address: str) -> tuple[str, str]:
    """(host in small letters, port); a master's default port where none is written."""
    from preflight.processes import services

    split = services.split_address(address)
    return split.host.lower(), str(split.port or DEFAULT_MASTER_PORT)


def loops(host: str) -> bool:
    """127.0.0.1 and its like are each node's own; 0.0.0.0 leads there too."""
    return host in ("localhost", "::1", "::", "0.0.0.0") or host.startswith(("127.", "localhost."))
