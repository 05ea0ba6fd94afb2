"""May processes bind memory and CPUs to NUMA nodes, is memory on each, and are NICs near GPUs?

What refuses a binding is a seccomp filter or a cpuset.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence

from checks.framework.device_nodes import RDMA_DEVICES
from checks.framework.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.problem import Problems
from checks.framework.units import Quantity, format_bytes
from checks.framework.unknown import Unknown, must_be_read, or_unknown, require
from checks.gpu.facts import GpuFacts
from checks.gpu.hardware_use import (
    gpu_function,
    nic_node,
    nics_in_use,
    nics_of,
    probes_numactl,
    splits_segment,
    visible_gpus,
)
from checks.memory.facts import MemoryFacts
from checks.numa.facts import MemoryPolicy, NumaFacts
from checks.numa.nodes import NODES, STATUS, node_list
from checks.pci.facts import PathClass, PciFacts
from checks.placement.mooncake_topology import ANY_PROCESS, View, predict_view
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import MooncakeRelease, release_of

CHECKS = Problems()
SYS_NICE = Setting(Kind.CAPABILITY, "SYS_NICE", "added")


@CHECKS("numa.policy-refused")
def policy_refused(needs: LaunchNeeds, numa: NumaFacts) -> Iterable[Finding]:
    """Judge whether the kernel permits the memory policies that processes set."""
    policy = numa.policy
    findings = [_judge_policy(process, policy, needs) for process in needs.processes]
    return fold(findings) or [passed("launch", "no process binds memory")]


@or_unjudged
def _judge_policy(
    process: ProcessNeeds, policy: MemoryPolicy | Unknown, needs: LaunchNeeds
) -> Finding:
    """Judge whether one process may make the calls that bind memory: set_mempolicy, mbind."""
    binds = process.program == "sglang" and process.node is not None
    splits = splits_segment(process)
    if isinstance(splits, Unknown) and (isinstance(policy, Unknown) or policy.mbind):
        why = splits.of("whether it splits a segment over NUMA nodes is not known: ")
        return unknown_finding(process.name, why)
    splits = splits is not False  # where it is not known: it may, and it can
    if not binds and not splits:
        return passed(process.name, "binds no memory")
    calls = ["set_mempolicy"] * binds + ["mbind"] * splits
    need = " and ".join(calls)
    finding = passed(process.name, need=f"{need} permitted")
    permitted = finding.require(policy, f"whether {need} is permitted is not known: ")
    codes = permitted._asdict()
    evidence = tuple(Evidence(f"{call}, tried in a child", _named(codes[call])) for call in codes)
    refused = [name for name in calls if codes[name]]
    errors = ", ".join(dict.fromkeys(_named(codes[name]) for name in refused))
    have = f"{' and '.join(refused)} refused ({errors})" if refused else "permitted"
    finding = finding._replace(have=have, evidence=evidence)
    if not refused:
        return _with_docker_profile(finding, process, need)
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
    if finding.require(probes, "SGLang before 0.5.15 loses the rank here, newer ones do not: "):
        return finding.warned("the rank binds its CPUs at most, and its memory may be on any node")
    if permitted.get_mempolicy:
        # SGLang asks get_mempolicy first, and without it binds nothing unless --numa-node does.
        return finding.warned(
            "the rank runs unbound, its memory on any node; with --numa-node it ends with exit "
            "code 1 and no traceback"
        )
    text = "numactl ends the rank with exit code 1, before Python starts, so without a traceback"
    return finding.failed(text)


def _with_docker_profile(finding: Finding, process: ProcessNeeds, need: str) -> Finding:
    """Warn if Docker's default profile will refuse, in the launch's container, the calls that are
    permitted here.

    Else ``finding`` is unchanged.

    Args:
        need: The calls, for the text.
    """
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


@CHECKS("numa.cpuset-excludes")
def cpuset_excludes(needs: LaunchNeeds, numa: NumaFacts, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether the cpuset allows the NUMA nodes that processes bind memory to."""
    must_be_read(numa)
    findings = [_judge_nodes(process, numa, rdma, needs) for process in needs.processes]
    return fold(findings) or [passed("launch", "no process binds memory")]


