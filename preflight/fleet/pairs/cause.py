"""Why a connection of a pair did not come about: from where it failed and from both ends."""

from __future__ import annotations

import errno
import os

from preflight.fleet.pairs.records import HERE, VERBS, Failure, Port
from preflight.fleet.pairs.verbs import SMALL_BYTES
from preflight.fleet.rails.rails import Reach, Way

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
    """``transport retry counter exceeded (12) on a write of 64 B``."""
    number = failure.number
    if failure.kind == VERBS:
        why = "no reason given" if number is None else f"{os.strerror(number)} [{number}]"
        return f"{failure.step} {failure.side}: {why}"
    if number is None:
        return f"nothing heard of a write of {failure.size_bytes} B"
    named = STATUSES.get(number, "completion with error")
    return f"{named} ({number}) on a write of {failure.size_bytes} B"


def cause(failure: Failure, here: Port, there: Port, facts: Way) -> str:
    """The likely reason, and what the facts say of it; never certain, but the first to look at."""
    if failure.kind == VERBS:
        return _of_call(failure, here, there, facts)
    if failure.number == _INVALID_REQUEST:
        return f"the path MTUs differ: {here.mtu_bytes} B here, {there.mtu_bytes} B there"
    if failure.number == _REMOTE_ACCESS:
        return "the other side does not let its memory be written to"
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


def _of_call(failure: Failure, here: Port, there: Port, facts: Way) -> str:
    where, whom = (here, there) if failure.side == HERE else (there, here)
    if failure.number in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT):
        told = f": {facts.reason}" if facts.reach not in (Reach.DIRECT, Reach.ROUTED) else ""
        if failure.number == errno.ETIMEDOUT:
            return f"nobody answers for {whom.gid} on the link of {where.device}{told}"
        return f"no route to {whom.gid} out of {where.device}{told}"
    if failure.number == errno.EINVAL and failure.step.endswith("RTR"):
        return f"the device does not take {whom.gid} from {where.gid}: are the GID types alike?"
    if failure.number in (errno.ENODEV, errno.ENOENT):
        return f"{where.device} is not to be opened {failure.side}"
    if failure.number in (errno.EPERM, errno.EACCES):
        return f"no permission for {where.device} {failure.side}: /dev/infiniband, memlock"
    if failure.number == errno.ENOMEM:
        return f"no memory for {where.device} {failure.side}: memlock, or its queue pairs are spent"
    return "see the kernel's log there"
