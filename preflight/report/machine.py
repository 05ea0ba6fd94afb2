"""What of a host is held against other hosts of its fleet: ``answer.machine`` of check's JSON.

Facts are flat, by names that stay: ``kernel``, ``gpu.driver``, ``mlx5_0.firmware`` (a device),
``mlx5_0:1.rate`` (its port), ``hugetlb.2048KiB.pages`` (a pool), ``limit.memlock``,
``model /models/Qwen3``. What is each host's own (addresses, GIDs) is in ``rails``.
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import leading_integer
from checks.network.facts import RoutingTables, exits
from checks.rdma.devices import Port, choose_gid
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.gid_checks import AFFINITY, PEER_AFFINITY
from checks.rdma.reach_checks import DEFAULT_MTU_BYTES, MTUS_BYTES
from checks.rdma.use import Use, port_of, uses
from checks.releases.mooncake import MooncakeRelease, release_of
from checks.run_checks.facts import Facts
from preflight.base.plain_data import plain

if TYPE_CHECKING:
    from preflight.needs.launch_sizing import LaunchSizing
    from preflight.verdict.judge_host import JudgedHost


BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOST_NAME = "/proc/sys/kernel/hostname"
# The name by which a scheduler calls this machine: Slurm's, and what a pod's manifest says.
NAME_VARIABLES = ("MOONCAKE_PREFLIGHT_NODE", "SLURMD_NODENAME")
# A model's config.json is some kilobytes; what is larger is not one, and is not hashed.
LARGEST_CONFIG_BYTES = 1 << 20
UNLIMITED = "unlimited"

# Of each topic, what is a fact as it stands: the fact's name -> where it is.
_AS_READ = {
    "system": {
        "kernel": "kernel_release",
        "architecture": "architecture",
        "page_bytes": "page_bytes",
    },
    "limits": {"uid": "euid"},
    "memory": {
        "memory.shm_bytes": "shm_size_bytes",
        "vm.max_map_count": "max_map_count",
        "vm.overcommit_memory": "overcommit",
        "vm.swappiness": "swappiness",
    },
    "hugetlb": {
        "hugetlb.default_page_bytes": "hugetlb.default_page_size_bytes",
        "thp.enabled": "thp_enabled",
        "thp.shmem": "thp_shmem",
    },
    "numa": {"numa.balancing": "balancing"},
    "pci": {},
    "gpus": {"gpu.kernel_module": "kernel_module"},
    "rdma": {"rdma_core": "libraries.version"},
    "software": {},
}
_OF_DEVICE = {name: name for name in ("firmware", "hardware", "driver")}
_OF_DEVICE |= {"pci": "pci_address", "node": "node"}
_OF_RAIL = ("mtu_bytes", "gid_index", "gid_type", "netdev", "netdev_mtu_bytes")
# To be read for it, whatever is checked.
MACHINE_TOPICS = (*_AS_READ, "network")

# None, and what is absent, is no fact: the machine has no such thing.
Pairs = Iterator[tuple[str, Any]]


class LaunchShare(NamedTuple):
    """What a launch adds to its fleet here, and how its stores speak to the others.

    Attributes:
        protocol: Of the stores, sorted and joined (``rdma``, ``rdma tcp``), "" without a store.
        segment_bytes: What all stores add to the cluster's pool.
        stores: How many store clients add it.
        mtu_limit_bytes: MC_MTU as Mooncake takes it, the least of all processes.
        affinity: Which NICs of a peer a NIC talks to: ``same name``, ``listed``
            (MC_NIC_PEER_AFFINITY), ``any``. Both are None without RDMA.
    """

    protocol: str | Unknown
    segment_bytes: int | Unknown
    stores: int | Unknown
    mtu_limit_bytes: int | Unknown | None
    affinity: str | Unknown | None


def machine_object(judged_host: JudgedHost) -> dict[str, Any]:
    """Return the facts to compare with other machines, as JSON that may hold secrets.

    The name is the value of NAME_VARIABLES (only for this host), else the host's name, else the
    capture's file name. Facts that the machine does not have are left out.
    """
    ports = rails(judged_host.facts, judged_host.needs)
    read, boot = (judged_host.host.root.word(path) for path in (HOST_NAME, BOOT_ID))
    file = judged_host.host.name.rstrip("/").rpartition("/")[2].partition(".tar")[0]
    host = file if isinstance(read, Unknown) or not read else read
    named = [os.environ.get(name) for name in NAME_VARIABLES if judged_host.host.name == "/"]
    facts = _facts_to_compare(judged_host.facts, () if isinstance(ports, Unknown) else ports)
    every = {**dict(facts), **dict(_models(judged_host.needs, judged_host.host.root))}
    return {
        "name": next(filter(None, named), host),
        "host": host,
        "boot": "" if isinstance(boot, Unknown) else boot,
        "read_unix_seconds": int(time.time()),
        "facts": {
            name: plain(value)
            for name, value in every.items()
            if not (value is None or (isinstance(value, Unknown) and value.absent))
        },
        "rails": plain(ports),
        "share": plain(_share(judged_host)),
    }


def _facts_to_compare(facts: Facts, ports: Iterable[Rail]) -> Pairs:
    """Yield the name and value of each fact to compare.

    A topic that was not read is one Unknown under the topic's name.

    Args:
        ports: Of all RDMA devices.
    """
    for topic, as_read in _AS_READ.items():
        record = facts.topic(topic)
        if isinstance(record, Unknown):
            yield topic, Unknown(record.reason)
            continue
        for name, place in as_read.items():
            yield name, attrgetter(place)(record)
        if topic in _MADE:
            yield from _MADE[topic](record)
    for rail in ports:
        for field in _OF_RAIL:
            yield f"{rail.device}:{rail.port}.{field}", getattr(rail, field)


def _system(system: Any) -> Pairs:
    """Yield the facts of the system: distribution, container and hypervisor."""
    name, version = system.distribution, system.distribution_version
    both = isinstance(name, str) and isinstance(version, str)
    yield "distribution", f"{name} {version}" if both else name
    runtime, source = system.container
    yield "container", Unknown(source) if runtime == "unknown" else runtime
    yield "hypervisor", "none" if system.hypervisor == "" else system.hypervisor


def _limits(limits: Any) -> Pairs:
    """Yield this process's soft limits, and whether it has CAP_IPC_LOCK."""
    from checks.limits.facts import IPC_LOCK_BIT

    for name in ("memlock", "nofile", "nproc"):
        limit = getattr(limits, name)
        soft = limit if isinstance(limit, Unknown) else limit.soft
        yield f"limit.{name}", UNLIMITED if soft is None else soft
    yield "ipc_lock", limits.effective(IPC_LOCK_BIT)