@or_unjudged
def _judge_nodes(
    process: ProcessNeeds, numa: NumaFacts, rdma: RdmaFacts, needs: LaunchNeeds
) -> Finding:
    """Judge whether cpuset and CPUs allow the NUMA nodes to which one process binds its memory."""
    finding = passed(process.name)
    refused = _judge_named_nodes(process, numa)
    if refused is not None:
        return refused
    binds = {process.node} if process.program == "sglang" and process.node is not None else set()
    splits = splits_segment(process)
    split = set() if splits is False else finding.require(_nic_nodes(process, rdma, needs))
    if not binds and not split:
        return finding._replace(have="binds to no node")
    finding = finding._replace(need=f"{node_list(binds | split)} allowed")
    if split and needs.nic_nodes is not None:
        stated = _numbers(needs.nic_nodes)
        formula = f"a segment over the NICs' nodes: --nic-numa-nodes {stated}"
        finding = finding._replace(formula=formula)
    allowed = finding.require(numa.mems_allowed)
    evidence = [Evidence(f"{STATUS} Mems_allowed_list", _numbers(allowed))]
    have = f"{node_list(allowed)} allowed"
    missing = (binds | split) - set(allowed)
    cpuless = finding._replace(have=have).require(_without_cpus(numa, binds))
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
        finding.require(splits)
    verdicts = list(_verdicts(missing & split, (missing & binds) | cpuless, needs))
    worst = min(verdicts, key=lambda verdict: list(Status).index(verdict[0]))
    return finding._replace(status=worst[0], text="; ".join(text for _, text in verdicts))


def _judge_named_nodes(process: ProcessNeeds, numa: NumaFacts) -> Finding | None:
    """Return a failure if the launch names NUMA nodes that this host does not have; else None."""
    there = {row.node for row in numa.nodes} or {0}
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
    """Return the NUMA nodes over which a process splits its segment; empty if it is not split."""
    if needs.nic_nodes is not None:
        return set(require(process.segment_nodes))
    nodes = [require(nic_node(rdma, name)) for name in require(nics_of(rdma, needs, process))]
    several = {number for number in nodes if number is not None}
    return several if len(several) > 1 else set()


def _verdicts(split: set[int], bound: set[int], needs: LaunchNeeds) -> Iterator[tuple[Status, str]]:
    """Yield ``(status, text)`` for each consequence of NUMA nodes that a process may not use.

    Args:
        split: Forbidden nodes of Mooncake's segment.
        bound: Nodes to which SGLang binds a rank, and that are forbidden or have no allowed CPU.
    """
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
    """Return those of ``nodes`` that have CPUs of which this process may use none."""
    here = {number: require(row.cpus) for number in nodes if (row := numa.node(number)) is not None}
    cpus_of = {number: cpus for number, cpus in here.items() if cpus}
    allowed = set(require(numa.cpus_allowed)) if cpus_of else set()
    return {number for number, cpus in cpus_of.items() if allowed.isdisjoint(cpus)}


def _numbers(nodes: Iterable[int]) -> str:
    return ",".join(str(number) for number in nodes)


@CHECKS("numa.node-memory")
def node_memory(needs: LaunchNeeds, numa: NumaFacts, memory: MemoryFacts) -> Iterable[Finding]:
    """Judge whether each NUMA node, or group of nodes, has the memory that is bound to it."""
    numbers = {at for process in needs.processes for at in (process.node, *process.bound_bytes)}
    bound: list[tuple[int, ...]] = sorted((at,) for at in numbers if at is not None)
    bound += sorted({process.among for process in needs.processes if process.among})
    if not bound:
        return [passed("launch", "nothing is bound to a node")]
    policy = numa.policy
    if not isinstance(policy, Unknown) and policy.set_mempolicy:
        return [skip("set_mempolicy is refused here, so nothing is bound", "launch")]
    return [_judge_node_memory(nodes, needs.processes, memory, numa) for nodes in bound]


