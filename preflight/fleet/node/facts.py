"""What of a node's facts is held against other nodes: flat, name -> text, number or boolean.

Names are stable: ``kernel``, ``distribution``, ``gpu.driver``, ``mlx5_0.firmware`` (a device),
``mlx5_0:1.rate`` (its port), ``hugetlb.2048KiB.pages`` (a pool), ``limit.memlock``,
``wheel.sglang``, ``model /models/Qwen3``. Sizes are in bytes where the name ends so. What is each
node's own (addresses, GIDs) is not here but in the report's ``rails``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.run.facts import Facts
from preflight.fleet.node.records import Value

if TYPE_CHECKING:
    from checks.gpu.facts import GpuFacts
    from checks.hugetlb.facts import HugetlbFacts
    from checks.limits.facts import LimitFacts
    from checks.limits.runtimes import Limit
    from checks.memory.facts import MemoryFacts
    from checks.numa.facts import NumaFacts
    from checks.pci.facts import PciFacts
    from checks.rdma.devices import Port
    from checks.rdma.facts import Nic, RdmaFacts
    from checks.software.facts import SoftwareFacts
    from checks.system.facts import SystemFacts
    from preflight.fleet.node.records import Rail

# A model's config.json is some kilobytes; what is larger is not one, and is not hashed.
LARGEST_CONFIG_BYTES = 1 << 20
UNLIMITED = "unlimited"

# None, and what is absent, is no fact: the node has no such thing.
Pairs = Iterator[tuple[str, Value | Unknown | None]]


def node_facts(
    facts: Facts, rails: Iterable[Rail], needs: LaunchNeeds | None, root: Root
) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the known facts, and why others are not known; a topic not read is one of those."""
    known: dict[str, Value] = {}
    unknown: dict[str, str] = {}
    for name, value in _pairs(facts, rails, needs, root):
        if isinstance(value, Unknown):
            if not value.absent:
                unknown[name] = value.reason
        elif value is not None:
            known[name] = value
    return known, unknown


def _pairs(facts: Facts, rails: Iterable[Rail], needs: LaunchNeeds | None, root: Root) -> Pairs:
    for topic, of_topic in _TOPICS.items():
        record = facts.topic(topic)
        if isinstance(record, Unknown):
            yield topic, Unknown(record.reason)
        else:
            yield from of_topic(record)
    for rail in rails:
        name = f"{rail.device}:{rail.port}"
        yield f"{name}.mtu_bytes", rail.mtu_bytes
        yield f"{name}.gid_index", rail.gid_index
        yield f"{name}.gid_type", rail.gid_type
        yield f"{name}.netdev", rail.netdev
        yield f"{name}.netdev_mtu_bytes", rail.netdev_mtu_bytes
    for storage in needs.storage if needs is not None else ():
        if storage.kind in ("model", "draft") and isinstance(storage.path, str):
            yield f"{storage.kind} {storage.path}", _model(root, storage.path)


def _system(system: SystemFacts) -> Pairs:
    yield "kernel", system.kernel_release
    yield "architecture", system.architecture
    name, version = system.distribution, system.distribution_version
    if isinstance(name, str) and isinstance(version, str):
        yield "distribution", f"{name} {version}"
    else:
        yield "distribution", name
    kind, source = system.container
    yield "container", Unknown(source) if kind == "unknown" else kind
    yield "hypervisor", "none" if system.hypervisor == "" else system.hypervisor
    yield "page_bytes", system.page_bytes


def _limits(limits: LimitFacts) -> Pairs:
    from checks.limits.facts import IPC_LOCK_BIT

    yield "limit.memlock", _limit(limits.memlock)
    yield "limit.nofile", _limit(limits.nofile)
    yield "limit.nproc", _limit(limits.nproc)
    yield "ipc_lock", limits.effective(IPC_LOCK_BIT)
    yield "uid", limits.euid


def _limit(limit: Limit | Unknown) -> Value | Unknown:
    if isinstance(limit, Unknown):
        return limit
    return UNLIMITED if limit.soft is None else limit.soft


def _memory(memory: MemoryFacts) -> Pairs:
    yield "memory.total_bytes", memory.value("MemTotal")
    yield "memory.shm_bytes", memory.shm_size_bytes
    yield "vm.max_map_count", memory.max_map_count
    yield "vm.overcommit_memory", memory.overcommit
    yield "vm.swappiness", memory.swappiness


def _hugetlb(hugetlb: HugetlbFacts) -> Pairs:
    pools = hugetlb.hugetlb.pools
    yield "hugetlb.default_page_bytes", hugetlb.hugetlb.default_page_size_bytes
    yield "thp.enabled", hugetlb.thp_enabled
    yield "thp.shmem", hugetlb.thp_shmem
    if isinstance(pools, Unknown):
        yield "hugetlb", pools
        return
    for size, pool in pools.items():
        name = f"hugetlb.{size // 1024}KiB"
        if isinstance(pool, Unknown):
            yield f"{name}.pages", pool
            continue
        yield f"{name}.pages", pool.total_pages
        yield f"{name}.overcommit_pages", pool.overcommit_pages
        if len(pool.nodes) > 1:
            for node, share in pool.nodes.items():
                yield f"{name}.node{node}.pages", share.total_pages


