"""Checks of placement: enough memory on each node, NICs near the GPUs that they serve."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Status, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.gpu.hardware_use import (
    gpu_function,
    nic_node,
    nics_in_use,
    nics_of,
)
from checks.pci.paths import PathClass
from checks.rdma.devices import DEVICES as RDMA_DEVICES
from checks.run.facts import Facts

CHECKS = CheckSet()


@CHECKS.declare("numa.node-memory", "numa", "memory")
def node_memory(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "numa.node-memory"
    if needs is None:
        return [skip(check)]
    placed = (node for process in needs.processes for node in (process.node, *process.bound_bytes))
    bound = sorted({node for node in placed if node is not None})
    if not bound:
        return [Finding(check, Status.PASS, "launch", have="nothing is bound to a node")]
    policy = facts.numa.policy
    if not isinstance(policy, Unknown) and policy.set_mempolicy:
        text = "set_mempolicy is refused here, so nothing is bound"
        return [Finding(check, Status.SKIP, "launch", text=text)]
    return [_memory_of(check, node, needs.processes, facts) for node in bound]


def _memory_of(
    check: str, number: int, everything: tuple[ProcessNeeds, ...], facts: Facts
) -> Finding:
    finding = Finding(check, Status.UNKNOWN, f"node {number}")
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
    node = facts.numa.node(number)
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
        return finding._replace(status=Status.WARN, text=text, advice=advice)
    short = format_bytes(need - free - cache)
    finding = finding._replace(advice=f"{fewer}shrink what is taken there by {short}")
    swap = facts.memory.value("SwapFree")
    if isinstance(swap, Unknown):
        return finding._replace(text=f"{short} short, and whether swap helps is not known")
    if swap > 0:
        text = f"{short} short on the node: it is swapped out, however free other nodes are"
        return finding._replace(status=Status.WARN, text=text)
    text = f"{short} short: the OOM killer ends a rank, however free other nodes are"
    return finding._replace(status=Status.FAIL, text=text)


@CHECKS.declare("numa.gpu-nic-distance", "pci", "rdma", "numa", "gpus")
def gpu_nic_distance(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "numa.gpu-nic-distance"
    if needs is None:
        return [skip(check)]
    found = [
        _nearest(check, process, facts, needs)
        for process in needs.rdma_processes
        if process.gpu is not None
    ]
    text = "no process of the launch has both a GPU and RDMA"
    return fold(found) or [Finding(check, Status.SKIP, "launch", text=text)]


def _nearest(check: str, process: ProcessNeeds, facts: Facts, needs: LaunchNeeds) -> Finding:
    finding = Finding(check, Status.UNKNOWN, process.name, need="a NIC on the GPU's NUMA node")
    gpu = gpu_function(facts, process)
    if isinstance(gpu, Unknown):
        return finding._replace(text=gpu.reason)
    if gpu is None:
        text = "its GPU is not visible, as gpu.count says"
        return finding._replace(status=Status.SKIP, text=text)
    names = nics_of(facts, needs, process)
    if isinstance(names, Unknown):
        return finding._replace(text=names.reason)
    if not names:
        text = "no NIC of this host is usable to it"
        return finding._replace(status=Status.SKIP, text=text)
    if len(facts.numa.nodes) == 1:
        return finding._replace(status=Status.PASS, have="one NUMA node")
    paths = {name: facts.pci.paths.get((gpu.address, name)) for name in names}
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
        for (address, name), path in facts.pci.paths.items()
        if address == gpu.address and isinstance(path, PathClass) and path < PathClass.SYS
    ]
    return finding._replace(
        status=Status.WARN,
        have=f"{', '.join(names)}: all SYS",
        text="every transfer of its GPU crosses the link between NUMA nodes",
        evidence=(
            Evidence("numa_node of its GPU", str(gpu.node)),
            *(
                Evidence(f"{RDMA_DEVICES}/{name}/device/numa_node", str(nic_node(facts, name)))
                for name in names
            ),
        ),
        advice=f"let the rank use a NIC of the GPU's node: {', '.join(others[:4]) or 'none here'}",
    )


@CHECKS.declare("numa.unknown-nic-node", "rdma", "numa", "pci")
def unknown_nic_node(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "numa.unknown-nic-node"
    names: tuple[str, ...] | Unknown
    if needs is None:
        nics = facts.rdma.nics
        names = nics if isinstance(nics, Unknown) else tuple(nic.name for nic in nics)
        reason = "the host has no RDMA device"
    else:
        names = nics_in_use(facts, needs)
        reason = "the launch uses no RDMA device of this host"
    if isinstance(names, Unknown):
        return [Finding(check, Status.UNKNOWN, "host", text=names.reason)]
    if not names:
        return [Finding(check, Status.SKIP, "host", text=reason)]
    several = len(facts.numa.nodes) > 1
    return [_named_node(check, name, facts, several) for name in names]


def _named_node(check: str, name: str, facts: Facts, several: bool) -> Finding:
    node = nic_node(facts, name)
    finding = Finding(check, Status.PASS, name, need="a NUMA node")
    if isinstance(node, Unknown):
        return finding._replace(status=Status.UNKNOWN, text=node.reason)
    if node is not None:
        return finding._replace(have=f"node {node}")
    if not several:
        return finding._replace(have="no node named, one on the host")
    source = f"{RDMA_DEVICES}/{name}/device/numa_node"
    finding = finding._replace(
        status=Status.WARN,
        have="no node named",
        evidence=(Evidence(source, "-1 or absent"),),
        text="Mooncake binds no memory near it, and prefers any NIC that names a node",
    )
    function = facts.pci.nics.get(name)
    if function is None:
        return finding._replace(advice="a software device has none: use hardware NICs")
    return finding._replace(
        advice="set the device's affinity in the firmware, or write its node to numa_node",
    )