@or_unjudged
def _judge_node_memory(
    numbers: Sequence[int], everything: Sequence[ProcessNeeds], memory: MemoryFacts, numa: NumaFacts
) -> Finding:
    """Judge whether one NUMA node, or several that share a binding, have the memory that is bound
    to them.

    Args:
        everything: All processes of the launch.
    """
    where = node_list(numbers)
    finding = passed(where)
    bound = [{*(p.among or (() if p.node is None else (p.node,)))} for p in everything]
    processes = [p for p, to in zip(everything, bound, strict=True) if to and to <= {*numbers}]
    shares = [p.bound_bytes[n] for p in everything for n in numbers if n in p.bound_bytes]
    need = sum(shares)
    for process in processes:
        size = finding.require(process.regular_bytes, "what its processes take is not known: ")
        # What Mooncake binds itself lies where that says, here or elsewhere.
        need += size - sum(process.bound_bytes.values())
    it = "it" if len(numbers) == 1 else "them"
    count = f"{len(processes)} process{'es' if len(processes) > 1 else ''} bound to {it}"
    share = f"{format_bytes(sum(shares))} of segments that are split over the NICs' nodes"
    names = " + ".join([*([count] if processes else []), *([share] if shares else [])])
    finding = finding._replace(need=format_bytes(need), formula=names)
    nodes = [numa.node(number) for number in numbers]
    free = cache = 0
    evidence = []
    for number, row in zip(numbers, nodes, strict=True):
        if row is None:
            return finding.undecided(f"the kernel shows no node {number} here")
        free += finding.require(row.free_bytes)
        source = f"{NODES}/node{number}/meminfo"
        evidence.append(Evidence(f"{source} MemFree", str(row.free_bytes)))
    finding = finding._replace(have=format_bytes(free, "{} free"), evidence=tuple(evidence))
    if need <= free:
        return finding
    for row in filter(None, nodes):
        cached = finding.require(row.cache_bytes, "more than is free, and ")
        cache += cached
        evidence.append(Evidence(f"{NODES}/node{row.node}/meminfo cache and slab", str(cached)))
    fewer = f"bind fewer processes to {where}, or " if len(processes) > 1 else ""
    both = f"{format_bytes(free)} free + {format_bytes(cache)} page cache"
    finding = finding._replace(have=Quantity(both, free + cache, "bytes"), evidence=tuple(evidence))
    if need <= free + cache:
        text = "it fits once the kernel has dropped page cache, which slows the start"
        advice = f"{fewer}shrink what is taken there by {format_bytes(need - free)}"
        return finding.warned(text, advice)
    short = format_bytes(need - free - cache)
    finding = finding._replace(advice=f"{fewer}shrink what is taken there by {short}")
    swap = memory.value("SwapFree")
    if isinstance(swap, Unknown):
        return finding.undecided(f"{short} is missing, and whether swap helps is not known")
    if swap > 0:
        text = f"{short} is missing on it: memory is swapped out, though other nodes have some"
        return finding.warned(text)
    text = "the OOM killer ends a rank, though other nodes have some"
    return finding.failed(f"{short} is missing: {text}")


@CHECKS("numa.gpu-nic-distance")
def gpu_nic_distance(
    needs: LaunchNeeds, pci: PciFacts, rdma: RdmaFacts, numa: NumaFacts, gpus: GpuFacts
) -> Iterable[Finding]:
    """Judge whether each process has a NIC near its GPU."""
    placed = [process for process in needs.rdma_processes if process.gpu is not None]
    findings = [_judge_nearest(process, numa, pci, gpus, rdma, needs) for process in placed]
    return fold(findings) or [skip("no process of the launch has both a GPU and RDMA", "launch")]


