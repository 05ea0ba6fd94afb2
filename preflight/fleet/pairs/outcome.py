"""What became of a pair of nodes: of what both ends said, and of how they ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from preflight.fleet.base.decode import WrongError, field
from preflight.fleet.node.reply import NodeReply, report_of
from preflight.fleet.node.script import SAYS
from preflight.fleet.pairs.connect import NO_PORT
from preflight.fleet.pairs.flows import FAIL, PASS, Flow
from preflight.fleet.pairs.records import BACK, OUT, PROTOCOL

Json = dict[str, Any]

TCP_ALONE = "TCP connects, and nothing was written: one side, or both, has no RDMA port with a GID"
_SAYS = SAYS.encode()
_PROGRAM = "mooncake-preflight: "
LONGEST_CAUSE = 600


class Outcome(NamedTuple):
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
    flows: tuple[Flow, ...] = ()


def ended(answer: NodeReply) -> str | None:
    """The exit code of the program there, or a word for why it never ran; None where it was stopped
    or the connection was lost."""
    for line in reversed(answer.lines):
        if line.startswith(_SAYS + b" end "):
            return line.removeprefix(_SAYS + b" end ").decode("ascii", "replace").strip()
    return None


def is_lost(answer: NodeReply) -> bool:
    """Whether the node did not answer at all, or not in time."""
    return answer.timed_out or (answer.code is not None and ended(answer) is None)


def trouble(answer: NodeReply, timeout_seconds: float) -> str:
    """Why this end did not do its part, in a sentence; "" where nothing speaks for that."""
    end = ended(answer)
    if end == "0" or (end is None and answer.code is None and not answer.timed_out):
        return ""
    if end is None or not end.isdecimal():
        return str(report_of(answer, timeout_seconds)["findings"][0]["text"])
    said = [line.decode("utf-8", "replace").strip() for line in answer.error]
    told = [line.removeprefix(_PROGRAM) for line in said if line.startswith(_PROGRAM)]
    last = (told or [line for line in said if line][-1:] or ["it does not say why"])[0]
    return f"the program ended with exit code {end}: {_clean(last)}"


def outcome(
    here: str, there: str, number: int, said: dict[str, NodeReply], timeout_seconds: float
) -> Outcome:
    """Of the pair that met in round ``number``; whoever is not in ``said`` was not started."""
    connector = said.get(here, NodeReply(here, ()))
    listener = said.get(there, NodeReply(there, ()))
    base = Outcome(here, there, number, "unknown")
    document = _document(connector)
    if document is not None:
        try:
            return _told(base, document, listener, timeout_seconds)
        except WrongError as error:
            why = f"its answer cannot be read: {_clean(str(error.args[-1]))}"
            return base._replace(cause=why, blamed=here)
    for answer in (listener, connector):
        why = trouble(answer, timeout_seconds)
        if why:
            return base._replace(cause=why, blamed=answer.node)
    why = f"{connector.node} gave no answer before it was stopped"
    return base._replace(cause=why, blamed=connector.node)


def _document(answer: NodeReply) -> Json | None:
    """The object that pair-connect printed between what a login shell may have had to say."""
    lines = answer.lines
    starts = [at for at, line in enumerate(lines) if line == b"{"]
    ends = [at for at, line in enumerate(lines) if line == b"}"]
    if not starts or not ends:
        return None
    try:
        text = b"\n".join(lines[starts[0] : ends[-1] + 1])
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == PROTOCOL else None


def _no_number(word: str) -> None:
    raise ValueError(word)


def _told(base: Outcome, document: Json, listener: NodeReply, timeout_seconds: float) -> Outcome:
    """Raises WrongError."""
    error = _clean(field(document, "error", str))
    tcp = _seconds(document, "connect_seconds")
    pairs = [_object(one, "pairs") for one in field(document, "pairs", list)]
    flows = [flow for one in pairs for flow in _flows(base, one)]
    broken = [_broken(one) for one in pairs if _fails(one)]
    small = [flow.seconds for flow in flows]
    closed = _closed_ports(base, document)
    told = base._replace(
        connect_seconds=tcp,
        tried=len(pairs),
        broken=len(broken),
        slowest_seconds=max((one for one in small if one is not None), default=None),
        answer=document,
        flows=tuple(flows),
    )
    if broken:
        of = f" ({len(broken)} of {len(pairs)} pairs of ports are broken)" if len(pairs) > 1 else ""
        return told._replace(status="fail", cause=broken[0] + of)
    if tcp is None:
        return _not_met(told, error, listener, timeout_seconds)
    if closed:
        return told._replace(status="fail", cause=closed)
    if error and NO_PORT in error and not pairs:
        return told._replace(status="warn", cause=TCP_ALONE)
    if error:
        return _blamed(told, error)
    if not pairs and document.get("over") != "tcp":
        return told._replace(cause="no two ports of theirs have the same name")
    return told._replace(status="pass")


def _blamed(told: Outcome, error: str) -> Outcome:
    """Of what one end has to say of itself, or of the other, under that node's name."""
    for whose, node in (("this node: ", told.here), ("the other side: ", told.there)):
        if error.startswith(whose):
            return told._replace(cause=error.removeprefix(whose), blamed=node)
    return told._replace(cause=error)


