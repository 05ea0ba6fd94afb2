"""Does the cpuset leave the launch's processes the NUMA nodes that they bind memory and CPUs to?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown, known, must_be_read, or_unknown
from checks.gpu.hardware_use import (
    nic_node,
    nics_of,
    node_list,
    probes_numactl,
    splits_segment,
)
from checks.numa.facts import STATUS, NumaFacts
from checks.rdma.facts import RdmaFacts
from checks.releases.mooncake import release_of

CHECKS = CheckSet()


@CHECKS.check("numa.cpuset-excludes", the_launch)
def cpuset_excludes(needs: LaunchNeeds, numa: NumaFacts, rdma: RdmaFacts) -> Iterable[Finding]:
    must_be_read(numa)
    found = [_allowed_to(process, numa, rdma, needs) for process in needs.processes]
    return fold(found) or [passed("launch", "no process binds memory")]


def _allowed_to(
    process: ProcessNeeds, numa: NumaFacts, rdma: RdmaFacts, needs: LaunchNeeds
) -> Finding:
    binds = {process.node} if process.program == "sglang" and process.node is not None else set()
    splits = splits_segment(process)
    split = set() if splits is False else _nic_nodes(process, rdma, needs)
    if isinstance(split, Unknown):
        return unknown(process.name, split.reason)
    if not binds and not split:
        return passed(process.name, "binds to no node")
    need = f"{node_list(binds | split)} allowed"
    finding = passed(process.name, need=need)
    if split and needs.nic_nodes is not None:
        said = _numbers(needs.nic_nodes)
        finding = finding._replace(
            formula=f"a segment over the NICs' nodes: --nic-numa-nodes {said}"
        )
    allowed = numa.mems_allowed
    if isinstance(allowed, Unknown):
        return finding.unknown(allowed.reason)
    evidence = [Evidence(f"{STATUS} Mems_allowed_list", _numbers(allowed))]
    have = f"{node_list(allowed)} allowed"
    missing = (binds | split) - set(allowed)
    cpuless = _without_cpus(numa, binds)
    if isinstance(cpuless, Unknown):
        return finding.unknown(cpuless.reason, have=have)
    if cpuless:
        have += f", no CPU of {node_list(cpuless)}"
        if isinstance(numa.cpus_allowed, tuple):
            evidence.append(Evidence(f"{STATUS} Cpus_allowed_list", _numbers(numa.cpus_allowed)))
    finding = finding._replace(have=have, evidence=tuple(evidence))
    if not missing and not cpuless:
        return finding
    settings = []
    if missing and numa.cpuset_source:
        wanted = _numbers(sorted({*allowed, *missing}))
        name = f"{numa.cpuset_source}/cpuset.mems"
        settings.append(Setting(Kind.CGROUP, name, wanted, _numbers(allowed)))
    advice = f"allow {node_list(missing or cpuless)} in the cpuset of this container or job"
    finding = finding._replace(advice=advice, settings=tuple(settings))
    if isinstance(splits, Unknown) and missing & split:
        return finding.unknown(splits.reason)
    verdicts = list(_excluded(missing & split, (missing & binds) | cpuless, needs))
    worst = min(verdicts, key=lambda verdict: list(Status).index(verdict[0]))
    return finding._replace(status=worst[0], text="; ".join(text for _, text in verdicts))


@or_unknown
def _nic_nodes(process: ProcessNeeds, rdma: RdmaFacts, needs: LaunchNeeds) -> set[int] | Unknown:
    """The nodes of the process's NICs, over which it splits its segment; one alone is no split."""
    if needs.nic_nodes is not None:
        stated = process.segment_nodes
        return stated if isinstance(stated, Unknown) else set(stated)
    names = known(nics_of(rdma, needs, process))
    nodes = [nic_node(rdma, name) for name in names]
    for node in nodes:
        if isinstance(node, Unknown):
            return node
    found = {node for node in nodes if isinstance(node, int)}
    return found if len(found) > 1 else set()


def _excluded(split: set[int], bound: set[int], needs: LaunchNeeds) -> Iterator[tuple[Status, str]]:
    """What Mooncake makes of nodes of its segment that are missing, and SGLang of its rank's."""
    if split:
        mooncake = release_of(needs.mooncake_version)
        if mooncake is None:
            why = f"the version is not known ({needs.mooncake_version!r})"
            yield Status.UNKNOWN, f"Mooncake before 0.3.14 fails here: {why}"
        elif mooncake.numa_segments_stay_bound:
            yield Status.WARN, f"Mooncake leaves {node_list(split)} out of its segment"
        else:
            yield (
                Status.FAIL,
                f"Mooncake binds a share to {node_list(split)}: mbind fails with EINVAL, "
                "setup returns -600",
            )
    if bound:
        probes = probes_numactl(needs.sglang_version)
        if isinstance(probes, Unknown):
            yield Status.UNKNOWN, f"SGLang before 0.5.15 loses the rank here: {probes.reason}"
        elif probes:
            yield Status.WARN, f"SGLang does not bind the rank to {node_list(bound)}"
        else:
            yield (
                Status.FAIL,
                f"numactl refuses {node_list(bound)} and ends the rank with exit code 1, "
                "without a traceback",
            )


def _without_cpus(numa: NumaFacts, nodes: set[int]) -> set[int] | Unknown:
    """Those of ``nodes`` of which this process may use no CPU."""
    missing = set()
    for number in nodes:
        node = numa.node(number)
        if node is None:
            continue
        for cpus in (node.cpus, numa.cpus_allowed):
            if isinstance(cpus, Unknown):
                return cpus
        assert isinstance(node.cpus, tuple)
        assert isinstance(numa.cpus_allowed, tuple)
        if node.cpus and not set(node.cpus).intersection(numa.cpus_allowed):
            missing.add(number)
    return missing


def _numbers(nodes: Iterable[int]) -> str:
    return ",".join(str(node) for node in nodes)
