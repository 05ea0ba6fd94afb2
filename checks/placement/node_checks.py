"""Is there memory on each NUMA node, and are the NICs in use near the GPUs that they serve?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checks.base.check import CheckSet, any_launch, the_launch
from checks.base.device_nodes import RDMA_DEVICES
from checks.base.finding import Evidence, Finding, or_unjudged, passed, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import Quantity, format_bytes
from checks.base.unknown import Unknown, known
from checks.gpu.facts import GpuFacts
from checks.gpu.hardware_use import gpu_function, nic_node, nics_in_use, nics_of, visible_gpus
from checks.memory.facts import MemoryFacts
from checks.numa.facts import NumaFacts
from checks.numa.nodes import NODES, node_list
from checks.pci.facts import PathClass, PciFacts
from checks.placement.mooncake_topology import ANY_PROCESS, View, predicted
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import MooncakeRelease, release_of

CHECKS = CheckSet()


@CHECKS.check("numa.node-memory", the_launch)
def node_memory(needs: LaunchNeeds, numa: NumaFacts, memory: MemoryFacts) -> Iterable[Finding]:
    """Judge whether each NUMA node has the memory that is bound to it."""
    placed = (node for process in needs.processes for node in (process.node, *process.bound_bytes))
    bound: list[tuple[int, ...]] = sorted({(node,) for node in placed if node is not None})
    bound += sorted({process.among for process in needs.processes if process.among})
    if not bound:
        return [passed("launch", "nothing is bound to a node")]
    policy = numa.policy
    if not isinstance(policy, Unknown) and policy.set_mempolicy:
        return [skip("set_mempolicy is refused here, so nothing is bound", "launch")]
    return [_memory_of(nodes, needs.processes, memory, numa) for nodes in bound]


@or_unjudged
def _memory_of(
    numbers: Sequence[int], everything: Sequence[ProcessNeeds], memory: MemoryFacts, numa: NumaFacts
) -> Finding:
    """Judge the memory of one NUMA node, or of several that share a binding."""
    where = node_list(numbers)
    finding = passed(where)
    bound = [{*(p.among or (() if p.node is None else (p.node,)))} for p in everything]
    processes = [p for p, to in zip(everything, bound, strict=True) if to and to <= {*numbers}]
    shares = [p.bound_bytes[n] for p in everything for n in numbers if n in p.bound_bytes]
    need = sum(shares)
    for process in processes:
        size = finding.known(process.regular_bytes, "what its processes take is not known: ")
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
    for number, node in zip(numbers, nodes, strict=True):
        if node is None:
            return finding.unknown(f"the kernel shows no node {number} here")
        free += finding.known(node.free_bytes)
        source = f"{NODES}/node{number}/meminfo"
        evidence.append(Evidence(f"{source} MemFree", str(node.free_bytes)))
    finding = finding._replace(have=format_bytes(free, "{} free"), evidence=tuple(evidence))
    if need <= free:
        return finding
    for node in filter(None, nodes):
        cached = finding.known(node.cache_bytes, "more than is free, and ")
        cache += cached
        evidence.append(Evidence(f"{NODES}/node{node.node}/meminfo cache and slab", str(cached)))
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
        return finding.unknown(f"{short} is missing, and whether swap helps is not known")
    if swap > 0:
        text = f"{short} is missing on it: memory is swapped out, though other nodes have some"
        return finding.warned(text)
    text = "the OOM killer ends a rank, though other nodes have some"
    return finding.failed(f"{short} is missing: {text}")


@CHECKS.check("numa.gpu-nic-distance", the_launch)
def gpu_nic_distance(
    needs: LaunchNeeds, pci: PciFacts, rdma: RdmaFacts, numa: NumaFacts, gpus: GpuFacts
) -> Iterable[Finding]:
    """Judge whether each process has a NIC near its GPU."""
    placed = [process for process in needs.rdma_processes if process.gpu is not None]
    findings = [_nearest(process, numa, pci, gpus, rdma, needs) for process in placed]
    return fold(findings) or [skip("no process of the launch has both a GPU and RDMA", "launch")]


@or_unjudged
def _nearest(
    process: ProcessNeeds,
    numa: NumaFacts,
    pci: PciFacts,
    gpus: GpuFacts,
    rdma: RdmaFacts,
    needs: LaunchNeeds,
) -> Finding:
    """Judge the nearest NIC of one process's GPU."""
    finding = passed(process.name, need="a NIC on the GPU's NUMA node")
    gpu = finding.known(gpu_function(gpus, process))
    if gpu is None:
        return finding.skipped("its GPU is not visible, as gpu.count says")
    names = finding.known(nics_of(rdma, needs, process))
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
        return finding.unknown(why.of("how far its NICs are is unknown:  "))
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