@or_unjudged
def _judge_nearest(
    process: ProcessNeeds,
    numa: NumaFacts,
    pci: PciFacts,
    gpus: GpuFacts,
    rdma: RdmaFacts,
    needs: LaunchNeeds,
) -> Finding:
    """Judge whether one process has a NIC on its GPU's NUMA node.

    Warn if every NIC is farther.
    """
    finding = passed(process.name, need="a NIC on the GPU's NUMA node")
    gpu = finding.require(gpu_function(gpus, process))
    if gpu is None:
        return finding.skipped("its GPU is not visible, as gpu.count says")
    names = finding.require(nics_of(rdma, needs, process))
    if not names:
        return finding.skipped("no NIC of this host is usable to it")
    if len(numa.nodes) == 1:
        return finding._replace(have="one NUMA node")
    paths = {name: pci.paths.get((gpu.address, name)) for name in names}
    known = {name: path for name, path in paths.items() if isinstance(path, PathClass)}
    near = [name for name, path in known.items() if path < PathClass.SYS]
    if near:
        best = min(near, key=lambda name: known[name])
        return finding._replace(have=f"{best} {known[best].name}")
    if len(known) < len(paths):
        missing = next(name for name in names if name not in known)
        path = paths[missing]
        why = path if isinstance(path, Unknown) else Unknown(f"{missing} is no PCI device")
        return finding.undecided(why.of("how far its NICs are is unknown:  "))
    of_gpu = [(name, path) for (at, name), path in pci.paths.items() if at == gpu.address]
    others = [name for name, path in of_gpu if isinstance(path, PathClass) and path < PathClass.SYS]
    evidence = [Evidence("numa_node of its GPU", str(gpu.node))]
    for name in names:
        file = f"{RDMA_DEVICES}/{name}/device/numa_node"
        evidence.append(Evidence(file, str(nic_node(rdma, name))))
    return finding.warned(
        "every transfer of its GPU crosses the link between NUMA nodes",
        f"let the rank use a NIC of the GPU's node: {', '.join(others[:4]) or 'none here'}",
        have=f"{', '.join(names)}: all SYS",
        evidence=tuple(evidence),
    )


@CHECKS("numa.unknown-nic-node")
def unknown_nic_node(
    needs: LaunchNeeds | None, rdma: RdmaFacts, numa: NumaFacts, pci: PciFacts
) -> Iterable[Finding]:
    """Judge whether each NIC names its NUMA node."""
    if needs is None:
        names = tuple(nic.name for nic in require(rdma.nics))
        reason = "the host has no RDMA device"
    else:
        names = require(nics_in_use(rdma, needs))
        reason = "the launch uses no RDMA device of this host"
    several = len(numa.nodes) > 1
    return [_judge_node_name(name, pci, rdma, several) for name in names] or [skip(reason)]


@or_unjudged
def _judge_node_name(name: str, pci: PciFacts, rdma: RdmaFacts, several_nodes: bool) -> Finding:
    """Judge whether one NIC names its NUMA node.

    Args:
        several_nodes: The host has more than one; else a NIC that names no node passes.
    """
    finding = passed(name, need="a NUMA node")
    number = finding.require(nic_node(rdma, name))
    if number is not None:
        return finding._replace(have=f"node {number}")
    if not several_nodes:
        return finding._replace(have="no node named, one on the host")
    return finding.warned(
        "Mooncake places no memory near it, and prefers NICs that have a NUMA node",
        "set the device's NUMA affinity in the firmware, or write its node to numa_node"
        if name in pci.nics
        else "a software device has none: use hardware NICs",
        have="no node named",
        evidence=(Evidence(f"{RDMA_DEVICES}/{name}/device/numa_node", "-1 or absent"),),
    )


SHOWN_NICS = 4


@CHECKS("topology.mooncake-view")
def mooncake_view(
    needs: LaunchNeeds | None, gpus: GpuFacts, numa: NumaFacts, pci: PciFacts, rdma: RdmaFacts
) -> Iterable[Finding]:
    """Judge whether Mooncake prefers the nearest NIC for each GPU: of the launch's processes, or
    without a launch of this host.
    """
    if needs is None:
        return _judge_gpus(numa, pci, gpus, rdma)
    launch, release = needs, release_of(needs.mooncake_version)

    @or_unjudged
    def judge(process: ProcessNeeds) -> Finding:
        assert process.gpu is not None
        finding = passed(process.name)
        view = finding.require(predict_view(numa, pci, gpus, rdma, process, release))
        names = finding.require(nics_of(rdma, launch, process))
        return judge_gpu(finding, pci, view, process.gpu, names, release)

    findings = fold(judge(process) for process in registering(needs))
    return findings or [skip("no process registers memory of a GPU over RDMA", "launch")]


