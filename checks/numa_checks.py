"""Checks of binding: may the launch's processes set memory policies, and on which nodes?"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from checks.facts import Facts
from checks.finding import (
    Check,
    CheckSet,
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    skip,
)
from checks.hardware_use import (
    at_least,
    nic_node,
    nics_of,
    node_list,
    splits_segment,
)
from checks.launch_needs import LaunchNeeds, ProcessNeeds
from checks.numa_facts import STATUS, MemoryPolicy, NumaFacts
from checks.subjects import fold
from checks.unknown import Unknown

CHECKS = CheckSet()

# SGLang 0.5.15 tries numactl before it starts a rank under it (utils/numa_utils.py,
# _probe_numactl_args); 0.5.14 and older do not (the wheels).
PROBES_NUMACTL = (0, 5, 15, 0)
# Mooncake 0.3.14 splits a segment over the nodes that the process may use.
SPLITS_OVER_ALLOWED = (0, 3, 14, 0)
SYS_NICE = Setting(Kind.CAPABILITY, "SYS_NICE", "added")


@CHECKS.declare(
    Check(
        id="numa.policy-refused",
        asks="May the launch's processes set NUMA memory policies?",
        consequence=Consequence.WILL_NOT_START,
        why=(
            "SGLang starts each rank under `numactl --cpunodebind=N --membind=N` with the node of "
            "its GPU, and Mooncake binds the shares of a segment whose NICs sit on several nodes "
            "with mbind. A container's seccomp filter refuses both calls without CAP_SYS_NICE "
            "(docker's default profile). SGLang before 0.5.15 then loses the rank with exit code 1 "
            "and no traceback (`set_mempolicy: Operation not permitted` from numactl, at best); "
            "newer ones bind CPUs alone and say so in the log. Mooncake logs `mbind failed for "
            "NUMA 0, errno=1 (Operation not permitted)` and setup returns -600."
        ),
        outcomes=(
            (Status.PASS, "the calls are permitted, or the process needs none of them"),
            (Status.FAIL, "a call that the process cannot do without is refused"),
            (
                Status.WARN,
                "refused, and the process then runs without binding; or the container "
                "that the launch describes would refuse it",
            ),
            (Status.UNKNOWN, "it could not be tried here, or SGLang's version is not known"),
            (Status.SKIP, "no launch was given"),
        ),
        remedy="Give the container CAP_SYS_NICE, or a seccomp profile that permits the calls.",
        source="SGLang #27368, #28401; Mooncake utils.cpp allocate_buffer_numa_segments; moby's "
        "default seccomp profile",
        topics=("numa",),
    )
)
def policy_refused(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "numa.policy-refused"
    if needs is None:
        return [skip(check)]
    policy = facts.numa.policy
    found = [_policy_of(check, process, policy, needs) for process in needs.processes]
    return fold(found) or [Finding(check, Status.PASS, "launch", have="no process binds memory")]


def _policy_of(
    check: str, process: ProcessNeeds, policy: MemoryPolicy | Unknown, needs: LaunchNeeds
) -> Finding:
    binds = process.program == "sglang" and process.node is not None
    splits = splits_segment(process)
    if isinstance(splits, Unknown):
        if isinstance(policy, Unknown) or policy.mbind:
            text = f"whether it splits a segment over NUMA nodes is not known: {splits.reason}"
            return Finding(check, Status.UNKNOWN, process.name, text=text)
        splits = True  # it may, and it can
    if not binds and not splits:
        return Finding(check, Status.PASS, process.name, have="binds no memory")
    need = " and ".join(["set_mempolicy"] * binds + ["mbind"] * splits)
    finding = Finding(check, Status.PASS, process.name, need=f"{need} permitted")
    if isinstance(policy, Unknown):
        return finding._replace(
            status=Status.UNKNOWN,
            text=f"whether {need} is permitted is not known: {policy.reason}",
        )
    evidence = tuple(
        Evidence(f"{name}, tried in a child", _named(code))
        for name, code in zip(MemoryPolicy._fields, policy, strict=True)
    )
    refused = [
        f"{name} refused ({_named(code)})"
        for name, code, used in (
            ("set_mempolicy", policy.set_mempolicy, binds),
            ("mbind", policy.mbind, splits),
        )
        if used and code
    ]
    finding = finding._replace(have=", ".join(refused) or "permitted", evidence=evidence)
    if not refused:
        return _in_container(finding, process, need)
    finding = finding._replace(
        advice="give the container CAP_SYS_NICE, or a seccomp profile that permits "
        "get_mempolicy, set_mempolicy and mbind",
        settings=(SYS_NICE,),
    )
    if splits and policy.mbind:
        text = (
            f"Mooncake cannot bind the shares of its segment: mbind fails with "
            f"{_named(policy.mbind)} and setup returns -600"
        )
        return finding._replace(status=Status.FAIL, text=text)
    probes = at_least(needs.sglang_version, PROBES_NUMACTL)
    if isinstance(probes, Unknown):
        return finding._replace(
            status=Status.UNKNOWN,
            text=f"SGLang before 0.5.15 loses the rank here, newer ones do not: {probes.reason}",
        )
    if probes:
        text = "the rank binds its CPUs at most, and its memory may come to lie on any node"
        return finding._replace(status=Status.WARN, text=text)
    if policy.get_mempolicy:
        # SGLang asks get_mempolicy first, and without it binds nothing unless --numa-node does.
        text = (
            "the rank runs unbound, its memory on any node; with --numa-node it ends with exit "
            "code 1 and no traceback"
        )
        return finding._replace(status=Status.WARN, text=text)
    text = "numactl ends the rank with exit code 1, before Python starts, so without a traceback"
    return finding._replace(status=Status.FAIL, text=text)


def _in_container(finding: Finding, process: ProcessNeeds, need: str) -> Finding:
    """Permitted here; the container that the launch itself describes may still refuse."""
    limits = process.container
    if (
        limits is None
        or limits.runtime not in ("docker", "compose")
        or limits.privileged
        or "SYS_NICE" in limits.capabilities
        or "ALL" in limits.capabilities
        or any(option.startswith("seccomp") for option in limits.security_options)
    ):
        return finding
    return finding._replace(
        status=Status.WARN,
        have="permitted here",
        text=f"docker's default seccomp profile refuses {need} in the container of "
        f"{limits.origin}, which adds no CAP_SYS_NICE",
        advice="add CAP_SYS_NICE to the container",
        settings=(SYS_NICE,),
    )


def _named(code: int) -> str:
    if not code:
        return "permitted"
    return f"{errno.errorcode.get(code, f'errno {code}')}: {os.strerror(code)}"


@CHECKS.declare(
    Check(
        id="numa.cpuset-excludes",
        asks="May the launch's processes use the NUMA nodes that they bind memory and CPUs to?",
        consequence=Consequence.WILL_NOT_START,
        why=(
            "A cpuset (docker --cpuset-mems, a Kubernetes static policy, a Slurm step) takes nodes "
            "away from a process. Binding to one of those fails with EINVAL: numactl prints "
            "`libnuma: Warning: node argument 1 is out of range` or `setting membind: Invalid "
            "argument` and the rank exits with code 1 and no traceback (SGLang before 0.5.15; "
            "newer ones bind less). Mooncake up to 0.3.13 logs `mbind failed for NUMA 1, errno=22 "
            "(Invalid argument)` and setup returns -600; 0.3.14 leaves the node out."
        ),
        outcomes=(
            (Status.PASS, "every node that the process binds to is allowed, or it binds to none"),
            (Status.FAIL, "a node is not allowed, and this SGLang or Mooncake ends over it"),
            (Status.WARN, "a node is not allowed, and this version goes on with less"),
            (Status.UNKNOWN, "what is allowed, where the NICs sit or the version is not known"),
            (Status.SKIP, "no launch was given"),
        ),
        remedy="Allow the nodes of the GPUs and NICs in use in the cpuset.",
        source="SGLang utils/numa_utils.py; kernel mm/mempolicy.c mpol_set_nodemask; Mooncake "
        "utils.cpp allocate_buffer_numa_segments",
        topics=("numa", "rdma"),
    )
)
def cpuset_excludes(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "numa.cpuset-excludes"
    if needs is None:
        return [skip(check)]
    found = [_allowed_to(check, process, facts, needs) for process in needs.processes]
    return fold(found) or [Finding(check, Status.PASS, "launch", have="no process binds memory")]


def _allowed_to(check: str, process: ProcessNeeds, facts: Facts, needs: LaunchNeeds) -> Finding:
    numa = facts.numa
    binds = {process.node} if process.program == "sglang" and process.node is not None else set()
    splits = splits_segment(process)
    split = set() if splits is False else _nic_nodes(process, facts, needs)
    if isinstance(split, Unknown):
        return Finding(check, Status.UNKNOWN, process.name, text=split.reason)
    if not binds and not split:
        return Finding(check, Status.PASS, process.name, have="binds to no node")
    need = f"{node_list(binds | split)} allowed"
    finding = Finding(check, Status.PASS, process.name, need=need)
    if split and needs.nic_nodes is not None:
        said = _numbers(needs.nic_nodes)
        finding = finding._replace(
            formula=f"a segment over the NICs' nodes: --nic-numa-nodes {said}"
        )
    allowed = numa.mems_allowed
    if isinstance(allowed, Unknown):
        return finding._replace(status=Status.UNKNOWN, text=allowed.reason)
    evidence = [Evidence(f"{STATUS} Mems_allowed_list", _numbers(allowed))]
    have = f"{node_list(allowed)} allowed"
    missing = (binds | split) - set(allowed)
    cpuless = _without_cpus(numa, binds)
    if isinstance(cpuless, Unknown):
        return finding._replace(status=Status.UNKNOWN, have=have, text=cpuless.reason)
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
        return finding._replace(status=Status.UNKNOWN, text=splits.reason)
    verdicts = list(_excluded(missing & split, (missing & binds) | cpuless, needs))
    worst = min(verdicts, key=lambda verdict: list(Status).index(verdict[0]))
    return finding._replace(status=worst[0], text="; ".join(text for _, text in verdicts))


def _nic_nodes(process: ProcessNeeds, facts: Facts, needs: LaunchNeeds) -> set[int] | Unknown:
    """The nodes of the process's NICs, over which it splits its segment; one alone is no split."""
    if needs.nic_nodes is not None:
        stated = process.segment_nodes
        return stated if isinstance(stated, Unknown) else set(stated)
    names = nics_of(facts, needs, process)
    if isinstance(names, Unknown):
        return names
    nodes = [nic_node(facts, name) for name in names]
    for node in nodes:
        if isinstance(node, Unknown):
            return node
    found = {node for node in nodes if isinstance(node, int)}
    return found if len(found) > 1 else set()


def _excluded(split: set[int], bound: set[int], needs: LaunchNeeds) -> Iterator[tuple[Status, str]]:
    """What Mooncake makes of nodes of its segment that are missing, and SGLang of its rank's."""
    if split:
        filters = at_least(needs.mooncake_version, SPLITS_OVER_ALLOWED)
        if isinstance(filters, Unknown):
            yield Status.UNKNOWN, f"Mooncake before 0.3.14 fails here: {filters.reason}"
        elif filters:
            yield Status.WARN, f"Mooncake leaves {node_list(split)} out of its segment"
        else:
            yield (
                Status.FAIL,
                f"Mooncake binds a share to {node_list(split)}: mbind fails with EINVAL, "
                "setup returns -600",
            )
    if bound:
        probes = at_least(needs.sglang_version, PROBES_NUMACTL)
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
