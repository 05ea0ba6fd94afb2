"""A pair of nodes as JSON: which direction of which ports is broken, and what the facts say of it.

A write needs both directions: its packets go one way, the acknowledgement the other. Whose memory
it is can say whether it arrived, so a failure tells which of the two it was.
"""

from __future__ import annotations

import errno
import os
from enum import Enum

from preflight.base.program_version import program_version
from preflight.fleet.base.decode import Json, decoder
from preflight.fleet.pairs.records import (
    BACK,
    HERE,
    OUT,
    PROTOCOL,
    VERBS,
    Failure,
    PairAnswer,
    PairPort,
    TriedPair,
    Writes,
)
from preflight.fleet.pairs.verbs import SMALL_BYTES
from preflight.fleet.rails.lanes import Reach, Way
from preflight.fleet.reports.rows import EXIT_CODES
from preflight.render.plain_data import plain

# enum ibv_wc_status, in the words of ibv_wc_status_str.
STATUSES = {
    4: "local protection error",
    5: "work request flushed error",
    9: "remote invalid request error",
    10: "remote access error",
    11: "remote operation error",
    12: "transport retry counter exceeded",
    13: "RNR retry counter exceeded",
}
_INVALID_REQUEST, _REMOTE_ACCESS, _RETRIES = 9, 10, 12


def failure_text(failure: Failure) -> str:
    """Return what failed, as ``transport retry counter exceeded (12) on a write of 64 B``."""
    number = failure.number
    if failure.kind == VERBS:
        why = "no reason given" if number is None else f"{os.strerror(number)} [{number}]"
        return f"{failure.step} {failure.side}: {why}"
    if number is None:
        return f"nothing heard of a write of {failure.size_bytes} B"
    named = STATUSES.get(number, "completion with error")
    return f"{named} ({number}) on a write of {failure.size_bytes} B"


def cause(failure: Failure, here: PairPort, there: PairPort, facts: Way) -> str:
    """Return the likely reason, and what the facts say of it; the first to look at, not certain."""
    if failure.kind == VERBS:
        return _of_call(failure, here, there, facts)
    if failure.number == _INVALID_REQUEST:
        return f"the path MTUs differ: {here.mtu_bytes} B here, {there.mtu_bytes} B there"
    if failure.number == _REMOTE_ACCESS:
        return "the other side does not allow writes to its memory"
    if failure.number not in (_RETRIES, None):
        return "the device gave up: see its counters and the kernel's log on both sides"
    if failure.size_bytes > SMALL_BYTES:
        sizes = f"{here.mtu_bytes} B here, {there.mtu_bytes} B there"
        return f"small packets pass and large ones do not: an MTU on the way is less than ({sizes})"
    return _silent(facts)


def _silent(facts: Way) -> str:
    if facts.reach in (Reach.NONE, Reach.UNROUTED):
        return f"no way between the two ports: {facts.reason}"
    if facts.reach is Reach.ROUTED:
        return "the router between the two networks, or a firewall, drops UDP port 4791"
    told = "though the two are of one network" if facts.reach is Reach.DIRECT else facts.reason
    return f"nothing comes back, {told}: a firewall drops UDP port 4791, or the links do not meet"


def _of_call(failure: Failure, here: PairPort, there: PairPort, facts: Way) -> str:
    where, whom = (here, there) if failure.side == HERE else (there, here)
    if failure.number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT):
        told = f": {facts.reason}" if facts.reach not in (Reach.DIRECT, Reach.ROUTED) else ""
        if failure.number == errno.ETIMEDOUT:
            return f"nobody answers for {whom.gid} on the link of {where.device}{told}"
        return f"no route to {whom.gid} out of {where.device}{told}"
    if failure.number == errno.EINVAL and failure.step.endswith("RTR"):
        return f"the device refuses {whom.gid} from {where.gid}: do the GID types agree?"
    if failure.number in (errno.ENODEV, errno.ENOENT):
        return f"{where.device} cannot be opened {failure.side}"
    if failure.number in (errno.EPERM, errno.EACCES):
        return f"no permission for {where.device} {failure.side}: /dev/infiniband, memlock"
    if failure.number == errno.ENOMEM:
        return f"no memory for {where.device} {failure.side}: memlock, or its queue pairs are spent"
    return "see the kernel's log there"


class Fate(Enum):
    """What became of a direction's writes."""

    PASSES = "passes"
    LOST = "lost"  # they do not arrive
    UNANSWERED = "unanswered"  # they do, and the acknowledgement does not come back
    REFUSED = "refused"  # an end, or its device, does not take them
    SILENT = "silent"  # no acknowledgement, and whether they arrived is not known
    UNCONNECTED = "not connected"
    UNTRIED = "not tried"


def fate(writes: Writes | None) -> Fate:
    """Return what became of one direction, judged by itself."""
    if writes is None:
        return Fate.UNTRIED
    failure = writes.failure
    if failure is None:
        return Fate.PASSES
    if failure.kind == VERBS:
        return Fate.UNCONNECTED
    if failure.number not in (_RETRIES, None):
        return Fate.REFUSED
    if writes.arrived_bytes is None:
        return Fate.SILENT
    return Fate.UNANSWERED if writes.arrived_bytes >= failure.size_bytes else Fate.LOST


def broken(tried: TriedPair) -> tuple[str, ...]:
    """Return the broken directions: OUT from here to there, BACK, both; () where all works."""
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


def reasons(tried: TriedPair) -> dict[str, str]:
    """Return why each broken direction is, by OUT and BACK; the words hold for any reader."""
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


def _one_way(tried: TriedPair, way: str) -> str:
    """Return what breaks one direction alone: not the links, not the addresses."""
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


def cause_of(tried: TriedPair) -> str:
    """Return the reasons in one sentence, as the end that connected sees them; "" for none."""
    found = reasons(tried)
    if len(found) == 1:
        ((way, why),) = found.items()
        return f"from {'here to there' if way == OUT else 'there to here'}: {why}"
    return next(iter(found.values()), "")


def pair_object(answer: PairAnswer) -> Json:
    """Return the answer as JSON: times in seconds, None where nothing was acknowledged."""
    return {
        "schema": PROTOCOL,
        "version": program_version(),
        "status": answer.status,
        "exit_code": EXIT_CODES[answer.status],
        **plain(answer),
        "pairs": [_pair(one) for one in answer.pairs],
    }


def _pair(one: TriedPair) -> Json:
    return {
        "here": plain(one.here),
        "there": plain(one.there),
        "facts": plain(one.facts),
        **_writes(one.out),
        "back": None if one.back is None else _writes(one.back),
        "broken": [{"way": way, "why": why} for way, why in reasons(one).items()],
        "cause": one.cause,
    }


def _writes(writes: Writes) -> Json:
    failure = writes.failure
    told = None if failure is None else {**plain(failure), "text": failure_text(failure)}
    return {**plain(writes), "failure": told, "fate": fate(writes).value}


def read_answer(document: Json) -> PairAnswer:
    """Read an answer that ``pair_object`` wrote, whoever called it. Raises WrongError."""
    rows = document.get("pairs")
    if isinstance(rows, list):  # the writes from here stand beside the rest of their pair
        rows = [{**row, "out": row} if isinstance(row, dict) else row for row in rows]
    found: PairAnswer = decoder(PairAnswer)({**document, "pairs": rows}, "")
    return found
