"""PCI facts: accelerators, RDMA NICs and the bridges above them; links, IOMMU, ACS, distances."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from itertools import takewhile
from typing import NamedTuple

from checks.framework.device_nodes import (
    NVIDIA,
    PCI_DEVICES,
    RDMA_DEVICES,
    driver_gpus,
    pci_addresses,
)
from checks.framework.needs import LaunchNeeds
from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require
from checks.numa.nodes import numa_nodes

# PCI Express Base Specification: extended capabilities begin at 0x100; each starts with 16 bits of
# id, 4 of version and 12 of the next one's offset. ACS is id 0x000D, its control register at +6.
EXTENDED_START = 0x100
ACS = 0x000D
ACS_CONTROL = 6
# Each takes at least 8 bytes of the 4096, so a longer list runs in a circle.
MOST_CAPABILITIES = (4096 - EXTENDED_START) // 8


def acs(address: str) -> int | None:
    """Return the ACS control register of a function; None if it has no ACS.

    Raises:
        PermissionError: If this user is not root.
    """
    import os

    file = os.open(f"/sys/bus/pci/devices/{address}/config", os.O_RDONLY | os.O_CLOEXEC)
    try:
        # A conventional function has 256 bytes, as the file's size says, and no ACS.
        if os.fstat(file).st_size <= EXTENDED_START:
            return None
        # Few short reads: each goes to the device and takes its time.
        return acs_control(lambda offset, length: os.pread(file, length, offset))
    finally:
        os.close(file)


def acs_control(read: Callable[[int, int], bytes]) -> int | None:
    """Return the ACS control register in a configuration space; None if the function has no ACS.

    Args:
        read: Gives the bytes at (offset, length).

    Raises:
        PermissionError: If it gives too few bytes.
    """
    offset = EXTENDED_START
    for _ in range(MOST_CAPABILITIES):
        header = read(offset, 4)
        if len(header) < 4:
            raise PermissionError(1, "only root may read the extended configuration space")
        value = int.from_bytes(header, "little")
        if value in (0, 0xFFFFFFFF):
            return None
        if value & 0xFFFF == ACS:
            return int.from_bytes(read(offset + ACS_CONTROL, 2), "little")
        offset = value >> 20 & 0xFFC
        if offset < EXTENDED_START:
            return None
    return None


# pci.ids: base class 03 is display (VGA 00, 3D 02, other 80), 12 is processing accelerators.
ACCELERATOR_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
# Makers of accelerators, by PCI vendor id (pci.ids). A server's own VGA (ASPEED, Matrox) is none.
ACCELERATOR_VENDORS = {
    "0x10de": "NVIDIA",
    "0x1002": "AMD",
    "0x8086": "Intel",
    "0x19e5": "Huawei",
    "0x1ed5": "Moore Threads",
    "0x1da3": "Habana",
    "0x1d94": "Hygon",
    "0x1e36": "Enflame",
    "0x1d22": "Kunlunxin",
    "0x9999": "MetaX",
    "0xcabc": "Cambricon",
}
# The DMA function of a ConnectX-8 through which a "Direct NIC" reaches its GPU; such a platform
# needs ACS on (rdma-core kernel-boot/rdma_topo).
DIRECT_NIC_FUNCTION = ("0x15b3", "0x2100")
ADDRESS = regex(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Link(NamedTuple):
    """A PCIe link: lanes, and speed as the kernel writes it ("32.0 GT/s PCIe")."""

    width: int | Unknown
    max_width: int | Unknown
    speed: str | Unknown
    max_speed: str | Unknown


class PciFunction(NamedTuple):
    """A PCI function."""

    address: str
    vendor: str | Unknown
    device: str | Unknown
    kind: str | Unknown  # class code ("0x030200")
    node: int | Unknown | None  # None if the kernel says -1, as many virtual machines do
    driver: str | Unknown
    parents: tuple[str, ...]  # from the host bridge (``pci0000:40``) down to the bridge above it
    link: Link
    iommu: str | Unknown  # the type of its IOMMU group ("identity", "DMA"), "none" without a group


class PathClass(IntEnum):
    """How far two PCI functions are from each other; smaller is nearer."""

    PIX = 0  # at most one PCIe switch between them
    PXB = 1  # several PCIe switches, no host bridge
    PHB = 2  # one host bridge, typically the CPU's
    NODE = 3  # several host bridges of one NUMA node
    SYS = 4  # the interconnect between NUMA nodes


class PciFacts(NamedTuple):
    """The accelerators and RDMA NICs on PCI, and how they sit to each other."""

    accelerators: tuple[PciFunction, ...] | Unknown  # in PCI order, () on a host without PCI
    nics: Mapping[str, PciFunction]  # RDMA device name -> function
    bridges: Mapping[str, PciFunction]  # those above these devices, by address
    acs: Mapping[str, int | Unknown | None]  # control register, by bridge between GPU and NIC
    paths: Mapping[tuple[str, str], PathClass | Unknown]  # by accelerator's address and NIC's name
    iommus: tuple[str, ...] | Unknown  # names in /sys/class/iommu ("dmar0", "ivhd0")
    command_line: str | Unknown
    direct_nic: bool  # whether the platform has Direct NIC functions


def read_pci(root: Root, needs: LaunchNeeds | None) -> PciFacts:
    """Read the facts of PCI; never raises.

    Soft-RoCE has no PCI function, and is left out.
    """
    one_node = len(numa_nodes(root)) <= 1
    functions = read_accelerators(root)
    accelerators = () if isinstance(functions, Unknown) else functions
    nics = _nics(root)
    bridges = {
        address: read_function(root, address)
        for function in (*accelerators, *nics.values())
        for address in function.parents[1:]
    }
    paths: dict[tuple[str, str], PathClass | Unknown] = {}
    acs: dict[str, int | Unknown | None] = {}
    for accelerator in accelerators:
        for name, nic in nics.items():
            ends = (accelerator, nic)
            if one_node:  # that is the node of both, named or not
                ends = (accelerator._replace(node=0), nic._replace(node=0))
            paths[accelerator.address, name] = path_class(*ends)
            for bridge in bridges_between(accelerator, nic):
                if bridge not in acs:
                    acs[bridge] = _acs(root, bridge)
    return PciFacts(
        functions,
        nics,
        bridges,
        acs,
        paths,
        root.entries("/sys/class/iommu"),
        root.word("/proc/cmdline"),
        _direct_nic(root, nics),
    )


@or_unknown
def read_accelerators(root: Root) -> tuple[PciFunction, ...] | Unknown:
    """Read every GPU or other accelerator, in PCI order; () without PCI and NVIDIA's driver."""
    driven = driver_gpus(root)
    functions = []
    for address in require(pci_addresses(root)):
        if address in driven:
            functions.append(read_function(root, address)._replace(vendor=NVIDIA))
        elif ADDRESS.fullmatch(address) and _is_accelerator(root, address):
            functions.append(read_function(root, address))
    return tuple(functions)


