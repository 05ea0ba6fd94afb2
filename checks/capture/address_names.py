"""Replaces IPv4 addresses so that subnets stay what they are."""

from __future__ import annotations

import re
from collections.abc import Iterable

IPV4 = re.compile(
    r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w]|\.\d)"
)
# "24.10-0.7.0.0", as OFED names its releases: the second part is no address.
_RELEASE = re.compile(r"(?:^|[^\d.])\d+\.\d+-$")
# Public addresses are renumbered below this: RFC 2544, for benchmarks.
_PUBLIC = 198 << 24 | 18 << 16
# First bits that say what an address is for, and how many of them stay.
_RANGES = (
    (0x0A000000, 8),  # 10/8
    (0xAC100000, 12),  # 172.16/12
    (0xC0A80000, 16),  # 192.168/16
    (0x64400000, 10),  # 100.64/10, carrier-grade NAT
)
# The last octet stays: it tells networks, hosts and broadcasts apart, and nobody by itself.
_HOST_BITS = 8


def is_version(found: re.Match[str]) -> bool:
    """Return whether four numbers with dots are the end of a release's name."""
    return bool(_RELEASE.search(found.string[max(0, found.start() - 16) : found.start()]))


def keeps_ipv4(address: int) -> bool:
    """Return whether an address means the same everywhere, so that it need not be replaced.

    Loopback, link-local, multicast and above, masks, "this network".
    """
    first, second = address >> 24, address >> 16 & 255
    return first in (0, 127) or first >= 224 or (first, second) == (169, 254) or _is_mask(address)


def _is_mask(address: int) -> bool:
    """Return whether an address is a mask, as 255.255.240.0.

    Masks that start with less than 255 are addresses too, and are not taken for one.
    """
    inverted = ~address & 0xFFFFFFFF
    return address >> 24 == 255 and inverted & (inverted + 1) == 0


class Ipv4Names:
    """Two addresses share as many leading bits after replacing as before, within a private range.

    Where all known addresses agree on a bit it becomes 0, and where they differ it stays: what is
    left of them is only how they are alike.
    """

    def __init__(self, addresses: Iterable[int]) -> None:
        known = sorted(address for address in addresses if not keeps_ipv4(address))
        prefixes = {address >> shift for address in known for shift in range(_HOST_BITS, 32)}
        self._known: dict[int, int] = {}
        public = sorted({address >> _HOST_BITS for address in known if _kept_bits(address) == 0})
        for address in known:
            kept = _kept_bits(address)
            if kept == 0:
                network = (_PUBLIC >> _HOST_BITS) + public.index(address >> _HOST_BITS)
            else:
                network = self._network(address, kept, prefixes, known)
            last = address & ((1 << _HOST_BITS) - 1)
            self._known[address] = network << _HOST_BITS | last

    @staticmethod
    def _network(address: int, kept: int, prefixes: set[int], known: list[int]) -> int:
        network = address >> (32 - kept)
        for shift in range(31 - kept, _HOST_BITS - 1, -1):
            prefix = address >> shift
            both = prefix ^ 1 in prefixes
            network = network << 1 | (prefix & 1 if both else 0)
        return network

    def replace(self, address: int) -> int:
        return self._known.get(address, address)


def _kept_bits(address: int) -> int:
    for start, bits in _RANGES:
        if address >> (32 - bits) == start >> (32 - bits):
            return bits
    return 0


def is_station(mac: str) -> bool:
    """Return whether a MAC address is that of a device."""
    return mac.lower() not in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff")


def mac_number(mac: str) -> int:
    """Return ``b8:ce:f6:12:34:56`` as a number."""
    return int(mac.replace(":", ""), 16)


def mac_text(number: int) -> str:
    """Return a number as a MAC address."""
    return ":".join(f"{number >> shift & 255:02x}" for shift in range(40, -1, -8))
