"""MAC addresses, and the 64-bit identifiers (GUIDs, halves of GIDs) that are made of them."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple


def is_station(mac: str) -> bool:
    """Whether a MAC address is some device's."""
    return mac.lower() not in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff")


def mac_number(mac: str) -> int:
    """``b8:ce:f6:12:34:56`` as a number."""
    return int(mac.replace(":", ""), 16)


def mac_text(number: int) -> str:
    """A number as a MAC address."""
    return ":".join(f"{number >> shift & 255:02x}" for shift in range(40, -1, -8))


class Owner(NamedTuple):
    """The MAC that an identifier is made of: bit 41 flipped or not, two bytes between its halves.

    RFC 4291 puts ff:fe there and flips the bit; GUIDs of Ethernet cards leave it, and some put
    03:00 there.
    """

    mac: int
    flip: int
    middle: int

    def identifier(self, mac: int) -> int:
        """The same made of another MAC."""
        mac ^= self.flip
        return (mac >> 24 << 40) + (self.middle << 24) + (mac & 0xFFFFFF)


def owner_of(value: int, macs: Set[int]) -> Owner | None:
    """Whose MAC ``value`` is made of, ``macs`` being those that are known; None for nobody's."""
    middle = value >> 24 & 0xFFFF
    if middle not in (0xFFFE, 0x0300):
        return None
    plain = (value >> 40 << 24) + (value & 0xFFFFFF)
    flipped = 1 << 41
    # One that the host shows, else one with the bit clear, as a card's own has it.
    if (plain not in macs and plain & flipped) or plain ^ flipped in macs:
        return Owner(plain ^ flipped, flipped, middle)
    return Owner(plain, 0, middle)
