"""Checks of placement: enough memory on each node, NICs near the GPUs that they serve."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, any_launch, the_launch
from checks.base.finding import Evidence, Finding, Status, passed, skip, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown, known
from checks.gpu.facts import GpuFacts
from checks.gpu.hardware_use import (
    gpu_function,
    nic_node,
    nics_in_use,
    nics_of,
)
from checks.memory.facts import MemoryFacts
from checks.numa.facts import NumaFacts
from checks.pci.facts import PciFacts
from checks.pci.paths import PathClass
from checks.rdma.devices import DEVICES as RDMA_DEVICES
from checks.rdma.facts import RdmaFacts

CHECKS = CheckSet()


@CHECKS.check("numa.node-memory", the_launch)
def node_memory(needs: LaunchNeeds, numa: NumaFacts, memory: MemoryFacts) -> Iterable[Finding]:
    placed = (node for process in needs.processes for node in (process.node, *process.bound_bytes))
    bound = sorted({node for node in placed if node is not None})
    if not bound:
        return [passed("launch", "nothing is bound to a node")]
    policy = numa.policy
    if not isinstance(policy, Unknown) and policy.set_mempolicy:
        text = "set_mempolicy is refused here, so nothing is bound"
        return [skip(text, "launch")]
    return [_memory_of(node, needs.processes, memory, numa) for node in bound]


def _memory_of(
    number: int,
    everything: tuple[ProcessNeeds, ...],
    memory: MemoryFacts,
    numa: NumaFacts,
) -> Finding:
    finding = unknown(f"node {number}", "")
    processes = [process for process in everything if process.node == number]
    shares = [p.bound_bytes[number] for p in everything if number in p.bound_bytes]
    need = sum(shares)
    for process in processes:
        size = process.regular_bytes
        if isinstance(size, Unknown):
            return finding._replace(text=f"what its processes take is not known: {size.reason}")
        # What Mooncake binds itself lies where that says, here or elsewhere.
        need += size - sum(process.bound_bytes.values())
    count = f"{len(processes)} process{'es' if len(processes) > 1 else ''} bound to it"
    share = f"{format_bytes(sum(shares))} of segments that are split over the NICs' nodes"
    names = " + ".join([*([count] if processes else []), *([share] if shares else [])])
    finding = finding._replace(need=format_bytes(need), formula=names)
    node = numa.node(number)
    if node is None:
        text = f"the kernel shows no node {number} here"
        return finding._replace(text=text)
    free, cache = node.free_bytes, node.cache_bytes
    if isinstance(free, Unknown):
        return finding._replace(text=free.reason)
    source = f"/sys/devices/system/node/node{number}/meminfo"
    finding = finding._replace(
        have=f"{format_bytes(free)} free", evidence=(Evidence(f"{source} MemFree", str(free)),)
    )
    if need <= free:
        return finding._replace(status=Status.PASS)
    if isinstance(cache, Unknown):
        return finding._replace(text=f"more than is free, and {cache.reason}")
    fewer = f"bind fewer processes to node {number}, or " if len(processes) > 1 else ""
    finding = finding._replace(
        have=f"{format_bytes(free)} free + {format_bytes(cache)} page cache",
        evidence=(*finding.evidence, Evidence(f"{source} cache and slab", str(cache))),
    )
    if need <= free + cache:
        text = "it fits once the kernel has dropped page cache, which slows the start"
        advice = f"{fewer}shrink what is taken there by {format_bytes(need - free)}"
        return finding.warned(text, advice)
    short = format_bytes(need - free - cache)
    finding = finding._replace(advice=f"{fewer}shrink what is taken there by {short}")
    swap = memory.value("SwapFree")
    if isinstance(swap, Unknown):
        return finding._replace(text=f"{short} short, and whether swap helps is not known")
    if swap > 0:
        text = f"{short} short on the node: it is swapped out, however free other nodes are"
        return finding.warned(text)
    text = f"{short} short: the OOM killer ends a rank, however free other nodes are"
    return finding.failed(text)


@CHECKS.check("numa.gpu-nic-distance", the_launch)
def gpu_nic_distance(
    needs: LaunchNeeds, pci: PciFacts, rdma: RdmaFacts, numa: NumaFacts, gpus: GpuFacts
) -> Iterable[Finding]:
    found = [
        _nearest(process, numa, pci, gpus, rdma, needs)
        for process in needs.rdma_processes
        if process.gpu is not None
    ]
    text = "no process of the launch has both a GPU and RDMA"
    return fold(found) or [skip(text, "launch")]


def _nearest(
    process: ProcessNeeds,
    numa: NumaFacts,
    pci: PciFacts,
    gpus: GpuFacts,
    rdma: RdmaFacts,
    needs: LaunchNeeds,
) -> Finding:
    finding = unknown(process.name, "", need="a NIC on the GPU's NUMA node")
    gpu = gpu_function(gpus, process)
    if isinstance(gpu, Unknown):
        return finding._replace(text=gpu.reason)
    if gpu is None:
        text = "its GPU is not visible, as gpu.count says"
        return finding.skipped(text)
    names = nics_of(rdma, needs, process)
    if isinstance(names, Unknown):
        return finding._replace(text=names.reason)
    if not names:
        text = "no NIC of this host is usable to it"
        return finding.skipped(text)
    if len(numa.nodes) == 1:
        return finding._replace(status=Status.PASS, have="one NUMA node")
    paths = {name: pci.paths.get((gpu.address, name)) for name in names}
    known = {name: path for name, path in paths.items() if isinstance(path, PathClass)}
    near = [name for name, path in known.items() if path < PathClass.SYS]
    if near:
        best = min(near, key=lambda name: known[name])
        return finding._replace(status=Status.PASS, have=f"{best} {known[best].name}")
    if len(known) < len(paths):
        missing = next(name for name in names if name not in known)
        path = paths[missing]
        reason = path.reason if isinstance(path, Unknown) else f"{missing}: is no PCI device"
        return finding._replace(text=f"how far its NICs are is not known: {reason}")
    others = [
        name
        for (address, name), path in pci.paths.items()
        if address == gpu.address and isinstance(path, PathClass) and path < PathClass.SYS
    ]
    return finding.warned(
        "every transfer of its GPU crosses the link between NUMA nodes",
        f"let the rank use a NIC of the GPU's node: {', '.join(others[:4]) or 'none here'}",
        have=f"{', '.join(names)}: all SYS",
        evidence=(
            Evidence("numa_node of its GPU", str(gpu.node)),
            *(
                Evidence(f"{RDMA_DEVICES}/{name}/device/numa_node", str(nic_node(rdma, name)))
                for name in names
            ),
        ),
    )


@CHECKS.check("numa.unknown-nic-node", any_launch)
def unknown_nic_node(
    needs: LaunchNeeds | None, rdma: RdmaFacts, numa: NumaFacts, pci: PciFacts
) -> Iterable[Finding]:
    names: tuple[str, ...] | Unknown
    if needs is None:
        nics = rdma.nics
        names = nics if isinstance(nics, Unknown) else tuple(nic.name for nic in nics)
        reason = "the host has no RDMA device"
    else:
        names = nics_in_use(rdma, needs)
        reason = "the launch uses no RDMA device of this host"
    if not known(names):
        return [skip(reason)]
    several = len(numa.nodes) > 1
    return [_named_node(name, pci, rdma, several) for name in known(names)]


def _named_node(name: str, pci: PciFacts, rdma: RdmaFacts, several: bool) -> Finding:
    node = nic_node(rdma, name)
    finding = passed(name, need="a NUMA node")
    if isinstance(node, Unknown):
        return finding.unknown(node.reason)
    if node is not None:
        return finding._replace(have=f"node {node}")
    if not several:
        return finding._replace(have="no node named, one on the host")
    source = f"{RDMA_DEVICES}/{name}/device/numa_node"
    finding = finding.warned(
        "Mooncake binds no memory near it, and prefers any NIC that names a node",
        have="no node named",
        evidence=(Evidence(source, "-1 or absent"),),
    )
    function = pci.nics.get(name)
    if function is None:
        return finding._replace(advice="a software device has none: use hardware NICs")
    return finding._replace(
        advice="set the device's affinity in the firmware, or write its node to numa_node",
    )