def _is_accelerator(root: Root, address: str) -> bool:
    """Tell whether a PCI function is a known maker's accelerator, and no part of the processor."""
    code, vendor = (root.word(f"{PCI_DEVICES}/{address}/{name}") for name in ("class", "vendor"))
    if isinstance(code, Unknown) or code[:6] not in ACCELERATOR_CLASSES:
        return False
    # Intel's graphics on bus 0 is part of the processor.
    inside = vendor == "0x8086" and address[-7:-5] == "00"
    return isinstance(vendor, str) and vendor in ACCELERATOR_VENDORS and not inside


def read_function(root: Root, address: str) -> PciFunction:
    """Read one function's facts, by its address."""
    folder = f"{PCI_DEVICES}/{address}"
    numa_node = root.integer(f"{folder}/numa_node")
    driver = none_if_absent(root.link(f"{folder}/driver"), "")
    vendor, device, code = (root.word(f"{folder}/{part}") for part in ("vendor", "device", "class"))
    width, most = (_lanes(root, f"{folder}/{which}_link_width") for which in ("current", "max"))
    speed, top = (root.word(f"{folder}/{which}_link_speed") for which in ("current", "max"))
    return PciFunction(
        address,
        vendor,
        device,
        code,
        numa_node if isinstance(numa_node, Unknown) or numa_node >= 0 else None,
        driver if isinstance(driver, Unknown) else driver.rpartition("/")[2],
        _parents(root, folder),
        Link(width, most, speed, top),
        _iommu(root, folder),
    )


