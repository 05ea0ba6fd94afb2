"""What this program asks of psutil, without it: for a node to which the program was carried.

Stands as ``psutil`` at the end of the carried program's path, so an installed one goes first.
"""

from __future__ import annotations

from typing import NamedTuple

# include/uapi/linux/sockios.h, include/uapi/linux/if.h
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1


class StandInAddress(NamedTuple):
    """As psutil's ``snicaddr``, as far as it is used."""

    family: int
    address: str


class InterfaceState(NamedTuple):
    """As psutil's ``snicstats``, as far as it is used."""

    isup: bool


def net_if_addrs() -> dict[str, list[StandInAddress]]:
    """Return every address of this network namespace, by interface."""
    import socket

    from checks.rdma.calls import interfaces

    return {
        name: [
            StandInAddress(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
            for address, _prefix in addresses
        ]
        for name, addresses in interfaces().items()
    }


def net_if_stats() -> dict[str, InterfaceState]:
    """Return whether each interface is up."""
    import fcntl
    import socket
    import struct

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _index, name in socket.if_nameindex():
            request = struct.pack("16sH14x", name.encode(), 0)
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFFLAGS, request)
            except OSError:
                continue  # gone since it was listed
            (flags,) = struct.unpack_from("H", answer, 16)
            found[name] = InterfaceState(bool(flags & _IFF_UP))
    return found
