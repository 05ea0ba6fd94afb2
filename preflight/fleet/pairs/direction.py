"""Which direction of a pair of ports is broken, of what was written, acknowledged and arrived.

A write needs both directions: its packets go one way, the acknowledgement the other. Whose memory
it is can say whether it arrived, so a failure tells which of the two it was.
"""

from __future__ import annotations

from enum import Enum

from preflight.fleet.pairs.cause import cause
from preflight.fleet.pairs.records import BACK, OUT, VERBS, Flow, Tried
from preflight.fleet.pairs.verbs import SMALL_BYTES

# enum ibv_wc_status: transport retry counter exceeded.
RETRIES_EXCEEDED = 12


class Fate(Enum):
    """What became of a direction's writes."""

    PASSES = "passes"
    LOST = "lost"  # they do not arrive
    UNANSWERED = "unanswered"  # they do, and the acknowledgement does not come back
    REFUSED = "refused"  # an end, or its device, does not take them
    SILENT = "silent"  # no acknowledgement, and whether they arrived is not known
    UNCONNECTED = "not connected"
    UNTRIED = "not tried"


def fate(flow: Flow | None) -> Fate:
    """Of one direction, by itself."""
    if flow is None:
        return Fate.UNTRIED
    failure = flow.failure
    if failure is None:
        return Fate.PASSES
    if failure.kind == VERBS:
        return Fate.UNCONNECTED
    if failure.number not in (RETRIES_EXCEEDED, None):
        return Fate.REFUSED
    if flow.arrived_bytes is None:
        return Fate.SILENT
    return Fate.UNANSWERED if flow.arrived_bytes >= failure.size_bytes else Fate.LOST


def broken(tried: Tried) -> tuple[str, ...]:
    """The directions that are: OUT from here to there, BACK, both; () where all works."""
    out, back = fate(tried.out), fate(tried.back)
    if tried.works:
        return ()
    if Fate.UNCONNECTED in (out, back) or Fate.SILENT in (out, back):
        return (OUT, BACK)
    found = set()
    for one, way, other in ((out, OUT, BACK), (back, BACK, OUT)):
        if one in (Fate.LOST, Fate.REFUSED):
            found.add(way)
        elif one is Fate.UNANSWERED:
            found.add(other)
    return tuple(way for way in (OUT, BACK) if way in found)


def reasons(tried: Tried) -> dict[str, str]:
    """Why each broken direction is, by OUT and BACK; the words hold for whoever reads them."""
    ways = broken(tried)
    if not ways:
        return {}
    if len(ways) == 1 and tried.back is not None:
        (way,) = ways
        return {way: _one_way(tried, way)}
    failed = tried.out if tried.out.failure is not None else tried.back
    assert failed is not None
    assert failed.failure is not None
    ends = (tried.here, tried.there)
    if failed is tried.back and failed.failure.kind != VERBS:
        ends = (tried.there, tried.here)
    why = cause(failed.failure, *ends, tried.facts)
    return dict.fromkeys(ways, why)


def _one_way(tried: Tried, way: str) -> str:
    """What breaks one direction alone: not the links, not the addresses."""
    own = tried.out if way == OUT else tried.back
    other = tried.back if way == OUT else tried.out
    assert own is not None
    assert other is not None
    if fate(own) is Fate.REFUSED and own.failure is not None:
        ends = (tried.here, tried.there) if way == OUT else (tried.there, tried.here)
        return cause(own.failure, *ends, tried.facts)
    failed = own.failure if fate(own) is Fate.LOST else other.failure
    assert failed is not None
    if failed.size_bytes > SMALL_BYTES:
        return (
            "small packets arrive and large ones do not, and the other way they do: an MTU on this "
            "way alone is less than both ends', or a policer drops bursts"
        )
    return (
        "nothing arrives, and the other way it does: a firewall or a switch drops UDP port 4791 "
        "one way, or the sender has a wrong neighbour entry (ip neigh) or VLAN for it"
    )


def cause_of(tried: Tried) -> str:
    """The reasons in one sentence, as seen from the end that connected; "" where all works."""
    found = reasons(tried)
    if len(found) == 1:
        ((way, why),) = found.items()
        return f"from {'here to there' if way == OUT else 'there to here'}: {why}"
    return next(iter(found.values()), "")