def _not_met(told: Outcome, error: str, listener: NodeReply, timeout_seconds: float) -> Outcome:
    """No TCP: broken where the other side did listen; else nothing is known of the way."""
    if any(line.startswith(b'{"protocol":') for line in listener.lines):
        why = f"{error}, though {listener.node} listens there: a firewall, or no way"
        return told._replace(status="fail", cause=why)
    why = trouble(listener, timeout_seconds)
    if why:
        return told._replace(cause=why, blamed=listener.node)
    return told._replace(cause=error or "no reason given")


def _fails(one: Json) -> bool:
    """Either direction; what has no word of the way back was not tried back."""
    back = one.get("back")
    return one.get("failure") is not None or (
        isinstance(back, dict) and back.get("failure") is not None
    )


def _flows(base: Outcome, one: Json) -> Iterator[Flow]:
    """Both directions of a pair of ports. Raises WrongError."""
    here, there = (_port(one, end) for end in ("here", "there"))
    rows = [_object(row, "broken") for row in field({"broken": []} | one, "broken", list)]
    why = {field(row, "way", str): _clean(field(row, "why", str)) for row in rows}
    if _fails(one) and not why:
        why = {OUT: _clean(field(one, "cause", str))}
    for way, node, port, other, other_port in (
        (OUT, base.here, here, base.there, there),
        (BACK, base.there, there, base.here, here),
    ):
        row = one if way == OUT else one.get("back")
        if way in why:
            text = _failure_text(row) or _failure_text(one) or _failure_text(one.get("back"))
            yield Flow(node, port, other, other_port, FAIL, why[way], text)
        elif isinstance(row, dict):
            # Its packets arrive, though what answers them may not: that is the other direction.
            yield Flow(node, port, other, other_port, PASS, "", "", _seconds(row, "small_seconds"))
        else:
            yield Flow(node, port, other, other_port, "unknown")


def _port(one: Json, end: str) -> str:
    row = field(one, end, dict)
    number = field(row, "port", int)
    device = _clean(field(row, "device", str))
    return device if number == 1 else f"{device}:{number}"


def _failure_text(row: Any) -> str:
    failure = row.get("failure") if isinstance(row, dict) else None
    return "" if failure is None else _clean(field(_object(failure, "failure"), "text", str))


def _broken(one: Json) -> str:
    ends = " to ".join(
        f"{field(end, 'device', str)} {field(end, 'gid', str)}"
        for end in (field(one, "here", dict), field(one, "there", dict))
    )
    text = _failure_text(one) or f"back: {_failure_text(one.get('back'))}"
    cause = field(one, "cause", str)
    return _clean(f"{ends}: {text}" + (f": {cause}" if cause else ""))


def _closed_ports(base: Outcome, document: Json) -> str:
    """``TCP port 15000 (engine) of b from a: no answer within 5 s``."""
    closed = []
    for one in field(document, "ports", list):
        row = _object(one, "ports")
        error = field(row, "error", str)
        if error:
            own, other = base.there, base.here
            if row.get("way") == BACK:
                own, other = other, own
            what = f" ({_clean(str(row['what']))})" if row.get("what") else ""
            port = _clean(str(row.get("port")))
            closed.append(f"TCP port {port}{what} of {own} from {other}: {_clean(error)}")
    return "; ".join(closed)


def _object(value: Any, where: str) -> Json:
    found: Json = field({where: value}, where, dict)
    return found


def _seconds(document: Json, name: str) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1e6:
        raise WrongError(f"{name} is not a number of seconds")
    return float(value)


def _clean(text: str) -> str:
    from preflight.base.one_line import clean

    return clean(text)[:LONGEST_CAUSE]