def _hugetlb(hugetlb: Any) -> Pairs:
    """Yield the huge pages of each size; with several NUMA nodes also those of each node."""
    pools = hugetlb.hugetlb.pools
    if isinstance(pools, Unknown):
        yield "hugetlb", pools
        return
    for size, counts in pools.items():
        name = f"hugetlb.{size // 1024}KiB"
        if isinstance(counts, Unknown):
            yield f"{name}.pages", counts
            continue
        yield f"{name}.pages", counts.total_pages
        yield f"{name}.overcommit_pages", counts.overcommit_pages
        if len(counts.nodes) > 1:
            for number, share in counts.nodes.items():
                yield f"{name}.node{number}.pages", share.total_pages


def _numa(numa: Any) -> Pairs:
    yield "numa.nodes", len(numa.nodes) or 1
    cpus = [numa_node.cpus for numa_node in numa.nodes]
    unread = next((each for each in cpus if isinstance(each, Unknown)), None)
    yield ("numa.cpus", ", ".join(str(len(each)) for each in cpus) if unread is None else unread)


def _pci(pci: Any) -> Pairs:
    accelerators = () if isinstance(pci.accelerators, Unknown) else pci.accelerators
    kinds = [function.iommu for function in (*accelerators, *pci.nics.values())]
    unread = next((mode for mode in kinds if isinstance(mode, Unknown)), None)
    written = " ".join(sorted({mode for mode in kinds if isinstance(mode, str)}))
    yield "iommu", (written or None) if unread is None else unread


