"""The NUMA node of each RDMA device and of each NVIDIA GPU, from files alone."""

from __future__ import annotations

from typing import TypeVar

from checks.framework.root import Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require

T = TypeVar("T")
RDMA_DEVICES = "/sys/class/infiniband"
PCI_DEVICES = "/sys/bus/pci/devices"
GPUS = "/proc/driver/nvidia/gpus"
# PCI class codes: 0x0300 VGA controller, 0x0302 3D controller (pci.ids).
DISPLAY_CLASSES = ("0x0300", "0x0302")
NVIDIA = "0x10de"


@or_unknown
def device_numa_nodes(root: Root) -> dict[str, int | None] | Unknown:
    """Return the NUMA node of every RDMA device; None for those that name none, as soft-RoCE."""
    return {name: require(device_numa_node(root, name)) for name in require(device_names(root))}


def device_names(root: Root) -> tuple[str, ...] | Unknown:
    """Return the names of all RDMA devices; () if the kernel has none."""
    return root.entries(RDMA_DEVICES)


def device_numa_node(root: Root, name: str) -> int | Unknown | None:
    """Return an RDMA device's NUMA node as Mooncake reads it (topology.cpp); None without one."""
    number = root.integer(f"{RDMA_DEVICES}/{name}/device/numa_node")
    return None if isinstance(number, int) and number < 0 else none_if_absent(number, None)


def driver_gpus(root: Root) -> frozenset[str]:
    """Return the addresses of the GPUs that NVIDIA's driver has, whatever else shows them."""
    return frozenset(map(str.lower, root.listed(GPUS)))


def pci_addresses(root: Root) -> tuple[str, ...] | Unknown:
    """Return the address of every PCI function and of the driver's GPUs, in PCI order.

    If sysfs cannot be read, the driver's GPUs alone; Unknown if the driver has none either.
    """
    addresses, driven = root.entries(PCI_DEVICES), driver_gpus(root)
    if isinstance(addresses, Unknown):
        return tuple(sorted(driven)) or addresses
    return tuple(sorted({*addresses, *driven}))


@or_unknown
def gpu_numa_nodes(root: Root) -> tuple[int | None, ...] | Unknown:
    """Return the NUMA node of each NVIDIA GPU, in PCI order; None for a GPU without a node.

    Returns:
        Unknown if a PCI device cannot be read.
    """
    nodes: list[int | None] = []
    driven = driver_gpus(root)
    for address in require(pci_addresses(root)):
        folder = f"{PCI_DEVICES}/{address}"
        vendor, code = (_if_exists(root.word(f"{folder}/{name}")) for name in ("vendor", "class"))
        shown = vendor == NVIDIA and code is not None and code[:6] in DISPLAY_CLASSES
        if shown or address in driven:
            number = _if_exists(root.integer(f"{folder}/numa_node"))
            nodes.append(number if number is not None and number >= 0 else None)
    return tuple(nodes)


def _if_exists(fact: T | Unknown) -> T | None:
    """Return a file's content, None if there is no file.

    Raises UnknownFactError else.
    """
    return require(none_if_absent(fact, None))
