"""RDMA devices of the host and the NUMA nodes that they sit on, from sysfs."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown

DEVICES = "/sys/class/infiniband"


class RdmaDevice(NamedTuple):
    """One device; ``node`` is None where its PCI function names none (soft-RoCE, some VMs)."""

    name: str
    node: int | None


@or_unknown
def read_rdma_devices(root: Root) -> tuple[RdmaDevice, ...] | Unknown:
    """Every RDMA device; empty where the kernel has none, which is a fact and no error."""
    names = known(device_names(root))
    devices = []
    for name in names:
        node = known(device_node(root, name))
        devices.append(RdmaDevice(name, node))
    return tuple(devices)


def device_names(root: Root) -> tuple[str, ...] | Unknown:
    """The names of all RDMA devices; empty where the kernel has none."""
    names = root.names(DEVICES)
    return () if isinstance(names, Unknown) and names.absent else names


def device_node(root: Root, name: str) -> int | Unknown | None:
    """The node that Mooncake takes a device to sit on; None where it finds none.

    It reads numa_node in realpath(/sys/class/infiniband/<device>/../..): the folder that the link
    "device" names. Soft-RoCE has neither. Source: Mooncake topology.cpp, listInfiniBandDevices.
    """
    node = root.integer(f"{DEVICES}/{name}/device/numa_node")
    if isinstance(node, Unknown):
        return None if node.absent else node
    return None if node < 0 else node


def nic_nodes(devices: Collection[RdmaDevice]) -> tuple[int, ...]:
    """The NUMA nodes that ``devices`` sit on, ascending, each once."""
    return tuple(sorted({device.node for device in devices if device.node is not None}))
