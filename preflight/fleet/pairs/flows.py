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
from preflight.fleet.base.text import grouped

PASS, FAIL, UNTRIED = "pass", "fail", "unknown"
# Of NICs that are named each by itself; more of them are no news, and cost time.
MOST_NICS = 32

# out or in, node, port; the port of the other side, "" for whichever.
NicWay = tuple[str, str, str, str]


class PairFlow(NamedTuple):
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
    flows: tuple[PairFlow, ...]


class FlowCount(NamedTuple):
    """Of flows, how many were tried and are broken. slowest_seconds: of those that pass."""

    tried: int
    broken: int
    slowest_seconds: float | None


def count_flows(flows: Iterable[PairFlow]) -> FlowCount:
    tried = [flow for flow in flows if flow.status != UNTRIED]
    times = [flow.seconds for flow in tried if flow.seconds is not None]
    broken = sum(flow.status == FAIL for flow in tried)
    return FlowCount(len(tried), broken, max(times, default=None))


def rail_counts(flows: Iterable[PairFlow]) -> dict[tuple[str, str], FlowCount]:
    """Return the counts of tried flows, each direction by itself, by the names of their ports."""
    found = grouped((flow.names, flow) for flow in flows if flow.status != UNTRIED)
    return {names: count_flows(held) for names, held in sorted(found.items())}


def cuts(flows: Sequence[PairFlow]) -> list[Cut]:
    """Return the cuts, the largest first; every broken flow is in one of them."""
    left = sorted({flow for flow in flows if flow.status == FAIL}, key=_order)
    passing = [flow for flow in flows if flow.status == PASS]
    found = list(_nowhere(left, {flow.names for flow in passing}))
    left = _without(left, found)
    works = {nic for flow in passing for nic in _nics(flow)}
    for _ in range(MOST_NICS):
        of_nic = grouped((nic, flow) for flow in left for nic in _nics(flow) if nic not in works)
        worst = max(of_nic.items(), key=lambda item: len(item[1]), default=None)
        if worst is None or len(_partners(*worst)) < 2:
            break
        found.append(_of_nic(*worst))
        left = _without(left, found[-1:])
    found += _single(left)
    return sorted(found, key=lambda cut: -len(cut.flows))


def _without(flows: Iterable[PairFlow], told: Iterable[Cut]) -> list[PairFlow]:
    gone = {flow for cut in told for flow in cut.flows}
    return [flow for flow in flows if flow not in gone]


def _order(flow: PairFlow) -> tuple[str, ...]:
    return flow[:4]


def _nics(flow: PairFlow) -> Iterator[NicWay]:
    """Yield the NIC that sends and the one that takes, with any other, and with equal names."""
    for peer, own in ((flow.target_port, flow.source_port), ("", "")):
        yield "out", flow.source, flow.source_port, peer
        yield "in", flow.target, flow.target_port, own


def _partners(nic: NicWay, flows: Sequence[PairFlow]) -> set[str]:
    return {flow.target if nic[0] == "out" else flow.source for flow in flows}


def _of_nic(nic: NicWay, flows: Sequence[PairFlow]) -> Cut:
    way, node, port, peer = nic
    others = f"{fold(_partners(nic, flows))} {peer}".rstrip()
    who = f"{node} {port} to {others}" if way == "out" else f"{others} to {node} {port}"
    said = "nothing that it sends arrives" if way == "out" else "nothing arrives at it"
    return Cut(who, node, f"{said}, with any peer: {_why(flows)}", tuple(flows))


def _nowhere(broken: Sequence[PairFlow], met: set[tuple[str, str]]) -> Iterator[Cut]:
    """Yield names that meet nowhere in the fleet: different ones, or one name of three nodes."""
    kinds = grouped(
        (flow.source_port if flow.source_port == flow.target_port else "", flow)
        for flow in broken
        if flow.names not in met
    )
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


def _single(flows: Sequence[PairFlow]) -> Iterator[Cut]:
    """Yield a cut for two nodes and a cause; like ports, and both directions, are in one."""
    found = grouped(
        ((frozenset((flow.source, flow.target)), f"{flow.text}: {flow.why}"), flow)
        for flow in flows
    )
    for held in found.values():
        said = []
        ways = grouped(((flow.source, flow.target), flow) for flow in held)
        for (source, target), some in ways.items():
            own = fold_words([flow.source_port for flow in some])
            theirs = fold_words([flow.target_port for flow in some])
            said.append(f"{source} {own} to {target} {theirs}")
        yield Cut(", ".join(said), "", _why(held), tuple(held))


def _why(flows: Sequence[PairFlow]) -> str:
    """Return why the first of the flows is broken; the reason of others may differ."""
    first = flows[0]
    return f"{first.text}: {first.why}" if first.text and first.why else first.text or first.why
