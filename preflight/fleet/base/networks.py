"""Networks as reports write them: ``10.0.0.0/24``. A report may say anything."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network

Network = IPv4Network | IPv6Network

# Tens of thousands of addresses go without a parser. A prefix of 32 is in no subnet with anybody.
_MASKS = {str(prefix): (1 << 32) - (1 << 32 - prefix) for prefix in range(1, 32)}
_OCTETS = frozenset(map(str, range(256)))


@lru_cache(maxsize=1 << 14)
def network(written: str) -> Network | None:
    """None for what is none."""
    try:
        return ip_network(written, strict=False)
    except ValueError:
        return None


def covers(written: str, wanted: Network) -> bool:
    """Whether a route to ``written`` leads to ``wanted``."""
    found = network(written)
    return (
        found is not None and found.version == wanted.version and wanted.subnet_of(found)  # type: ignore[arg-type]
    )


def subnet_of(written: str) -> str | None:
    """``10.0.0.0/24`` of ``10.0.0.7/24``; None for what leads nowhere, or is no address."""
    address, slash, prefix = written.partition("/")
    parts = address.split(".")
    if len(parts) == 4 and prefix in _MASKS and all(part in _OCTETS for part in parts):
        first, second, third, fourth = map(int, parts)
        if first == 127 or (first, second) == (169, 254):
            return None
        number = ((first << 24) | (second << 16) | (third << 8) | fourth) & _MASKS[prefix]
        dotted = f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        return f"{dotted}/{prefix}"
    found = network(written) if slash else None
    if found is None or found.is_loopback or found.is_link_local:
        return None
    # An address alone is in no subnet with anybody.
    return None if found.prefixlen == found.max_prefixlen else str(found)