def _gpus(gpus: Any) -> Pairs:
    """Yield the facts of all GPUs together; without NVML only count, peer modules and driver."""
    on_pci, peers, nvml = gpus.accelerators, gpus.peer_modules, gpus.nvml
    yield "gpu.count", on_pci if isinstance(on_pci, Unknown) else len(on_pci)
    yield "gpu.peer_modules", peers if isinstance(peers, Unknown) else " ".join(peers)
    if isinstance(nvml, Unknown):
        module = gpus.kernel_module_version
        yield "gpu.driver", nvml if isinstance(module, Unknown) or module else None
        return
    if nvml.error:
        yield "gpu.driver", Unknown(nvml.error)
        return
    yield "gpu.driver", nvml.driver
    if nvml.cuda_version is not None:
        yield "gpu.cuda", f"{nvml.cuda_version // 1000}.{nvml.cuda_version % 1000 // 10}"
    names = [gpu.name or "unnamed" for gpu in nvml.gpus]
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    yield "gpu.names", ", ".join(counted)
    sizes = [gpu.memory_bytes for gpu in nvml.gpus if gpu.memory_bytes is not None]
    yield "gpu.memory_bytes", min(sizes) if sizes else None
    for field in ("mig", "ecc", "compute_mode"):
        values = [getattr(gpu, field) for gpu in nvml.gpus]
        yield f"gpu.{field}", " ".join("-" if value is None else str(value) for value in values)


def _rdma(rdma: Any) -> Pairs:
    """Yield the names of the RDMA devices, then the facts of each device and port."""
    if isinstance(rdma.nics, Unknown):
        yield "rdma.devices", "" if rdma.nics.absent else rdma.nics
    else:
        yield "rdma.devices", " ".join(nic.name for nic in rdma.nics)
    for nic in rdma.present:
        for name, place in _OF_DEVICE.items():
            yield f"{nic.name}.{name}", getattr(nic, place)
        if isinstance(nic.ports, Unknown):
            yield f"{nic.name}.ports", nic.ports
            continue
        for port in nic.ports:
            for field in ("state", "rate", "link_layer"):
                yield f"{nic.name}:{port.number}.{field}", getattr(port, field)
            yield f"{nic.name}:{port.number}.pkey", port.pkeys.get(0)


def _software(software: Any) -> Pairs:
    """Yield the installed wheels of Mooncake, SGLang and torch."""
    engine = software.engine
    if isinstance(engine, Unknown) or engine is None:
        yield "wheel.mooncake", engine
        return
    if engine.mooncake:
        wheels = ", ".join(f"{wheel.name} {wheel.version}" for wheel in engine.mooncake)
        yield "wheel.mooncake", wheels
    for name, wheel in (("sglang", engine.sglang), ("torch", engine.torch)):
        yield f"wheel.{name}", None if wheel is None else wheel.version


_MADE = {
    "system": _system,
    "limits": _limits,
    "memory": lambda memory: iter((("memory.total_bytes", memory.value("MemTotal")),)),
    "hugetlb": _hugetlb,
    "numa": _numa,
    "pci": _pci,
    "gpus": _gpus,
    "rdma": _rdma,
    "software": _software,
}


def _models(needs: LaunchNeeds | None, root: Root) -> Pairs:
    """Yield for each model with an absolute path a hash of its config.json, so that different
    models in one path are seen.

    A file that is missing is "absent", a too large one "present".
    """
    import hashlib

    for storage in needs.storage if needs is not None else ():
        path = storage.path
        if storage.kind not in ("model", "draft") or not isinstance(path, str):
            continue
        name = f"{storage.kind} {path}"
        text: Any = root.text(f"{path.rstrip('/')}/config.json") if path.startswith("/") else None
        if isinstance(text, Unknown):
            yield name, "absent" if text.absent else text
        elif text is not None and len(text) > LARGEST_CONFIG_BYTES:
            yield name, "present"
        elif text is not None:
            yield name, f"config.json {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _share(judged_host: JudgedHost) -> LaunchShare | None:
    """Return the launch's share; None if no launch was given or it could not be read."""
    needs, launch = judged_host.needs, judged_host.launch
    if needs is None or launch is None or isinstance(launch, Unknown):
        return None
    sizing = launch.sizing
    stores = _segment_sizes(sizing)
    return LaunchShare(
        protocol_of(sizing),
        stores if isinstance(stores, Unknown) else sum(stores),
        stores if isinstance(stores, Unknown) else len(stores),
        min((mtu_limit_bytes(each.environment) for each in needs.rdma_processes), default=None),
        affinity_of(needs),
    )


