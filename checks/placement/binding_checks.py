"""May the launch's processes bind memory and CPUs to nodes, by seccomp filter and by cpuset?"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from checks.base.check import CheckSet, the_launch
from checks.base.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    or_unjudged,
    passed,
    unknown,
)
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown, known, must_be_read, or_unknown
from checks.gpu.hardware_use import nic_node, nics_of, probes_numactl, splits_segment
from checks.numa.facts import MemoryPolicy, NumaFacts
from checks.numa.nodes import STATUS, node_list
from checks.rdma.facts import RdmaFacts
from checks.releases.mooncake import release_of

CHECKS = CheckSet()
SYS_NICE = Setting(Kind.CAPABILITY, "SYS_NICE", "added")


@CHECKS.check("numa.policy-refused", the_launch)
def policy_refused(needs: LaunchNeeds, numa: NumaFacts) -> Iterable[Finding]:
    """Judge whether the kernel permits the memory policies that processes set."""
    policy = numa.policy
    findings = [_policy_of(process, policy, needs) for process in needs.processes]
    return fold(findings) or [passed("launch", "no process binds memory")]


@or_unjudged
def _policy_of(
    process: ProcessNeeds, policy: MemoryPolicy | Unknown, needs: LaunchNeeds
) -> Finding:
    """Judge the calls of memory policy of one process."""
    binds = process.program == "sglang" and process.node is not None
    splits = splits_segment(process)
    if isinstance(splits, Unknown) and (isinstance(policy, Unknown) or policy.mbind):
        why = splits.of("whether it splits a segment over NUMA nodes is not known: ")
        return unknown(process.name, why)
    splits = splits is not False  # where it is not known: it may, and it can
    if not binds and not splits:
        return passed(process.name, "binds no memory")
    calls = ["set_mempolicy"] * binds + ["mbind"] * splits
    need = " and ".join(calls)
    finding = passed(process.name, need=f"{need} permitted")
    permitted = finding.known(policy, f"whether {need} is permitted is not known: ")
    codes = permitted._asdict()
    evidence = tuple(Evidence(f"{call}, tried in a child", _named(codes[call])) for call in codes)
    refused = [name for name in calls if codes[name]]
    errors = ", ".join(dict.fromkeys(_named(codes[name]) for name in refused))
    have = f"{' and '.join(refused)} refused ({errors})" if refused else "permitted"
    finding = finding._replace(have=have, evidence=evidence)
    if not refused:
        return _in_container(finding, process, need)
    finding = finding._replace(
        advice="give the container CAP_SYS_NICE, or a seccomp profile that permits "
        "get_mempolicy, set_mempolicy and mbind",
        settings=(SYS_NICE._replace(described_by=process.runtime),),
    )
    if splits and permitted.mbind:
        return finding.failed(
            f"Mooncake cannot bind the shares of its segment: mbind fails with "
            f"{_named(permitted.mbind)} and setup returns -600"
        )
    probes = probes_numactl(needs.sglang_version)
    if finding.known(probes, "SGLang before 0.5.15 loses the rank here, newer ones do not: "):
        return finding.warned("the rank binds its CPUs at most, and its memory may be on any node")
    if permitted.get_mempolicy:
        # SGLang asks get_mempolicy first, and without it binds nothing unless --numa-node does.
        return finding.warned(
            "the rank runs unbound, its memory on any node; with --numa-node it ends with exit "
            "code 1 and no traceback"
        )
    text = "numactl ends the rank with exit code 1, before Python starts, so without a traceback"
    return finding.failed(text)


def _in_container(finding: Finding, process: ProcessNeeds, need: str) -> Finding:
    """Add that the launch's own container may refuse a call that is permitted here."""
    limits = process.container
    if limits is None or limits.runtime not in ("docker", "compose") or limits.privileged:
        return finding
    own_profile = any(option.startswith("seccomp") for option in limits.security_options)
    if own_profile or {"SYS_NICE", "ALL"} & {*limits.capabilities}:
        return finding
    return finding.warned(
        f"docker's default seccomp profile refuses {need} in the container of "
        f"{limits.origin}, which adds no CAP_SYS_NICE",
        "add CAP_SYS_NICE to the container",
        (SYS_NICE._replace(described_by=process.runtime),),
        have="permitted on the host, refused by docker's default profile",
    )


def _named(code: int) -> str:
    if not code:
        return "permitted"
    return f"{errno.errorcode.get(code, f'errno {code}')}: {os.strerror(code)}"


