"""Nodes, GPUs and NICs of one host, and how far they are from each other: what is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from checks.base.unknown import Unknown


class Device(NamedTuple):
    """A GPU or an RDMA device.

    kind: gpu or nic. name: ``GPU0`` or ``mlx5_0``. address: PCI, "" for a device without one.
    node: its NUMA node, None where the firmware names none. what: model and, of a NIC, its ports
    (``NVIDIA H20``, ``mlx5 400 Gb/s ACTIVE``). used_by: processes of the launch, () without one.
    """

    kind: str
    name: str
    address: str
    node: int | None
    what: str
    used_by: tuple[str, ...] = ()


class Node(NamedTuple):
    """A NUMA node. cpus: as the kernel lists them. memory_bytes: MemTotal."""

    node: int
    cpus: str
    memory_bytes: int | Unknown


class Topology(NamedTuple):
    """paths: (GPU name, NIC name) -> PIX, PXB, PHB, NODE, SYS, or Unknown."""

    nodes: tuple[Node, ...]
    gpus: tuple[Device, ...]
    nics: tuple[Device, ...]
    paths: Mapping[tuple[str, str], str | Unknown]
