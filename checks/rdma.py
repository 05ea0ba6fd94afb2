"""RDMA devices of the host and the NUMA nodes that they sit on, from sysfs."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from checks.root import Root
from checks.unknown import Unknown

DEVICES = "/sys/class/infiniband"


class RdmaDevice(NamedTuple):
    """One device; ``node`` is None where its PCI function names none (soft-RoCE, some VMs)."""

    name: str
    node: int | None


def read_rdma_devices(root: Root) -> tuple[RdmaDevice, ...] | Unknown:
    """Every RDMA device; empty where the kernel has none, which is a fact and no error."""
    names = root.names(DEVICES)
    if isinstance(names, Unknown):
        return () if names.absent else names
    devices = []
    for name in names:
        # Mooncake reads numa_node in realpath(/sys/class/infiniband/<device>/../..): the folder
        # that the link "device" names. Soft-RoCE has neither.
        node = root.integer(f"{DEVICES}/{name}/device/numa_node")
        if isinstance(node, Unknown) and not node.absent:
            return node
        devices.append(RdmaDevice(name, None if isinstance(node, Unknown) or node < 0 else node))
    return tuple(devices)


def nic_nodes(devices: Collection[RdmaDevice]) -> tuple[int, ...]:
    """The NUMA nodes that ``devices`` sit on, ascending, each once."""
    return tuple(sorted({device.node for device in devices if device.node is not None}))