@CHECKS.check("numa.unknown-nic-node", any_launch)
def unknown_nic_node(
    needs: LaunchNeeds | None, rdma: RdmaFacts, numa: NumaFacts, pci: PciFacts
) -> Iterable[Finding]:
    """Judge whether each NIC names its NUMA node."""
    if needs is None:
        names = tuple(nic.name for nic in known(rdma.nics))
        reason = "the host has no RDMA device"
    else:
        names = known(nics_in_use(rdma, needs))
        reason = "the launch uses no RDMA device of this host"
    several = len(numa.nodes) > 1
    return [_named_node(name, pci, rdma, several) for name in names] or [skip(reason)]


@or_unjudged
def _named_node(name: str, pci: PciFacts, rdma: RdmaFacts, several: bool) -> Finding:
    """Judge whether one NIC names its NUMA node."""
    finding = passed(name, need="a NUMA node")
    node = finding.known(nic_node(rdma, name))
    if node is not None:
        return finding._replace(have=f"node {node}")
    if not several:
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


@CHECKS.check("topology.mooncake-view", any_launch)
def mooncake_view(
    needs: LaunchNeeds | None, gpus: GpuFacts, numa: NumaFacts, pci: PciFacts, rdma: RdmaFacts
) -> Iterable[Finding]:
    """Judge whether Mooncake takes the near NICs for each GPU."""
    if needs is None:
        return _of_host(numa, pci, gpus, rdma)
    launch, release = needs, release_of(needs.mooncake_version)

    @or_unjudged
    def judge(process: ProcessNeeds) -> Finding:
        assert process.gpu is not None
        finding = passed(process.name)
        view = finding.known(predicted(numa, pci, gpus, rdma, process, release))
        names = finding.known(nics_of(rdma, launch, process))
        return judge_gpu(finding, pci, view, process.gpu, names, release)

    findings = fold(judge(process) for process in registering(needs))
    return findings or [skip("no process registers memory of a GPU over RDMA", "launch")]


def _of_host(numa: NumaFacts, pci: PciFacts, gpus: GpuFacts, rdma: RdmaFacts) -> list[Finding]:
    """Judge every GPU that this process may use, with all NICs."""
    visible = known(visible_gpus(gpus, ANY_PROCESS))
    if not visible:
        return [skip("no GPU is visible here")]
    view = known(predicted(numa, pci, gpus, rdma, ANY_PROCESS, None))
    names = known(devices_in_use(rdma, ANY_PROCESS).names)
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
    """Judge whether Mooncake prefers the nearest of ``names`` for GPU ``gpu`` of ``view``."""
    finding = finding._replace(need="the nearest NIC in use preferred")
    visible = finding.known(view.gpus)
    if gpu >= len(visible):
        return finding.skipped("its GPU is not visible, as gpu.count says")
    if not names:
        return finding.skipped("no NIC of this host is usable to it")
    if len(names) == 1:
        return finding._replace(have=f"{names[0]} alone")
    # Without an entry (MC_CUSTOM_TOPO_JSON) memory of the GPU may go through any NIC.
    location = view.at(f"cuda:{gpu}")
    first = names if location is None else finding.known(location.first)
    address = visible[gpu]
    paths = {name: pci.paths.get((address, name)) for name in names}
    known = {name: path for name, path in paths.items() if isinstance(path, PathClass)}
    far = max((known[name] for name in first if name in known), default=None)
    near = min(known.values(), default=None)
    finding = finding._replace(have=f"{_listed(first, known)} preferred")
    unknown = [path for path in paths.values() if isinstance(path, Unknown)]
    if far is None or near is None or (unknown and far is not PathClass.PIX and far == near):
        reason = unknown[0].reason if unknown else f"none of {', '.join(names)} is a PCI device"
        return finding.unknown(f"their distance is unknown: {reason}")
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
    """Return ``mlx5_0 PIX, mlx5_1 PIX``."""
    texts = [f"{name} {known[name].name}" if name in known else name for name in names]
    more = f" and {len(texts) - SHOWN_NICS} more" if len(texts) > SHOWN_NICS else ""
    return ", ".join(texts[:SHOWN_NICS]) + more


def registering(needs: LaunchNeeds) -> tuple[ProcessNeeds, ...]:
    """Return the processes whose GPU memory goes over RDMA."""
    ranks = (process for process in needs.rdma_processes if process.gpu is not None)
    return tuple(process for process in ranks if process.gpu_registered_bytes != 0)
