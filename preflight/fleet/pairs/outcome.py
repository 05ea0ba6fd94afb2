"""What became of a pair of nodes: of what both ends said, and of how they ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from preflight.base.one_line import clean
from preflight.fleet.base.decode import Json, WrongError, no_constant
from preflight.fleet.base.text import port_text
from preflight.fleet.pairs.answer import failure_text, read_answer, reasons
from preflight.fleet.pairs.connect import NO_PORT
from preflight.fleet.pairs.flows import FAIL, PASS, UNTRIED, PairFlow
from preflight.fleet.pairs.records import BACK, OUT, PROTOCOL, PairAnswer, TriedPair, TriedPort
from preflight.fleet.remote.program import OLD_PYTHON
from preflight.fleet.remote.reply import NOT_FOUND, NodeReply, why_none

TCP_ALONE = "TCP connects, and nothing was written: one side, or both, has no RDMA port with a GID"
_PROGRAM = "mooncake-preflight: "
LONGEST_CAUSE = 600


class PairOutcome(NamedTuple):
    """here: the node that connected and wrote. there: the one that listened.

    cause: "" of a pass. blamed: the node that the cause is about, "" for the two together.
    connect_seconds: of TCP, None without. tried, broken: pairs of their ports. slowest_seconds: of
    the small writes. answer: what ``here`` said, None where it said nothing that can be read.
    flows: each direction of each pair of their ports.
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
    flows: tuple[PairFlow, ...] = ()


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
    flows = tuple(flow for pair in answer.pairs for flow in _flows(base, pair))
    broken = [_broken(pair) for pair in answer.pairs if not pair.works]
    small = [flow.seconds for flow in flows if flow.seconds is not None]
    found = base._replace(
        connect_seconds=answer.connect_seconds,
        tried=len(answer.pairs),
        broken=len(broken),
        slowest_seconds=max(small, default=None),
        flows=flows,
    )
    pairs, error = len(answer.pairs), _short(answer.error)
    if broken:
        of = f" ({len(broken)} of {pairs} pairs of ports are broken)" if pairs > 1 else ""
        return found._replace(status="fail", cause=broken[0] + of)
    if answer.connect_seconds is None:
        return _not_met(found, error, listener, timeout_seconds)
    closed = "; ".join(_closed(base, port) for port in answer.ports if port.error)
    if closed:
        return found._replace(status="fail", cause=closed)
    if NO_PORT in error and not pairs:
        return found._replace(status="warn", cause=TCP_ALONE)
    if error:
        return _blamed(found, error)
    if not pairs and answer.over != "tcp":
        return found._replace(cause="no two ports of theirs have the same name")
    return found._replace(status="pass")


def _blamed(found: PairOutcome, error: str) -> PairOutcome:
    """Return the outcome with what one end says of itself or the other, under that node's name."""
    for whose, node in (("this node: ", found.here), ("the other side: ", found.there)):
        if error.startswith(whose):
            return found._replace(cause=error.removeprefix(whose), blamed=node)
    return found._replace(cause=error)


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


def _flows(base: PairOutcome, pair: TriedPair) -> Iterator[PairFlow]:
    """Yield both directions of a pair of ports."""
    here = base.here, _short(port_text(pair.here.device, pair.here.port))
    there = base.there, _short(port_text(pair.there.device, pair.there.port))
    why = reasons(pair)
    failures = {
        way: "" if writes is None or writes.failure is None else failure_text(writes.failure)
        for way, writes in ((OUT, pair.out), (BACK, pair.back))
    }
    for way, writes, ends in ((OUT, pair.out, here + there), (BACK, pair.back, there + here)):
        if way in why:
            text = failures[way] or failures[OUT] or failures[BACK]
            yield PairFlow(*ends, FAIL, _short(why[way]), _short(text))
        elif writes is not None:
            # Its packets arrive, though what answers them may not: that is the other direction.
            yield PairFlow(*ends, PASS, "", "", writes.small_seconds)
        else:
            yield PairFlow(*ends, UNTRIED)


def _broken(pair: TriedPair) -> str:
    """Return what is wrong with the first direction that fails."""
    if pair.out.failure is not None:
        text = failure_text(pair.out.failure)
    else:
        assert pair.back is not None
        assert pair.back.failure is not None
        text = f"back: {failure_text(pair.back.failure)}"
    ends = f"{pair.here.device} {pair.here.gid} to {pair.there.device} {pair.there.gid}"
    return _short(f"{ends}: {text}" + (f": {pair.cause}" if pair.cause else ""))


def _closed(base: PairOutcome, port: TriedPort) -> str:
    """Return ``TCP port 15000 (engine) of b from a: no answer within 5 s``."""
    own, other = (base.here, base.there) if port.way == BACK else (base.there, base.here)
    what = f" ({_short(port.what)})" if port.what else ""
    return f"TCP port {port.port}{what} of {own} from {other}: {_short(port.error)}"


def _short(text: str) -> str:
    return clean(text)[:LONGEST_CAUSE]
