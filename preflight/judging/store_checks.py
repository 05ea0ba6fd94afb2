"""What the store of a launch will hold, as far as it can hurt: the keys that its master keeps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from checks.base.finding import Finding, Status, unknown
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.judging.pages import KEYS
from preflight.judging.store_keys import Meeting, StoreKeys, compared, launch_keys
from preflight.processes.processes import LaunchProcess
from preflight.sglang.pools import ServerMemory
from preflight.sizing.launch_sizing import LaunchSizing

# Masters were seen killed for want of memory with 25 to 50 million keys (Mooncake #3452).
MOST_KEYS = 10_000_000

_MEET = (
    "start both alike, or give each a store or tenant of its own: mooncake-preflight read --keys"
)
_MOST_NAMES = 4  # of processes in one subject
_NO_SIZES = "the launch's sizes are not known"


def key_findings(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield a finding for each SGLang server with a store, and each pair that shares one."""
    servers = [p for p in sizing.inputs.processes if p.server and p.server.store]
    segments = _segments_bytes(sizing)
    for process in servers:
        yield _keys(process, sizing.inputs.memory.get(process.number), segments)
    pairs = list(_pairs(sizing))
    yield from pairs
    if not servers and not pairs:
        yield Finding(KEYS.id, Status.SKIP, "launch", text="no server of it has a store")


_MEETING = {
    Meeting.EQUAL: Status.PASS,
    Meeting.NEVER: Status.WARN,
    Meeting.COLLIDE: Status.WARN,
    Meeting.UNKNOWN: Status.UNKNOWN,
}


def _pairs(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield one finding for each two processes of one model in one store.

    Processes whose keys follow from the same are judged once, whatever their number.
    """
    kinds: dict[str, list[StoreKeys]] = {}
    for keys in launch_keys(sizing):
        kinds.setdefault(repr((keys.model, *keys[1:])), []).append(keys)
    alike = [(kind, kind) for kind in kinds.values() if len(kind) > 1]
    for ours, others in (*alike, *combinations(kinds.values(), 2)):
        match = compared(ours[0], others[-1])
        status = _MEETING.get(match.verdict)
        if status is None or not match.first.model or match.first.model != match.second.model:
            continue
        names = [keys.process.name for keys in (ours if ours is others else [*ours, *others])]
        first = ", ".join(names[:-1]) if len(names) <= _MOST_NAMES else names[0]
        last = names[-1] if len(names) <= _MOST_NAMES else f"{len(names) - 1} more"
        have = f"keys: {match.verdict.value}"
        text = "; ".join(match.reasons)
        advice = "" if status is Status.PASS else _MEET
        yield Finding(KEYS.id, status, f"{first} and {last}", have, text=text, advice=advice)


def _segments_bytes(sizing: LaunchSizing) -> int | Unknown:
    """Return the bytes that all clients of this host contribute."""
    shown = sizing.shown
    if shown is None:
        sizes = sizing.inputs.most
        return sizes if isinstance(sizes, Unknown) else Unknown(_NO_SIZES)
    members = shown.inputs.launch.processes
    return sum(client.segment_bytes for member in members for client in member.clients)


def _keys(process: LaunchProcess, memory: ServerMemory | None, segments: int | Unknown) -> Finding:
    server = process.server
    subject = str(process.command.origin)
    page = server.value("page_size") if server is not None else None
    pool = next((pool for pool in memory.pools if pool.tokens), None) if memory else None
    if isinstance(page, Unknown):
        return unknown(subject, page, check=KEYS.id)
    if pool is None:
        sizes = Unknown(_NO_SIZES if memory is None else memory.why)
        missing = None if memory is None else memory.missing
        return unknown(subject, sizes if missing is None else missing, check=KEYS.id)
    if isinstance(segments, Unknown):
        return unknown(subject, segments, check=KEYS.id)
    if not segments:
        text = "this host contributes no segment: its clients are elsewhere"
        return Finding(KEYS.id, Status.SKIP, subject, text=text)
    object_bytes = pool.bytes // pool.tokens * max(1, page or 1) // pool.page_objects
    keys = segments // max(1, object_bytes)
    have, need = f"{keys:,} keys", f"at most {MOST_KEYS:,}"
    formula = f"{format_bytes(segments)} of segments / {format_bytes(object_bytes)} an object"
    if keys <= MOST_KEYS:
        return Finding(KEYS.id, Status.PASS, subject, have, need, formula)
    text = "the master holds them all in memory when the store is full"
    return Finding(
        KEYS.id, Status.WARN, subject, have, need, formula, text, advice="use a larger --page-size"
    )
