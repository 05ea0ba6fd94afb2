"""What sits where on a host, and which NIC Mooncake takes for it: read, and judged."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from checks.base.check import Check, Judge
from checks.base.finding import Finding, Status
from checks.base.unknown import Unknown, UnreadTopicError
from checks.run.facts import read_facts
from checks.run.runner import judge
from preflight.base.usage_error import UsageError
from preflight.inputs.host_source import open_host, size_within
from preflight.inputs.launch_words import LaunchWords
from preflight.topology.build import Topology, topology_of
from preflight.topology.views import Engine, MooncakeView, engine_of_host, notes, views_of

TOPICS = ("gpus", "numa", "pci", "rdma", "software")
# What others judge of the same: the module of each id.
CHECKS = {
    "topology.mooncake-view": "checks.placement.node_checks",
    "numa.gpu-nic-distance": "checks.placement.node_checks",
    "numa.unknown-nic-node": "checks.placement.node_checks",
    "rdma.device-missing": "checks.rdma.device_checks",
    "rdma.no-device": "checks.rdma.device_checks",
    "gpu.count": "checks.gpu.judge",
}


class TopologyAnswer(NamedTuple):
    """All that is shown. source: the launch, "" without one. asked: the library itself too.

    findings: of the checks about placement and devices, passes and skips included.
    """

    root: str
    source: str
    topology: Topology
    engine: Engine | Unknown
    views: tuple[MooncakeView, ...]
    asked: bool
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    status: Status


def topology_answer(
    launch: LaunchWords, root: str, timeout_seconds: float, measure: bool
) -> TopologyAnswer:
    """Return the answer as data; ``measure`` asks the installed Mooncake too. Raises UsageError."""
    host = open_host(root)
    sized = size_within(launch, host, timeout_seconds)
    if isinstance(sized, Unknown):
        raise UsageError(sized.reason)
    needs = None if sized is None else sized.needs
    facts = read_facts(host.root, needs, timeout_seconds, TOPICS)
    engine = engine_of_host(facts)
    try:
        drawn = topology_of(facts, needs)
        views = views_of(facts, needs, engine, host.root if measure else None)
        said = notes(facts, needs, drawn, views)
    except UnreadTopicError as missing:
        raise UsageError(f"{missing} (--timeout gives it longer)") from None
    found = tuple(judge(facts, needs, _checks()))
    source = "" if needs is None else needs.source
    status = _status(found, views)
    return TopologyAnswer(host.name, source, drawn, engine, views, measure, found, said, status)


def _checks() -> list[tuple[Check, Judge]]:
    return [
        pair
        for id_, module in CHECKS.items()
        for pair in import_module(module).CHECKS.checks
        if pair[0].id == id_
    ]


def _status(found: Sequence[Finding], views: Sequence[MooncakeView]) -> Status:
    """The worst of the findings and of what was measured; nothing to judge is a pass."""
    seen = {finding.status for finding in found}
    if any(isinstance(view.found, Unknown) or isinstance(view.view, Unknown) for view in views):
        seen.add(Status.UNKNOWN)
    # Why each is lost is for the checks of rdma to judge; here it is that none is left.
    lost = any(view.devices.lost and view.devices.names == () for view in views)
    if lost or any(view.differs for view in views):
        seen.add(Status.WARN)
    return next(
        (status for status in (Status.FAIL, Status.UNKNOWN, Status.WARN) if status in seen),
        Status.PASS,
    )
