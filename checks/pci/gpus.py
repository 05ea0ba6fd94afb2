"""NVIDIA GPUs on the PCI bus and the NUMA nodes that they sit on, from sysfs alone."""

from __future__ import annotations

from checks.base.root import Root
from checks.base.unknown import Unknown

PCI_DEVICES = "/sys/bus/pci/devices"
NVIDIA = "0x10de"
# PCI class codes: 0x0300 VGA controller, 0x0302 3D controller (pci.ids).
DISPLAY_CLASSES = ("0x0300", "0x0302")


def gpu_nodes(root: Root) -> tuple[int | None, ...] | Unknown:
    """The NUMA node of each GPU in PCI order, which is NVML's order; None where it names none."""
    addresses = root.names(PCI_DEVICES)
    if isinstance(addresses, Unknown):
        return () if addresses.absent else addresses
    nodes: list[int | None] = []
    for address in addresses:
        folder = f"{PCI_DEVICES}/{address}"
        vendor, kind = (root.word(f"{folder}/{name}") for name in ("vendor", "class"))
        for fact in (vendor, kind):
            if isinstance(fact, Unknown) and not fact.absent:
                return fact  # it may be a GPU, and then the others' order is another
        if vendor != NVIDIA or isinstance(kind, Unknown) or kind[:6] not in DISPLAY_CLASSES:
            continue
        node = root.integer(f"{folder}/numa_node")
        if isinstance(node, Unknown) and not node.absent:
            return node
        nodes.append(None if isinstance(node, Unknown) or node < 0 else node)
    return tuple(nodes)