def _parents(root: Root, folder: str) -> tuple[str, ...]:
    """Return the host bridge and the bridges above a function; () if the tree shows none."""
    path = root.link(folder)
    if isinstance(path, Unknown):
        return ()
    parts = path.split("/")[:-1]
    for index, part in enumerate(parts):
        if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part):
            return (part, *(name for name in parts[index + 1 :] if ADDRESS.fullmatch(name)))
    return ()


def _lanes(root: Root, name: str) -> int | Unknown:
    """Read a link's width in lanes; an absent Unknown for a function without a link (0 or 255)."""
    width = root.integer(name)
    if isinstance(width, int) and not 1 <= width <= 32:
        return Unknown(f"{name}: {width}, so it has no link of its own", absent=True)
    return width


def _iommu(root: Root, folder: str) -> str | Unknown:
    group = root.link(f"{folder}/iommu_group")
    if isinstance(group, Unknown):
        return none_if_absent(group, "none")
    return root.word(f"/sys/kernel/iommu_groups/{group.rpartition('/')[2]}/type")


def _nics(root: Root) -> dict[str, PciFunction]:
    """Read the PCI function of each RDMA device that has one, by the device's name."""
    nics = {}
    for name in root.listed(RDMA_DEVICES):
        path = root.link(f"{RDMA_DEVICES}/{name}/device")
        address = "" if isinstance(path, Unknown) else path.rpartition("/")[2]
        if ADDRESS.fullmatch(address):
            nics[name] = read_function(root, address)
    return nics


def _acs(root: Root, address: str) -> int | Unknown | None:
    control = root.call("pci.acs", address)
    if control is None or isinstance(control, Unknown) or type(control) is int:
        return control
    return Unknown(f"pci.acs {address}: not a register: {str(control)[:40]}")


def _direct_nic(root: Root, nics: Mapping[str, PciFunction]) -> bool:
    """Tell whether Direct NIC functions exist, which only ConnectX-8 and newer have."""
    vendor, device = DIRECT_NIC_FUNCTION
    return any(nic.vendor == vendor for nic in nics.values()) and any(
        root.word(f"{PCI_DEVICES}/{address}/device") == device
        and root.word(f"{PCI_DEVICES}/{address}/vendor") == vendor
        for address in root.listed(PCI_DEVICES)
    )


def path_class(function: PciFunction, other: PciFunction) -> PathClass | Unknown:
    """Return how far two functions are from each other, in the classes of ``nvidia-smi topo``.

    Returns:
        Unknown if sysfs shows no bridge above one, or no NUMA node if the two share no bridge.
    """
    if not function.parents or not other.parents:
        missing = function if not function.parents else other
        return Unknown(f"{missing.address}: sysfs shows no host bridge above it")
    shared = count_shared(function.parents, other.parents)
    if shared == 0:
        for end in (function, other):
            if not isinstance(end.node, int):
                return Unknown(f"{end.address}: its NUMA node is not known")
        return PathClass.NODE if function.node == other.node else PathClass.SYS
    if shared == 1:
        # Two functions of the root complex itself, or below two of its ports. Those of one device
        # need no bridge at all.
        slots = {(end.parents, end.address.rpartition(".")[0]) for end in (function, other)}
        return PathClass.PIX if len(slots) == 1 else PathClass.PHB
    # Below the bridge that both share, one more on either side is the port of the same switch.
    below = max(len(function.parents), len(other.parents)) - shared
    return PathClass.PIX if below <= 1 else PathClass.PXB


def count_shared(first: Sequence[str], second: Sequence[str]) -> int:
    """Count the equal items that both begin with: bridges above, letters of a path."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def bridges_between(function: PciFunction, other: PciFunction) -> tuple[str, ...]:
    """Return the bridges at which ACS could turn a transfer up: those below a shared switch."""
    shared = count_shared(function.parents, other.parents)
    if shared < 2:
        return ()
    return (*function.parents[shared:], *other.parents[shared:])
