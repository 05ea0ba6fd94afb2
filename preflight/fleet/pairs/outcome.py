"""What became of a pair of nodes, by what ``pair-connect`` said and how both ends ended.

A write needs both directions: its packets go one way, the acknowledgement the other. Whose memory
it is can say whether it arrived, so a failure tells which of the two it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.base.one_line import clean
from preflight.base.program import program_version
from preflight.fleet.base.decode import Json, WrongError, decoded, no_constant
from preflight.fleet.remote.program import OLD_PYTHON
from preflight.fleet.remote.reply import NOT_FOUND, NodeReply, why_none
from preflight.fleet.reports.rows import EXIT_CODES
from preflight.render.plain_data import plain

PROTOCOL = "mooncake-preflight/pair/v1"
HERE, THERE = "here", "there"
# Directions: from here to there, and back.
OUT, BACK = "out", "back"
VERBS, WRITE = "verbs", "write"
EQUAL_NAMES = ("same name", "listed")  # of LaunchShare.affinity
# What is said where the two nodes meet and there is nothing to write over.
NO_PORT = "has no RDMA port with a GID"
TCP_ALONE = "TCP connects, and nothing was written: one side, or both, has no RDMA port with a GID"
_PROGRAM = "mooncake-preflight: "
LONGEST_CAUSE = 600
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
_RETRIES = 12


class PairPort(NamedTuple):
    """One side of a connection. gid: as a person writes it. mtu_bytes: None where not known."""

    device: str
    port: int
    gid: str
    mtu_bytes: int | None

    @property
    def name(self) -> str:
        """``mlx5_0``, or ``mlx5_0:2`` for a port that is not the first; and its GID."""
        return f"{self.device if self.port == 1 else f'{self.device}:{self.port}'} {self.gid}"


class Failure(NamedTuple):
    """side: where it failed. kind: of a verbs call, of a write. number: errno, or the status of the
    completion, None for one that never came. size_bytes: of a write."""

    side: str
    kind: str
    step: str
    number: int | None
    size_bytes: int = 0

    @property
    def text(self) -> str:
        """``transport retry counter exceeded (12) on a write of 64 B``."""
        number = self.number
        if self.kind == VERBS:
            known = number is not None and number < 1 << 16
            why = f"{os.strerror(number)} [{number}]" if known and number else "no reason given"
            return f"{self.step} {self.side}: {why}"
        if number is None:
            return f"nothing heard of a write of {self.size_bytes} B"
        named = STATUSES.get(number, "completion with error")
        return f"{named} ({number}) on a write of {self.size_bytes} B"


class Writes(NamedTuple):
    """One direction of a pair of ports. small_seconds, large_seconds: of the writes, the shortest
    of several small ones; None where it was not acknowledged. arrived_bytes: of the largest write
    that is whole in the other side's memory, acknowledged or not; None where it did not say.
    """

    small_seconds: float | None = None
    large_seconds: float | None = None
    failure: Failure | None = None
    arrived_bytes: int | None = None

    @property
    def lost(self) -> bool:
        """It did not arrive, or an end did not take it."""
        failure = self.failure
        if failure is None:
            return False
        arrived = self.arrived_bytes is not None and self.arrived_bytes >= failure.size_bytes
        return failure.kind == VERBS or failure.number not in (_RETRIES, None) or not arrived


class TriedPair(NamedTuple):
    """One pair of ports. back: None where it was not tried."""

    here: PairPort
    there: PairPort
    out: Writes
    back: Writes | None = None

    @property
    def works(self) -> bool:
        """Both ways; what was not tried back does not count against it."""
        return self.out.failure is None and (self.back is None or self.back.failure is None)

    @property
    def broken(self) -> dict[str, str]:
        """What failed, by the direction that is broken: ``out`` from here to there, ``back``."""
        out, back = self.out, self.back or self.out
        if self.works:
            return {}
        # What arrives one way and is not acknowledged is lost the other way.
        lost = {way: one for way, one in ((OUT, out), (BACK, self.back)) if one and one.lost}
        failed = out.failure or back.failure
        assert failed is not None
        return {way: (one.failure or failed).text for way, one in lost.items()} or {
            OUT: failed.text,
            BACK: failed.text,
        }


class PairAnswer(NamedTuple):
    """error: why the pairs could not be tried, "" where they were. connect_seconds: of TCP.

    closed: why the listener could not connect to the other side in turn, "" where it could. over:
    "rdma", or "tcp" where the launch moves no data over RDMA: then TCP is all there is.
    """

    peer: str
    connect_seconds: float | None
    pairs: tuple[TriedPair, ...]
    error: str
    closed: str = ""
    over: str = "rdma"

    @property
    def status(self) -> str:
        """A pair that was tried and is broken fails; nothing tried is nothing known."""
        if not all(one.works for one in self.pairs) or self.closed:
            return "fail"
        if self.over == "tcp":
            return "unknown" if self.error or self.connect_seconds is None else "pass"
        return "unknown" if self.error or not self.pairs else "pass"


def pair_object(answer: PairAnswer) -> Json:
    """Return the answer as JSON: times in seconds, None where nothing was acknowledged."""
    return {
        "schema": PROTOCOL,
        "version": program_version(),
        "status": answer.status,
        "exit_code": EXIT_CODES[answer.status],
        **plain(answer),
        "pairs": [
            {
                "here": plain(one.here),
                "there": plain(one.there),
                **_writes(one.out),
                "back": None if one.back is None else _writes(one.back),
            }
            for one in answer.pairs
        ],
    }


def _writes(writes: Writes) -> Json:
    failure = writes.failure
    told = None if failure is None else {**plain(failure), "text": failure.text}
    return {**plain(writes), "failure": told}


def read_answer(document: Json) -> PairAnswer:
    """Read an answer that ``pair_object`` wrote, whoever called it. Raises WrongError."""
    rows = document.get("pairs")
    if isinstance(rows, list):  # the writes from here stand beside the rest of their pair
        rows = [{**row, "out": row} if isinstance(row, dict) else row for row in rows]
    found: PairAnswer = decoded(PairAnswer, {**document, "pairs": rows})
    return found


class PairOutcome(NamedTuple):
    """here: the node that connected and wrote. there: the one that listened.

    cause: "" of a pass. blamed: the node that the cause is about, "" for the two together.
    connect_seconds: of TCP, None without. tried, broken: pairs of their ports. slowest_seconds: of
    the small writes. answer: what ``here`` said, None where it said nothing that can be read.
    """

    here: str
    there: str
    round: int
    status: str
    cause: str = ""
    blamed: str = ""
    connect_seconds: float | None = None
    tried: int = 0
    broken: int = 0
    slowest_seconds: float | None = None
    answer: Json | None = None


def is_lost(reply: NodeReply) -> bool:
    """Return whether the node did not answer at all, or not in time."""
    return reply.timed_out or (reply.code is not None and reply.end is None)


def trouble(reply: NodeReply, timeout_seconds: float) -> str:
    """Return why this end did not do its part, in a sentence; "" where nothing speaks for that."""
    end = reply.end
    if end == 0 or (end is None and reply.code is None and not reply.timed_out):
        return ""
    if end is None or end == NOT_FOUND or OLD_PYTHON in reply.last_error:
        return why_none(reply, timeout_seconds)[1]
    said = [line.decode("utf-8", "replace").strip() for line in reply.error]
    told = [line.removeprefix(_PROGRAM) for line in said if line.startswith(_PROGRAM)]
    last = (told or [line for line in said if line][-1:] or ["it gives no reason"])[0]
    return f"the program ended with exit code {end}: {_short(last)}"


def outcome(
    here: str, there: str, number: int, replies: Mapping[str, NodeReply], timeout_seconds: float
) -> PairOutcome:
    """Return the outcome of the pair that met in round ``number``.

    Who is not in ``replies`` was not started.
    """
    connector = replies.get(here, NodeReply(here, ()))
    listener = replies.get(there, NodeReply(there, ()))
    base = PairOutcome(here, there, number, "unknown")
    document = _document(connector)
    if document is not None:
        try:
            answer = read_answer(document)
        except WrongError as error:
            why = f"its answer cannot be read: {_short(str(error.args[-1]))}"
            return base._replace(cause=why, blamed=here)
        return _judged(base._replace(answer=document), answer, listener, timeout_seconds)
    for reply in (listener, connector):
        why = trouble(reply, timeout_seconds)
        if why:
            return base._replace(cause=why, blamed=reply.node)
    return base._replace(cause=f"{here} gave no answer before it was stopped", blamed=here)


def _document(reply: NodeReply) -> Json | None:
    """Return the object that pair-connect printed, among a login shell's lines; None for none."""
    lines = reply.lines
    starts = [at for at, line in enumerate(lines) if line == b"{"]
    ends = [at for at, line in enumerate(lines) if line == b"}"]
    if not starts or not ends:
        return None
    try:
        text = b"\n".join(lines[starts[0] : ends[-1] + 1])
        found = json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == PROTOCOL else None