@CHECKS.check("numa.cpuset-excludes", the_launch)
def cpuset_excludes(needs: LaunchNeeds, numa: NumaFacts, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether the cpuset allows the NUMA nodes that processes bind memory to."""
    must_be_read(numa)
    findings = [_allowed_to(process, numa, rdma, needs) for process in needs.processes]
    return fold(findings) or [passed("launch", "no process binds memory")]


@or_unjudged
def _allowed_to(
    process: ProcessNeeds, numa: NumaFacts, rdma: RdmaFacts, needs: LaunchNeeds
) -> Finding:
    """Judge the NUMA nodes that one process binds to, against cpuset and CPUs."""
    finding = passed(process.name)
    refused = _refused(process, numa)
    if refused is not None:
        return refused
    binds = {process.node} if process.program == "sglang" and process.node is not None else set()
    splits = splits_segment(process)
    split = set() if splits is False else finding.known(_nic_nodes(process, rdma, needs))
    if not binds and not split:
        return finding._replace(have="binds to no node")
    finding = finding._replace(need=f"{node_list(binds | split)} allowed")
    if split and needs.nic_nodes is not None:
        stated = _numbers(needs.nic_nodes)
        formula = f"a segment over the NICs' nodes: --nic-numa-nodes {stated}"
        finding = finding._replace(formula=formula)
    allowed = finding.known(numa.mems_allowed)
    evidence = [Evidence(f"{STATUS} Mems_allowed_list", _numbers(allowed))]
    have = f"{node_list(allowed)} allowed"
    missing = (binds | split) - set(allowed)
    cpuless = finding._replace(have=have).known(_without_cpus(numa, binds))
    if cpuless:
        have += f", no CPU of {node_list(cpuless)}"
        if isinstance(numa.cpus_allowed, tuple):
            evidence.append(Evidence(f"{STATUS} Cpus_allowed_list", _numbers(numa.cpus_allowed)))
    finding = finding._replace(have=have, evidence=tuple(evidence))
    if not missing and not cpuless:
        return finding
    settings: tuple[Setting, ...] = ()
    if missing and numa.cpuset_source:
        wanted = _numbers(sorted({*allowed, *missing}))
        name = f"{numa.cpuset_source}/cpuset.mems"
        settings = (Setting(Kind.CGROUP, name, wanted, _numbers(allowed)),)
    advice = f"allow {node_list(missing or cpuless)} in the cpuset of this container or job"
    finding = finding._replace(advice=advice, settings=settings)
    if missing & split:
        finding.known(splits)
    verdicts = list(_excluded(missing & split, (missing & binds) | cpuless, needs))
    worst = min(verdicts, key=lambda verdict: list(Status).index(verdict[0]))
    return finding._replace(status=worst[0], text="; ".join(text for _, text in verdicts))


def _refused(process: ProcessNeeds, numa: NumaFacts) -> Finding | None:
    """Return a failure if the launch names NUMA nodes that this host does not have."""
    there = {node.node for node in numa.nodes} or {0}
    named = next((named for named in process.named_nodes if named.nodes - there), None)
    if named is None:
        return None
    end = "the engine refuses to start the container"
    if named.what.startswith("numactl"):
        end = f'numactl ends with exit code 1 and "<{_numbers(sorted(named.nodes))}> is invalid"'
    return passed(process.name, node_list(there), named.what).failed(
        f"this host has no {node_list(named.nodes - there)}: {end}",
        "bind to nodes that this host has (numactl -H)",
    )


@or_unknown
def _nic_nodes(process: ProcessNeeds, rdma: RdmaFacts, needs: LaunchNeeds) -> set[int] | Unknown:
    """Return the NUMA nodes over which a process splits its segment; empty for a single one."""
    if needs.nic_nodes is not None:
        return set(known(process.segment_nodes))
    nodes = [known(nic_node(rdma, name)) for name in known(nics_of(rdma, needs, process))]
    several = {node for node in nodes if node is not None}
    return several if len(several) > 1 else set()


def _excluded(split: set[int], bound: set[int], needs: LaunchNeeds) -> Iterator[tuple[Status, str]]:
    """Yield the effect of nodes that are not allowed, on Mooncake's segment and SGLang's rank."""
    if split:
        mooncake = release_of(needs.mooncake_version)
        if mooncake is None:
            why = f"the version is not known ({needs.mooncake_version!r})"
            yield Status.UNKNOWN, f"Mooncake before 0.3.14 fails here: {why}"
        elif mooncake.numa_segments_stay_bound:
            yield Status.WARN, f"Mooncake leaves {node_list(split)} out of its segment"
        else:
            text = f"Mooncake binds a share to {node_list(split)}: mbind fails with EINVAL"
            yield Status.FAIL, f"{text}, setup returns -600"
    if bound:
        probes = probes_numactl(needs.sglang_version)
        if isinstance(probes, Unknown):
            yield Status.UNKNOWN, f"SGLang before 0.5.15 loses the rank here: {probes.reason}"
        elif probes:
            yield Status.WARN, f"SGLang does not bind the rank to {node_list(bound)}"
        else:
            text = f"numactl refuses {node_list(bound)} and ends the rank with exit code 1"
            yield Status.FAIL, f"{text}, without a traceback"


@or_unknown
def _without_cpus(numa: NumaFacts, nodes: set[int]) -> set[int] | Unknown:
    """Return those of ``nodes`` of which this process may use no CPU."""
    here = {number: known(node.cpus) for number in nodes if (node := numa.node(number)) is not None}
    cpus_of = {number: cpus for number, cpus in here.items() if cpus}
    allowed = set(known(numa.cpus_allowed)) if cpus_of else set()
    return {number for number, cpus in cpus_of.items() if allowed.isdisjoint(cpus)}


def _numbers(nodes: Iterable[int]) -> str:
    return ",".join(str(node) for node in nodes)
