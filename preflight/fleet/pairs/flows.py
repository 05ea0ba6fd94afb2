"""Directions of rails across a fleet: which NIC of which node sends, or takes, what gets lost.

A flow is one direction between two ports of two nodes. Those that are broken are told by what they
have in common: a NIC that nothing leaves, or reaches, on whatever partner; two names that never
meet; else node by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from preflight.check.report import fold as fold_words
from preflight.fleet.base.node_sets import fold

PASS, FAIL = "pass", "fail"
# Of NICs that are named each by itself; more of them are no news, and cost time.
MOST_ENDS = 32

# out or in, node, port; the port of the other side, "" for whichever.
End = tuple[str, str, str, str]


class Flow(NamedTuple):
    """source, target: nodes; source_port, target_port: ``mlx5_0``, or ``mlx5_0:2``.

    status: pass, fail, or unknown where it was not tried. why: of a failure. text: what the device
    said. seconds: of a small write, None where none was acknowledged.
    """

    source: str
    source_port: str
    target: str
    target_port: str
    status: str
    why: str = ""
    text: str = ""
    seconds: float | None = None

    @property
    def names(self) -> tuple[str, str]:
        return self.source_port, self.target_port


class Cut(NamedTuple):
    """Broken flows of one kind. who: ``gpu003 mlx5_1 to gpu[001-002]``. blamed: the node whose NIC
    all of them have in common, "" for none."""

    who: str
    blamed: str
    why: str
    flows: tuple[Flow, ...]


class Rail(NamedTuple):
    """Flows between ports of two names, in the whole fleet. slowest_seconds: of those that pass."""

    source_port: str
    target_port: str
    tried: int
    broken: int
    slowest_seconds: float | None


def rails(flows: Iterable[Flow]) -> list[Rail]:
    """Those that were tried, each direction by itself, by their names."""
    found: dict[tuple[str, str], list[Flow]] = {}
    for flow in flows:
        if flow.status in (PASS, FAIL):
            found.setdefault(flow.names, []).append(flow)
    return [
        Rail(
            *names,
            len(held),
            sum(flow.status == FAIL for flow in held),
            max((flow.seconds for flow in held if flow.seconds is not None), default=None),
        )
        for names, held in sorted(found.items())
    ]


def cuts(flows: Sequence[Flow]) -> list[Cut]:
    """Every broken flow in one of them; the largest first."""
    left = {flow for flow in flows if flow.status == FAIL}
    passing = [flow for flow in flows if flow.status == PASS]
    found: list[Cut] = []
    for held in _nowhere(left, passing):
        found.append(held)
        left.difference_update(held.flows)
    works = {end for flow in passing for end in _ends(flow)}
    for _ in range(MOST_ENDS):
        of_end: dict[End, list[Flow]] = {}
        for flow in sorted(left, key=_order):
            for end in _ends(flow):
                if end not in works:
                    of_end.setdefault(end, []).append(flow)
        worst = max(of_end.items(), key=lambda item: len(item[1]), default=None)
        if worst is None or len(_partners(*worst)) < 2:
            break
        found.append(_of_end(*worst))
        left.difference_update(worst[1])
    found += _single(sorted(left, key=_order))
    return sorted(found, key=lambda cut: -len(cut.flows))


def _order(flow: Flow) -> tuple[str, ...]:
    return flow[:4]


def _ends(flow: Flow) -> Iterator[End]:
    """The NIC that sends and the one that takes, with any other, and with those of one name."""
    for peer, own in ((flow.target_port, flow.source_port), ("", "")):
        yield "out", flow.source, flow.source_port, peer
        yield "in", flow.target, flow.target_port, own


def _partners(end: End, flows: Sequence[Flow]) -> set[str]:
    return {flow.target if end[0] == "out" else flow.source for flow in flows}


def _of_end(end: End, flows: Sequence[Flow]) -> Cut:
    way, node, port, peer = end
    others = f"{fold(_partners(end, flows))} {peer}".rstrip()
    who = f"{node} {port} to {others}" if way == "out" else f"{others} to {node} {port}"
    said = "nothing that it sends gets there" if way == "out" else "nothing gets to it"
    return Cut(who, node, f"{said}, whoever is asked: {_why(flows)}", tuple(flows))


def _nowhere(left: set[Flow], passing: Sequence[Flow]) -> Iterator[Cut]:
    """Names that meet nowhere in the fleet: different ones, or one name of three nodes and more."""
    never = {flow.names for flow in left} - {flow.names for flow in passing}
    kinds: dict[str, list[Flow]] = {}
    for flow in sorted(left, key=_order):
        if flow.names in never:
            own, theirs = flow.names
            kinds.setdefault(own if own == theirs else "", []).append(flow)
    for name, held in kinds.items():
        nodes = {node for flow in held for node in (flow.source, flow.target)}
        if name and len(nodes) > 2:
            why = f"nothing gets through between any two of them: {_why(held)}"
            yield Cut(f"{name} of {fold(nodes)}", "", why, tuple(held))
        elif not name:
            ports = sorted({port for flow in held for port in flow.names})
            why = (
                f"NICs of different names meet nowhere ({len(held)} flows): where rails are links "
                "of their own, set MC_ENABLE_DEST_DEVICE_AFFINITY=1 on all nodes, and give "
                f"--pairs same; {_why(held)}"
            )
            yield Cut(f"{fold_words(ports)} of {fold(nodes)}", "", why, tuple(held))


def _single(flows: Sequence[Flow]) -> Iterator[Cut]:
    """By the two nodes and the cause; like ports, and both directions, together."""
    found: dict[tuple[frozenset[str], str], list[Flow]] = {}
    for flow in flows:
        key = frozenset((flow.source, flow.target)), f"{flow.text}: {flow.why}"
        found.setdefault(key, []).append(flow)
    for held in found.values():
        ways: dict[tuple[str, str], list[Flow]] = {}
        for flow in held:
            ways.setdefault((flow.source, flow.target), []).append(flow)
        said = []
        for (source, target), some in ways.items():
            own = fold_words([flow.source_port for flow in some])
            theirs = fold_words([flow.target_port for flow in some])
            said.append(f"{source} {own} to {target} {theirs}")
        yield Cut(", ".join(said), "", _why(held), tuple(held))


def _why(flows: Sequence[Flow]) -> str:
    """That of the first; others of them may differ."""
    first = flows[0]
    return f"{first.text}: {first.why}" if first.text and first.why else first.text or first.why
