"""How far two PCI functions are from each other, in the words of ``nvidia-smi topo``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from checks.base.unknown import Unknown


class PathClass(IntEnum):
    """The nearer, the smaller."""

    PIX = 0  # at most one PCIe switch between them
    PXB = 1  # several PCIe switches, no host bridge
    PHB = 2  # one host bridge, typically the CPU's
    NODE = 3  # several host bridges of one NUMA node
    SYS = 4  # the interconnect between NUMA nodes


class Place(NamedTuple):
    """Where a function is attached.

    parents: from the host bridge (``pci0000:40``) down to the bridge above it, as sysfs nests
    them. node: its NUMA node, None where the firmware names none.
    """

    address: str
    parents: tuple[str, ...]
    node: int | None


def path_class(one: Place, other: Place) -> PathClass | Unknown:
    """Symmetric. Unknown where the host bridges differ and a NUMA node is not known."""
    if not one.parents or not other.parents:
        missing = one if not one.parents else other
        return Unknown(f"{missing.address}: sysfs shows no host bridge above it")
    shared = shared_parents(one.parents, other.parents)
    if shared == 0:
        if one.node is None or other.node is None:
            missing = one if one.node is None else other
            return Unknown(f"{missing.address}: its NUMA node is not known")
        return PathClass.NODE if one.node == other.node else PathClass.SYS
    if shared == 1:
        # Two functions of the root complex itself, or below two of its ports. Those of one device
        # need no bridge at all.
        same = _device(one) == _device(other)
        return PathClass.PIX if same else PathClass.PHB
    # Below the bridge that both share, one more on either side is the port of the same switch.
    below = max(len(one.parents), len(other.parents)) - shared
    return PathClass.PIX if below <= 1 else PathClass.PXB


def shared_parents(one: Sequence[str], other: Sequence[str]) -> int:
    """How many parents from the host bridge down are the same."""
    count = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        count += 1
    return count


def bridges_between(one: Place, other: Place) -> tuple[str, ...]:
    """The bridges at which a transfer between them could be turned towards the root complex.

    Those below the switch that both share, which is where ACS redirection acts; () where the path
    leads through the root complex anyway.
    """
    shared = shared_parents(one.parents, other.parents)
    if shared < 2:
        return ()
    return (*one.parents[shared:], *other.parents[shared:])


def _device(place: Place) -> tuple[tuple[str, ...], str]:
    return place.parents, place.address.rpartition(".")[0]
