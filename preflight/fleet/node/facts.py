"""What of a node's facts is held against other nodes: flat, name -> text, number or boolean.

Names are stable: ``kernel``, ``distribution``, ``gpu.driver``, ``mlx5_0.firmware`` (a device),
``mlx5_0:1.rate`` (its port), ``hugetlb.2048KiB.pages`` (a pool), ``limit.memlock``,
``wheel.sglang``, ``model /models/Qwen3``. Sizes are in bytes where the name ends so. What is each
node's own (addresses, GIDs) is not here but in the report's ``rails``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.run.facts import Facts

if TYPE_CHECKING:
    from checks.gpu.facts import GpuFacts
    from checks.hugetlb.facts import HugetlbFacts
    from checks.limits.facts import LimitFacts
    from checks.limits.runtimes import Limit
    from checks.memory.facts import MemoryFacts
    from checks.numa.facts import NumaFacts
    from checks.pci.facts import PciFacts
    from checks.rdma.facts import Nic, RdmaFacts
    from checks.rdma.ports import Port
    from checks.software.facts import SoftwareFacts
    from checks.system.facts import SystemFacts
    from preflight.fleet.node.records import Rail

# A model's config.json is some kilobytes; what is larger is not one, and is not hashed.
LARGEST_CONFIG_BYTES = 1 << 20
UNLIMITED = "unlimited"

Value = str | int | bool


class Digest:
    """Facts by name; what could not be read apart, with the reason."""

    def __init__(self) -> None:
        self.known: dict[str, Value] = {}
        self.unknown: dict[str, str] = {}

    def put(self, name: str, value: Value | Unknown | None) -> None:
        """None, and what is absent, is no fact: the node has no such thing."""
        if isinstance(value, Unknown):
            if not value.absent:
                self.unknown[name] = value.reason
        elif value is not None:
            self.known[name] = value


def node_facts(
    facts: Facts, rails: Iterable[Rail], needs: LaunchNeeds | None, root: Root
) -> tuple[dict[str, Value], dict[str, str]]:
    """Known ones, and why the others are not known; a topic that was not read is one of those."""
    digest = Digest()
    for topic, add in _TOPICS.items():
        record = facts.topic(topic)
        if isinstance(record, Unknown):
            digest.unknown[topic] = record.reason
        else:
            add(digest, record)
    for rail in rails:
        _rail(digest, rail)
    for storage in needs.storage if needs is not None else ():
        if storage.kind in ("model", "draft") and isinstance(storage.path, str):
            digest.put(f"{storage.kind} {storage.path}", _model(root, storage.path))
    return digest.known, digest.unknown


def _system(digest: Digest, system: SystemFacts) -> None:
    digest.put("kernel", system.kernel_release)
    digest.put("architecture", system.architecture)
    name, version = system.distribution, system.distribution_version
    if isinstance(name, str) and isinstance(version, str):
        digest.put("distribution", f"{name} {version}")
    else:
        digest.put("distribution", name)
    digest.put("container", system.container.kind)
    digest.put("hypervisor", system.hypervisor or "none")
    digest.put("page_bytes", system.page_bytes)


def _limits(digest: Digest, limits: LimitFacts) -> None:
    from checks.limits.facts import IPC_LOCK_BIT

    digest.put("limit.memlock", _limit(limits.memlock))
    digest.put("limit.nofile", _limit(limits.nofile))
    digest.put("limit.nproc", _limit(limits.nproc))
    digest.put("ipc_lock", limits.effective(IPC_LOCK_BIT))
    digest.put("uid", limits.euid)


def _limit(limit: Limit | Unknown) -> Value | Unknown:
    if isinstance(limit, Unknown):
        return limit
    return UNLIMITED if limit.soft is None else limit.soft


def _memory(digest: Digest, memory: MemoryFacts) -> None:
    digest.put("memory.total_bytes", memory.value("MemTotal"))
    digest.put("memory.shm_bytes", memory.shm_size_bytes)
    digest.put("vm.max_map_count", memory.max_map_count)
    digest.put("vm.overcommit_memory", memory.overcommit)
    digest.put("vm.swappiness", memory.swappiness)


def _hugetlb(digest: Digest, hugetlb: HugetlbFacts) -> None:
    pools = hugetlb.hugetlb.pools
    digest.put("hugetlb.default_page_bytes", hugetlb.hugetlb.default_page_size_bytes)
    digest.put("thp.enabled", hugetlb.thp_enabled)
    digest.put("thp.shmem", hugetlb.thp_shmem)
    if isinstance(pools, Unknown):
        digest.put("hugetlb", pools)
        return
    for size, pool in pools.items():
        name = f"hugetlb.{size // 1024}KiB"
        if isinstance(pool, Unknown):
            digest.put(f"{name}.pages", pool)
            continue
        digest.put(f"{name}.pages", pool.total_pages)
        digest.put(f"{name}.overcommit_pages", pool.overcommit_pages)
        if len(pool.nodes) > 1:
            for node, share in pool.nodes.items():
                digest.put(f"{name}.node{node}.pages", share.total_pages)


def _numa(digest: Digest, numa: NumaFacts) -> None:
    digest.put("numa.nodes", len(numa.nodes) or 1)
    cpus = [node.cpus for node in numa.nodes]
    unread = next((one for one in cpus if isinstance(one, Unknown)), None)
    counts = [len(one) for one in cpus if not isinstance(one, Unknown)]
    digest.put("numa.cpus", ", ".join(map(str, counts)) if unread is None else unread)
    digest.put("numa.balancing", numa.balancing)


def _pci(digest: Digest, pci: PciFacts) -> None:
    accelerators = () if isinstance(pci.accelerators, Unknown) else pci.accelerators
    kinds = [one.iommu for one in (*accelerators, *pci.nics.values())]
    unread = next((kind for kind in kinds if isinstance(kind, Unknown)), None)
    written = " ".join(sorted({kind for kind in kinds if isinstance(kind, str)}))
    digest.put("iommu", (written or None) if unread is None else unread)


def _gpus(digest: Digest, gpus: GpuFacts) -> None:
    on_pci = gpus.accelerators
    digest.put("gpu.count", on_pci if isinstance(on_pci, Unknown) else len(on_pci))
    digest.put("gpu.kernel_module", gpus.kernel_module)
    peers = gpus.peer_modules
    digest.put("gpu.peer_modules", peers if isinstance(peers, Unknown) else " ".join(peers))
    nvml = gpus.nvml
    if isinstance(nvml, Unknown):
        digest.put("gpu.driver", nvml if gpus.kernel_module_version else None)
        return
    if nvml.error:
        digest.put("gpu.driver", Unknown(nvml.error))
        return
    digest.put("gpu.driver", nvml.driver)
    if nvml.cuda_version is not None:
        digest.put("gpu.cuda", f"{nvml.cuda_version // 1000}.{nvml.cuda_version % 1000 // 10}")
    digest.put("gpu.names", _counted([gpu.name or "unnamed" for gpu in nvml.gpus]))
    sizes = [gpu.memory_bytes for gpu in nvml.gpus if gpu.memory_bytes is not None]
    digest.put("gpu.memory_bytes", min(sizes) if sizes else None)
    for name, values in (
        ("gpu.mig", [gpu.mig for gpu in nvml.gpus]),
        ("gpu.ecc", [gpu.ecc for gpu in nvml.gpus]),
        ("gpu.compute_mode", [gpu.compute_mode for gpu in nvml.gpus]),
    ):
        digest.put(name, " ".join("-" if one is None else str(one) for one in values))


def _counted(names: list[str]) -> str:
    """``8 x NVIDIA H800``."""
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _rdma(digest: Digest, rdma: RdmaFacts) -> None:
    digest.put("rdma_core", rdma.libraries.version)
    digest.put("rdma.devices", _device_names(rdma))
    for nic in rdma.present:
        _nic(digest, nic)
        if isinstance(nic.ports, Unknown):
            digest.put(f"{nic.name}.ports", nic.ports)
            continue
        for port in nic.ports:
            _port(digest, nic, port)


def _device_names(rdma: RdmaFacts) -> str | Unknown:
    if isinstance(rdma.nics, Unknown):
        return "" if rdma.nics.absent else rdma.nics
    return " ".join(nic.name for nic in rdma.nics)


def _nic(digest: Digest, nic: Nic) -> None:
    digest.put(f"{nic.name}.firmware", nic.firmware)
    digest.put(f"{nic.name}.hardware", nic.hardware)
    digest.put(f"{nic.name}.driver", nic.driver)
    digest.put(f"{nic.name}.pci", nic.pci_address)
    digest.put(f"{nic.name}.node", nic.node)


def _port(digest: Digest, nic: Nic, port: Port) -> None:
    name = f"{nic.name}:{port.number}"
    digest.put(f"{name}.state", port.state)
    digest.put(f"{name}.rate", port.rate)
    digest.put(f"{name}.link_layer", port.link_layer)
    digest.put(f"{name}.pkey", port.pkeys.get(0))


def _rail(digest: Digest, rail: Rail) -> None:
    name = f"{rail.device}:{rail.port}"
    digest.put(f"{name}.mtu_bytes", rail.mtu_bytes)
    digest.put(f"{name}.gid_index", rail.gid_index)
    digest.put(f"{name}.gid_type", rail.gid_type)
    digest.put(f"{name}.netdev", rail.netdev)
    digest.put(f"{name}.netdev_mtu_bytes", rail.netdev_mtu_bytes)


def _software(digest: Digest, software: SoftwareFacts) -> None:
    engine = software.engine
    if isinstance(engine, Unknown):
        digest.put("wheel.mooncake", engine)
        return
    if engine is None:
        return
    if engine.mooncake:
        wheels = ", ".join(f"{wheel.name} {wheel.version}" for wheel in engine.mooncake)
        digest.put("wheel.mooncake", wheels)
    for name, wheel in (("sglang", engine.sglang), ("torch", engine.torch)):
        digest.put(f"wheel.{name}", None if wheel is None else wheel.version)


def _model(root: Root, path: str) -> str | Unknown:
    """What stands there: a hash of its config.json, so that one name with two models is seen."""
    import hashlib

    if not path.startswith("/"):
        return Unknown("not a path", absent=True)
    text = root.text(f"{path.rstrip('/')}/config.json")
    if isinstance(text, Unknown):
        return "absent" if text.absent else text
    if len(text) > LARGEST_CONFIG_BYTES:
        return "present"
    return f"config.json {hashlib.sha256(text.encode()).hexdigest()[:12]}"


_TOPICS: dict[str, Callable[[Digest, Any], None]] = {
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
