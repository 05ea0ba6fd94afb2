"""What only the running machine tells about its network: addresses, and ports that can be bound."""

from __future__ import annotations

from typing import Any


def addresses() -> list[dict[str, Any]]:
    """Every address of this network namespace: ``{interface, address, up}``, IPv4 and IPv6."""
    import socket

    import psutil

    up = {name: stats.isup for name, stats in psutil.net_if_stats().items()}
    families = (socket.AF_INET, socket.AF_INET6)
    return [
        {
            "interface": name,
            "address": entry.address.partition("%")[0],
            "up": up.get(name, False),
        }
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in families
    ]


def bind(port: int) -> dict[str, Any]:
    """Whether a server could bind ``port`` on all addresses, as servers do (SO_REUSEADDR).

    Nothing listens, so nobody can connect meanwhile.
    """
    import errno
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            return {"free": False, "errno": errno.errorcode.get(error.errno or 0, "")}
    return {"free": True}