def _judge_gpus(numa: NumaFacts, pci: PciFacts, gpus: GpuFacts, rdma: RdmaFacts) -> list[Finding]:
    """Judge every GPU that this process may use, with all NICs that Mooncake can use."""
    visible = require(visible_gpus(gpus, ANY_PROCESS))
    if not visible:
        return [skip("no GPU is visible here")]
    view = require(predict_view(numa, pci, gpus, rdma, ANY_PROCESS, None))
    names = require(devices_in_use(rdma, ANY_PROCESS).names)
    if not names:
        return [skip("no NIC of this host is usable")]
    return fold(
        judge_gpu(passed(f"GPU {index}"), pci, view, index, names, None)
        for index in range(len(visible))
    )


@or_unjudged
def judge_gpu(
    finding: Finding,
    pci: PciFacts,
    view: View,
    gpu: int,
    names: tuple[str, ...],
    release: MooncakeRelease | None,
) -> Finding:
    """Judge whether Mooncake prefers the nearest of ``names`` for GPU ``gpu`` of ``view``.

    Args:
        names: The NICs in use.
        release: None for the newest known.
    """
    finding = finding._replace(need="the nearest NIC in use preferred")
    visible = finding.require(view.gpus)
    if gpu >= len(visible):
        return finding.skipped("its GPU is not visible, as gpu.count says")
    if not names:
        return finding.skipped("no NIC of this host is usable to it")
    if len(names) == 1:
        return finding._replace(have=f"{names[0]} alone")
    # Without an entry (MC_CUSTOM_TOPO_JSON) memory of the GPU may go through any NIC.
    location = view.at(f"cuda:{gpu}")
    first = names if location is None else finding.require(location.first)
    address = visible[gpu]
    paths = {name: pci.paths.get((address, name)) for name in names}
    known = {name: path for name, path in paths.items() if isinstance(path, PathClass)}
    far = max((known[name] for name in first if name in known), default=None)
    near = min(known.values(), default=None)
    finding = finding._replace(have=f"{_listed(first, known)} preferred")
    unknown = [path for path in paths.values() if isinstance(path, Unknown)]
    if far is None or near is None or (unknown and far is not PathClass.PIX and far == near):
        reason = unknown[0].reason if unknown else f"none of {', '.join(names)} is a PCI device"
        return finding.undecided(f"their distance is unknown: {reason}")
    if far == near:
        return finding
    nearest = tuple(name for name in names if known.get(name) == near)
    farther = tuple(name for name in first if name in known and known[name] > near)
    old = release is not None and not release.looks_at_nodes and far is PathClass.SYS
    newer = "Mooncake 0.3.8 and later look at the node first; or " if old else ""
    shown = {"its GPU": address}
    shown |= {name: pci.nics[name].address for name in (*farther[:2], *nearest[:2])}
    return finding.warned(
        f"Mooncake takes {_listed(farther, known)} for its memory, though "
        f"{_listed(nearest, known)} is in use",
        f"{newer}name {', '.join(nearest[:SHOWN_NICS])} for it, or give its location in a "
        "file for MC_CUSTOM_TOPO_JSON",
        evidence=tuple(Evidence(f"PCI address of {name}", at) for name, at in shown.items()),
    )


def _listed(names: Iterable[str], known: dict[str, PathClass]) -> str:
    """Return ``mlx5_0 PIX, mlx5_1 PIX``; from the fifth NIC on only their number."""
    texts = [f"{name} {known[name].name}" if name in known else name for name in names]
    more = f" and {len(texts) - SHOWN_NICS} more" if len(texts) > SHOWN_NICS else ""
    return ", ".join(texts[:SHOWN_NICS]) + more


def registering(needs: LaunchNeeds) -> tuple[ProcessNeeds, ...]:
    """Return the processes whose GPU memory goes over RDMA, also if how much is not known."""
    ranks = (process for process in needs.rdma_processes if process.gpu is not None)
    return tuple(process for process in ranks if process.gpu_registered_bytes != 0)