def _segment_sizes(sizing: LaunchSizing) -> list[int] | Unknown:
    """Return the segment of each store client in bytes; clients that add none are left out.

    A segment does not depend on L2, so any known bound of the sizes gives it, else Unknown.
    """
    for bound in (sizing.inputs.most, sizing.inputs.least):
        if not isinstance(bound, Unknown):
            clients = [client for each in bound.launch.processes for client in each.clients]
            return [c.segment_bytes for c in clients if not c.dummy and c.segment_bytes]
    assert isinstance(sizing.inputs.most, Unknown)
    return sizing.inputs.most


@or_unknown
def protocol_of(sizing: LaunchSizing) -> str:
    """Return the protocols of the launch's stores: ``rdma``, ``tcp``, ``rdma tcp``; "" without a
    store.

    Returns:
        Unknown if the protocol of any store is Unknown.
    """
    protocols: set[str] = set()
    for process in sizing.inputs.processes:
        if process.server is not None and process.server.store is not None:
            protocols.add(str(require(process.server.store.value("protocol"))))
        else:
            protocols |= {require(store.client).protocol.value for store in process.stores}
    return " ".join(sorted(protocols))


def mtu_limit_bytes(environment: Mapping[str, str]) -> int:
    """Return MC_MTU as Mooncake takes it; 4096 if it is not set, or no MTU that RDMA has."""
    asked = leading_integer(environment.get("MC_MTU", ""))
    return asked if asked in MTUS_BYTES else DEFAULT_MTU_BYTES


def affinity_of(needs: LaunchNeeds) -> str | None:
    """Name the rule by which a NIC chooses among a peer's NICs, as in LaunchShare: the loosest of
    all processes.

    Returns:
        None without RDMA (config.cpp).
    """
    rules = set()
    for process in needs.rdma_processes:
        same_name = AFFINITY in process.environment
        listed = process.environment.get(PEER_AFFINITY, "").lower() in ("1", "true")
        rules.add("any" if same_name == listed else "same name" if same_name else "listed")
    return next((rule for rule in ("any", "listed", "same name") if rule in rules), None)


# A node of a large cluster has few; a router's full table is no news here.
MOST_ROUTES = 64


class Rail(NamedTuple):
    """One port of an RDMA device, and the address that it speaks from.

    Attributes:
        used: Whether the launch takes this port; None without a launch.
        state, rate, link_layer: The kernel's words.
        mtu_bytes: The active MTU.
        gid_index, gid_type, gid: Those that Mooncake takes, None if it takes none.
        netdev: The interface behind the GID, "" without one.
        addresses: Of that interface, as ``10.0.0.1/24``.
        exits: Networks to which a route leads out of that interface for the GID's address (``ip
            rule``, all tables); None without a GID, and for an InfiniBand port.
    """

    device: str
    port: int
    used: bool | Unknown | None = None
    state: str | Unknown | None = None
    rate: str | Unknown | None = None
    link_layer: str | Unknown | None = None
    mtu_bytes: int | Unknown | None = None
    gid_index: int | Unknown | None = None
    gid_type: str | Unknown | None = None
    gid: str | Unknown | None = None
    netdev: str | Unknown | None = ""
    netdev_mtu_bytes: int | Unknown | None = None
    addresses: tuple[str, ...] | Unknown = ()
    exits: tuple[str, ...] | Unknown | None = None

    @property
    def known_addresses(self) -> tuple[str, ...]:
        return () if isinstance(self.addresses, Unknown) else self.addresses


