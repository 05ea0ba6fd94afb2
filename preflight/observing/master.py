"""What a Mooncake master that runs here says of its pool, on its own metrics port."""

from __future__ import annotations

import re
from functools import cache

from checks.base.regex import regex
from checks.base.unknown import Unknown
from checks.network.calls import addresses, http

MOST_BYTES = 4 << 20  # of its metrics: some hundred bytes for each segment
_SEGMENT = regex(r'^segment_total_capacity_bytes\{segment="([^"]*)"\} ([0-9.e+]+)$', re.MULTILINE)


def segments_of_master(metrics_port: int) -> dict[str, int] | Unknown:
    """Return the capacity in bytes of each segment by its name.

    Source: the text of a 0.3.13.post1 master, ``GET /metrics``.
    """
    answer = http("127.0.0.1", metrics_port, "/metrics", MOST_BYTES)
    if answer.get("status") != 200:
        why = answer.get("error") or answer.get("status") or "no answer in time"
        return Unknown(f"port {metrics_port} gives no metrics: {why}")
    segments = {name: int(float(size)) for name, size in _SEGMENT.findall(answer["body"])}
    return {name: size for name, size in segments.items() if size}


@cache
def own_addresses() -> frozenset[str]:
    return frozenset(entry["address"] for entry in addresses())


def is_local(host: str) -> bool:
    """Tell whether a name of an address is this host's."""
    return host in ("localhost", "") or host.strip("[]") in own_addresses()