def _numa(numa: NumaFacts) -> Pairs:
    yield "numa.nodes", len(numa.nodes) or 1
    cpus = [node.cpus for node in numa.nodes]
    unread = next((one for one in cpus if isinstance(one, Unknown)), None)
    counts = [len(one) for one in cpus if not isinstance(one, Unknown)]
    yield "numa.cpus", ", ".join(map(str, counts)) if unread is None else unread
    yield "numa.balancing", numa.balancing


def _pci(pci: PciFacts) -> Pairs:
    accelerators = () if isinstance(pci.accelerators, Unknown) else pci.accelerators
    kinds = [one.iommu for one in (*accelerators, *pci.nics.values())]
    unread = next((kind for kind in kinds if isinstance(kind, Unknown)), None)
    written = " ".join(sorted({kind for kind in kinds if isinstance(kind, str)}))
    yield "iommu", (written or None) if unread is None else unread


def _gpus(gpus: GpuFacts) -> Pairs:
    on_pci = gpus.accelerators
    yield "gpu.count", on_pci if isinstance(on_pci, Unknown) else len(on_pci)
    yield "gpu.kernel_module", gpus.kernel_module
    peers = gpus.peer_modules
    yield "gpu.peer_modules", peers if isinstance(peers, Unknown) else " ".join(peers)
    nvml = gpus.nvml
    if isinstance(nvml, Unknown):
        yield "gpu.driver", nvml if gpus.kernel_module_version else None
        return
    if nvml.error:
        yield "gpu.driver", Unknown(nvml.error)
        return
    yield "gpu.driver", nvml.driver
    if nvml.cuda_version is not None:
        yield "gpu.cuda", f"{nvml.cuda_version // 1000}.{nvml.cuda_version % 1000 // 10}"
    yield "gpu.names", _counted([gpu.name or "unnamed" for gpu in nvml.gpus])
    sizes = [gpu.memory_bytes for gpu in nvml.gpus if gpu.memory_bytes is not None]
    yield "gpu.memory_bytes", min(sizes) if sizes else None
    for name, values in (
        ("gpu.mig", [gpu.mig for gpu in nvml.gpus]),
        ("gpu.ecc", [gpu.ecc for gpu in nvml.gpus]),
        ("gpu.compute_mode", [gpu.compute_mode for gpu in nvml.gpus]),
    ):
        yield name, " ".join("-" if one is None else str(one) for one in values)


def _counted(names: list[str]) -> str:
    """Return each name with its number, as ``8 x NVIDIA H800``."""
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _rdma(rdma: RdmaFacts) -> Pairs:
    yield "rdma_core", rdma.libraries.version
    yield "rdma.devices", _device_names(rdma)
    for nic in rdma.present:
        yield from _nic(nic)
        if isinstance(nic.ports, Unknown):
            yield f"{nic.name}.ports", nic.ports
            continue
        for port in nic.ports:
            yield from _port(nic, port)


def _device_names(rdma: RdmaFacts) -> str | Unknown:
    if isinstance(rdma.nics, Unknown):
        return "" if rdma.nics.absent else rdma.nics
    return " ".join(nic.name for nic in rdma.nics)


def _nic(nic: Nic) -> Pairs:
    yield f"{nic.name}.firmware", nic.firmware
    yield f"{nic.name}.hardware", nic.hardware
    yield f"{nic.name}.driver", nic.driver
    yield f"{nic.name}.pci", nic.pci_address
    yield f"{nic.name}.node", nic.node


def _port(nic: Nic, port: Port) -> Pairs:
    name = f"{nic.name}:{port.number}"
    yield f"{name}.state", port.state
    yield f"{name}.rate", port.rate
    yield f"{name}.link_layer", port.link_layer
    yield f"{name}.pkey", port.pkeys.get(0)


def _software(software: SoftwareFacts) -> Pairs:
    engine = software.engine
    if isinstance(engine, Unknown):
        yield "wheel.mooncake", engine
        return
    if engine is None:
        return
    if engine.mooncake:
        wheels = ", ".join(f"{wheel.name} {wheel.version}" for wheel in engine.mooncake)
        yield "wheel.mooncake", wheels
    for name, wheel in (("sglang", engine.sglang), ("torch", engine.torch)):
        yield f"wheel.{name}", None if wheel is None else wheel.version


def _model(root: Root, path: str) -> str | Unknown:
    """Return a hash of the model's config.json, so that one name with two models is seen."""
    import hashlib

    if not path.startswith("/"):
        return Unknown("not a path", absent=True)
    text = root.text(f"{path.rstrip('/')}/config.json")
    if isinstance(text, Unknown):
        return "absent" if text.absent else text
    if len(text) > LARGEST_CONFIG_BYTES:
        return "present"
    return f"config.json {hashlib.sha256(text.encode()).hexdigest()[:12]}"


_TOPICS: dict[str, Callable[[Any], Pairs]] = {
    "system": _system,
    "limits": _limits,
    "memory": _memory,
    "hugetlb": _hugetlb,
    "numa": _numa,
    "pci": _pci,
    "gpus": _gpus,
    "rdma": _rdma,
    "software": _software,
}