def rails(facts: Facts, needs: LaunchNeeds | None) -> tuple[Rail, ...] | Unknown:
    """Return the known ports of all RDMA devices; () without a device, Unknown if not read."""
    rdma = facts.topic("rdma")
    if isinstance(rdma, Unknown):
        return rdma
    if isinstance(rdma.nics, Unknown):
        return () if rdma.nics.absent else rdma.nics
    network = facts.topic("network")
    routing = network if isinstance(network, Unknown) else network.routing
    return tuple(with_exits(rail, routing) for rail in _rails(rdma, needs))


def with_exits(rail: Rail, routing: RoutingTables | Unknown) -> Rail:
    """Return the rail with ``exits``: the networks to which its interface has a route from the
    GID's address, MOST_ROUTES at most.

    Link-local and multicast networks are left out.

    Returns:
        Unknown if the routes were not read; unchanged without a GID or an Ethernet interface.
    """
    named = isinstance(rail.netdev, str) and rail.netdev and rail.link_layer == "Ethernet"
    if not isinstance(rail.gid, str) or not isinstance(rail.netdev, str) or not named:
        return rail
    if isinstance(routing, Unknown):
        return rail._replace(exits=Unknown(routing.reason))
    address = ipaddress.ip_address(rail.gid)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    networks = exits(routing, str(mapped or address), rail.netdev)
    if not isinstance(networks, Unknown):
        kept = [network for network in networks if not network.startswith(("fe80:", "ff"))]
        networks = tuple(kept[:MOST_ROUTES])
    return rail._replace(exits=networks)


def _rails(rdma: RdmaFacts, needs: LaunchNeeds | None) -> Iterator[Rail]:
    """Yield the Rail of each known port; ``used`` says whether the launch takes the port."""
    taken: dict[tuple[str, int], Use] = {}
    doubt: Unknown | None = None
    launch_uses = [] if needs is None else uses(rdma, needs)
    for use in launch_uses:
        if isinstance(use.devices.names, Unknown):
            doubt = use.devices.names
        else:
            for name in use.devices.names:
                taken.setdefault((name, port_of(use.environment)), use)
    release = None if needs is None else release_of(needs.mooncake_version)
    for nic in rdma.present:
        for port in () if isinstance(nic.ports, Unknown) else nic.ports:
            use_of = taken.get((nic.name, port.number))
            takes: bool | Unknown | None = None
            if needs is not None:
                takes = doubt if use_of is None and doubt is not None else use_of is not None
            environment = (use_of or launch_uses[0]).environment if launch_uses else {}
            yield _rail(rdma, nic, port, environment, release, takes)


def _rail(
    rdma: RdmaFacts,
    nic: Nic,
    port: Port,
    environment: Mapping[str, str],
    release: MooncakeRelease | None,
    used: bool | Unknown | None,
) -> Rail:
    """Describe one port as a process with this environment uses it.

    Args:
        release: Of Mooncake, None without a launch.
        used: Whether the launch takes the port; None without a launch.
    """
    choice = choose_gid(port, environment, release)
    gid = choice if isinstance(choice, Unknown) else choice.gid
    mtu: int | Unknown | None = Unknown("libibverbs says nothing of it")
    if isinstance(nic.verbs.ports, Unknown):
        mtu = nic.verbs.ports
    elif port.number in nic.verbs.ports:
        mtu = nic.verbs.ports[port.number].active_mtu_bytes
    rail = Rail(nic.name, port.number, used, port.state, port.rate, port.link_layer, mtu)
    if gid is None:
        return rail
    if isinstance(gid, Unknown):
        return rail._replace(gid_index=gid, gid_type=gid, gid=gid, netdev=gid)
    rail = rail._replace(gid_index=gid.number, gid_type=gid.kind, gid=gid.text, netdev=gid.netdev)
    interface = rdma.netdevs.get(gid.netdev) if isinstance(gid.netdev, str) else None
    if interface is None:
        return rail
    addresses = interface.addresses
    texts = addresses if isinstance(addresses, Unknown) else tuple(f"{a}/{n}" for a, n in addresses)
    return rail._replace(netdev_mtu_bytes=interface.mtu_bytes, addresses=texts)