def _judged(
    base: PairOutcome, answer: PairAnswer, listener: NodeReply, timeout_seconds: float
) -> PairOutcome:
    pairs, error = answer.pairs, _short(answer.error)
    writes = [one for pair in pairs for one in (pair.out, pair.back) if one is not None]
    small = [one.small_seconds for one in writes if one.small_seconds is not None]
    found = base._replace(
        connect_seconds=answer.connect_seconds,
        tried=len(pairs),
        broken=sum(not pair.works for pair in pairs),
        slowest_seconds=max(small, default=None),
    )
    if found.broken:
        return found._replace(status="fail", cause="; ".join(_broken(base, answer)))
    if answer.connect_seconds is None:
        return _not_met(found, error, listener, timeout_seconds)
    if answer.closed:
        why = f"TCP from {base.there} to {base.here}: {_short(answer.closed)}"
        return found._replace(status="fail", cause=why)
    if NO_PORT in error and not pairs:
        return found._replace(status="warn", cause=TCP_ALONE)
    for whose, node in (("this node: ", found.here), ("the other side: ", found.there)):
        if error.startswith(whose):
            return found._replace(cause=error.removeprefix(whose), blamed=node)
    if error:
        return found._replace(cause=error)
    if not pairs and answer.over != "tcp":
        return found._replace(cause="no two ports of theirs have the same name")
    return found._replace(status="pass")


def _broken(base: PairOutcome, answer: PairAnswer) -> Iterator[str]:
    """Yield each broken direction, with both its ends and what failed."""
    for pair in answer.pairs:
        ends = [f"{base.here} {pair.here.name}", f"{base.there} {pair.there.name}"]
        for way, why in pair.broken.items():
            one, other = ends if way == OUT else reversed(ends)
            yield _short(f"{one} to {other}: {why}")


def _not_met(
    found: PairOutcome, error: str, listener: NodeReply, timeout_seconds: float
) -> PairOutcome:
    """Return the outcome without TCP: broken where the other side did listen.

    Else nothing is known of the way.
    """
    if any(line.startswith(b'{"protocol":') for line in listener.lines):
        why = f"{error}, though {listener.node} listens there: a firewall, or no way"
        return found._replace(status="fail", cause=why)
    why = trouble(listener, timeout_seconds)
    if why:
        return found._replace(cause=why, blamed=listener.node)
    return found._replace(cause=error or "no reason given")


def _short(text: str) -> str:
    return clean(text)[:LONGEST_CAUSE]
