"""Makes the drawing's records of facts and, with a launch, of who uses what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from checks.base.fold import ranges
from checks.base.needs import LaunchNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.gpu.facts import NvmlGpu
from checks.gpu.hardware_use import gpu_function, nics_of, physical_gpus
from checks.numa.facts import NumaNode
from checks.pci.facts import ACCELERATOR_VENDORS, PathClass, PciFunction
from checks.rdma.devices import Port
from checks.rdma.facts import Nic
from checks.run.facts import Facts


def topology_of(facts: Facts, needs: LaunchNeeds | None) -> Topology:
    """Return the topology. Never raises for unknown facts; a list that could not be read is
    empty.

    GPUs are numbered as NVML does, which is in PCI order; those that this process may not use
    are left out, if that is known.
    """
    usable = physical_gpus(facts.gpus)
    everything = tuple(gpu.address for gpu in facts.gpus.on_pci)
    addresses = everything if isinstance(usable, Unknown) else usable
    users = _gpu_users(facts, needs)
    placed = enumerate(addresses)
    gpus = tuple(_gpu(facts, index, address, users.get(address, ())) for index, address in placed)
    on_nic = _nic_users(facts, needs)
    present = sorted(facts.rdma.present, key=lambda nic: natural(nic.name))
    nics = tuple(_nic(facts, nic, on_nic.get(nic.name, ())) for nic in present)
    pairs = [(gpu, nic) for gpu in gpus for nic in nics]
    paths = {(gpu.name, nic.name): _path(facts, gpu.address, nic.name) for gpu, nic in pairs}
    return Topology(tuple(_node(node) for node in facts.numa.nodes), gpus, nics, paths)


def _node(node: NumaNode) -> TopologyNode:
    cpus = node.cpus if isinstance(node.cpus, Unknown) else ranges(node.cpus)
    return TopologyNode(node.node, cpus, node.total_bytes)


def natural(name: str) -> tuple[str, int]:
    """Return a key that sorts ``mlx5_10`` behind ``mlx5_9``."""
    match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL | re.ASCII)
    return (match[1], int(match[2])) if match else (name, -1)


def _gpu(facts: Facts, index: int, address: str, users: tuple[str, ...]) -> TopologyDevice:
    """Return one GPU as it is drawn."""
    function = next((each for each in facts.gpus.on_pci if each.address == address), None)
    seen = () if isinstance(facts.gpus.nvml, Unknown) else facts.gpus.nvml.gpus
    nvml = next((gpu for gpu in seen if gpu.address == address), None)
    hidden = Unknown(f"{address}: is not among the devices on PCI")
    node = hidden if function is None else function.node
    known = address if ":" in address else ""
    name, model = f"GPU{index}", _model(function, nvml)
    return TopologyDevice("gpu", name, known, _int(node), model, users, False, _unread(node))


def _model(function: PciFunction | None, nvml: NvmlGpu | None) -> str:
    """Name the model of a GPU or accelerator."""
    if nvml is not None and nvml.name:
        size = f" {format_bytes(nvml.memory_bytes)}" if nvml.memory_bytes else ""
        return nvml.name + size
    if function is None or isinstance(function.vendor, Unknown):
        return "not known"
    device = "" if isinstance(function.device, Unknown) else f" {function.device}"
    return ACCELERATOR_VENDORS.get(function.vendor, function.vendor) + device


def _nic(facts: Facts, nic: Nic, users: tuple[str, ...]) -> TopologyDevice:
    """Return one NIC as it is drawn."""
    function = facts.pci.nics.get(nic.name)
    address = "" if function is None else function.address
    ports = () if isinstance(nic.ports, Unknown) else nic.ports
    active = any(isinstance(port.state, str) and "ACTIVE" in port.state for port in ports)
    node, text = nic.node, _kind(nic)
    return TopologyDevice("nic", nic.name, address, _int(node), text, users, active, _unread(node))


def _int(node: int | Unknown | None) -> int | None:
    return None if isinstance(node, Unknown) else node


def _unread(node: int | Unknown | None) -> Unknown | None:
    return node if isinstance(node, Unknown) else None


def _kind(nic: Nic) -> str:
    """Return ``mlx5 400 Gb/s ACTIVE``; of several ports each."""
    names = [word for word in (nic.provider, nic.driver) if isinstance(word, str) and word]
    if isinstance(nic.ports, Unknown):
        return " ".join((*names[:1], "ports not known"))
    ports = [_port(port) for port in nic.ports]
    if len(set(ports)) == 1 and len(ports) > 1:
        ports = [f"{len(ports)} ports {ports[0]}"]
    return " ".join((*names[:1], ", ".join(ports) or "no port"))


def _port(port: Port) -> str:
    rate = "" if isinstance(port.rate, Unknown) else port.rate.partition(" (")[0]
    state = "state not known" if isinstance(port.state, Unknown) else port.state
    return " ".join(filter(None, (rate.replace("Gb/sec", "Gb/s"), state)))


def _gpu_users(facts: Facts, needs: LaunchNeeds | None) -> dict[str, tuple[str, ...]]:
    """Map the address of each GPU to the processes that use it."""
    users: dict[str, tuple[str, ...]] = {}
    for process in () if needs is None else needs.processes:
        if process.gpu is None:
            continue
        function = gpu_function(facts.gpus, process)
        if function is not None and not isinstance(function, Unknown):
            users[function.address] = (*users.get(function.address, ()), process.name)
    return users


def _nic_users(facts: Facts, needs: LaunchNeeds | None) -> dict[str, tuple[str, ...]]:
    """Map each NIC to the processes that use it."""
    users: dict[str, tuple[str, ...]] = {}
    for process in () if needs is None else needs.rdma_processes:
        names = nics_of(facts.rdma, needs, process) if needs is not None else ()
        for name in () if isinstance(names, Unknown) else names:
            users[name] = (*users.get(name, ()), process.name)
    return users


def _path(facts: Facts, address: str, nic: str) -> str | Unknown:
    """Return the PCI path between a GPU and a NIC."""
    path = facts.pci.paths.get((address, nic))
    if isinstance(path, PathClass):
        return path.name
    if path is None:
        name = address if nic in facts.pci.nics else nic
        return Unknown(f"{name}: is no PCI device here", absent=True)
    return path


class TopologyDevice(NamedTuple):
    """A GPU or an RDMA device.

    kind: gpu or nic. name: ``GPU0`` or ``mlx5_0``. address: PCI, "" for a device without one.
    node: its NUMA node, None if the firmware names none. what: model and, of a NIC, its ports
    (``NVIDIA H20``, ``mlx5 400 Gb/s ACTIVE``). used_by: processes of the launch, () without one.
    active: of a NIC, whether a port of it is. unread: why ``node`` could not be read.
    """

    kind: str
    name: str
    address: str
    node: int | None
    what: str
    used_by: tuple[str, ...] = ()
    active: bool = False
    unread: Unknown | None = None


class TopologyNode(NamedTuple):
    """A NUMA node. cpus: as the kernel lists them. memory_bytes: MemTotal."""

    node: int
    cpus: str | Unknown
    memory_bytes: int | Unknown


class Topology(NamedTuple):
    """paths: (GPU name, NIC name) -> PIX, PXB, PHB, NODE, SYS, or Unknown."""

    nodes: tuple[TopologyNode, ...]
    gpus: tuple[TopologyDevice, ...]
    nics: tuple[TopologyDevice, ...]
    paths: Mapping[tuple[str, str], str | Unknown]
