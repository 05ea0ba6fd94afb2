"""PCI facts: accelerators, RDMA NICs and the bridges above them; links, IOMMU, ACS, distances."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.numa.nodes import numa_nodes
from checks.pci.gpus import PCI_DEVICES
from checks.pci.paths import PathClass, Place, bridges_between, path_class
from checks.rdma.devices import DEVICES as RDMA_DEVICES

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
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Link(NamedTuple):
    """A PCIe link: lanes, and speed as the kernel writes it ("32.0 GT/s PCIe")."""

    width: int | Unknown
    max_width: int | Unknown
    speed: str | Unknown
    max_speed: str | Unknown


class Function(NamedTuple):
    """A PCI function.

    kind: class code ("0x030200"). node: None where the kernel says -1, as firmware without
    affinity and many virtual machines do. parents: see ``Place``. iommu: the type of its IOMMU
    group's domain ("identity", "DMA", "DMA-FQ"), "none" without a group.
    """

    address: str
    vendor: str | Unknown
    device: str | Unknown
    kind: str | Unknown
    node: int | Unknown | None
    driver: str | Unknown
    parents: tuple[str, ...]
    link: Link
    iommu: str | Unknown

    @property
    def place(self) -> Place:
        return Place(
            self.address, self.parents, None if isinstance(self.node, Unknown) else self.node
        )


class PciFacts(NamedTuple):
    """accelerators: in PCI order, () on a host without PCI. nics: RDMA device name -> function.

    bridges: those above either, by address. acs: bridge -> control register, None without ACS;
    only for bridges below a switch that an accelerator and a NIC share. paths: (accelerator's
    address, RDMA device) -> distance. iommus: the names in /sys/class/iommu ("dmar0", "ivhd0",
    "smmu3.0x..."). direct_nic: whether the platform has Direct NIC functions.
    """

    accelerators: tuple[Function, ...] | Unknown
    nics: Mapping[str, Function]
    bridges: Mapping[str, Function]
    acs: Mapping[str, int | Unknown | None]
    paths: Mapping[tuple[str, str], PathClass | Unknown]
    iommus: tuple[str, ...] | Unknown
    command_line: str | Unknown
    direct_nic: bool


def read_pci(root: Root, needs: LaunchNeeds | None) -> PciFacts:
    """Never raises. What has no PCI function (soft-RoCE) is in no list here."""
    one_node = len(numa_nodes(root)) <= 1
    found = read_accelerators(root)
    accelerators = () if isinstance(found, Unknown) else found
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
            one, other = _at(accelerator, one_node), _at(nic, one_node)
            paths[accelerator.address, name] = path_class(one, other)
            for bridge in bridges_between(one, other):
                if bridge not in acs:
                    acs[bridge] = _acs(root, bridge)
    names = root.names("/sys/class/iommu")
    return PciFacts(
        found,
        nics,
        bridges,
        acs,
        paths,
        () if isinstance(names, Unknown) and names.absent else names,
        root.word("/proc/cmdline"),
        _direct_nic(root, nics),
    )


def read_accelerators(root: Root) -> tuple[Function, ...] | Unknown:
    """Every GPU or other accelerator on the PCI bus, in PCI order; () without PCI."""
    addresses = root.names(PCI_DEVICES)
    if isinstance(addresses, Unknown):
        return () if addresses.absent else addresses
    return tuple(
        read_function(root, address)
        for address in addresses
        if ADDRESS.fullmatch(address) and _is_accelerator(root, address)
    )


def _is_accelerator(root: Root, address: str) -> bool:
    kind = root.word(f"{PCI_DEVICES}/{address}/class")
    if isinstance(kind, Unknown) or kind[:6] not in ACCELERATOR_CLASSES:
        return False
    vendor = root.word(f"{PCI_DEVICES}/{address}/vendor")
    if isinstance(vendor, Unknown) or vendor not in ACCELERATOR_VENDORS:
        return False
    # Intel's graphics on bus 0 is part of the processor.
    return vendor != "0x8086" or address[-7:-5] != "00"


def read_function(root: Root, address: str) -> Function:
    """One function's facts, by its address."""
    folder = f"{PCI_DEVICES}/{address}"
    node = root.integer(f"{folder}/numa_node")
    driver = root.link(f"{folder}/driver")
    if isinstance(driver, Unknown):
        driver = "" if driver.absent else driver
    else:
        driver = driver.rpartition("/")[2]
    return Function(
        address,
        root.word(f"{folder}/vendor"),
        root.word(f"{folder}/device"),
        root.word(f"{folder}/class"),
        node if isinstance(node, Unknown) or node >= 0 else None,
        driver,
        _parents(root, folder),
        Link(
            _lanes(root, f"{folder}/current_link_width"),
            _lanes(root, f"{folder}/max_link_width"),
            root.word(f"{folder}/current_link_speed"),
            root.word(f"{folder}/max_link_speed"),
        ),
        _iommu(root, folder),
    )


def _parents(root: Root, folder: str) -> tuple[str, ...]:
    """The host bridge and the bridges above a function; () where the tree does not show them."""
    path = root.link(folder)
    if isinstance(path, Unknown):
        return ()
    parts = path.split("/")[:-1]
    for index, part in enumerate(parts):
        if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part):
            return (part, *(name for name in parts[index + 1 :] if ADDRESS.fullmatch(name)))
    return ()


def _lanes(root: Root, name: str) -> int | Unknown:
    """A link's width; a function without a link of its own says 0 (virtual) or 255."""
    width = root.integer(name)
    if isinstance(width, int) and not 1 <= width <= 32:
        return Unknown(f"{name}: {width}, so it has no link of its own", absent=True)
    return width


def _iommu(root: Root, folder: str) -> str | Unknown:
    group = root.link(f"{folder}/iommu_group")
    if isinstance(group, Unknown):
        return "none" if group.absent else group
    return root.word(f"/sys/kernel/iommu_groups/{group.rpartition('/')[2]}/type")


def _nics(root: Root) -> dict[str, Function]:
    names = root.names(RDMA_DEVICES)
    nics = {}
    for name in () if isinstance(names, Unknown) else names:
        path = root.link(f"{RDMA_DEVICES}/{name}/device")
        address = "" if isinstance(path, Unknown) else path.rpartition("/")[2]
        if ADDRESS.fullmatch(address):
            nics[name] = read_function(root, address)
    return nics


def _at(function: Function, one_node: bool) -> Place:
    """Where a function is; on a host with one NUMA node that is its node, named or not."""
    place = function.place
    return place._replace(node=0) if one_node and place.node is None else place


def _acs(root: Root, address: str) -> int | Unknown | None:
    control = root.call("pci.acs", address)
    if control is None or isinstance(control, Unknown) or type(control) is int:
        return control
    return Unknown(f"pci.acs {address}: not a register: {str(control)[:40]}")


def _direct_nic(root: Root, nics: Mapping[str, Function]) -> bool:
    """Only ConnectX-8 and newer have the function, so only beside one is it looked for."""
    if not any(nic.vendor == DIRECT_NIC_FUNCTION[0] for nic in nics.values()):
        return False
    addresses = root.names(PCI_DEVICES)
    if isinstance(addresses, Unknown):
        return False
    return any(
        root.word(f"{PCI_DEVICES}/{address}/device") == DIRECT_NIC_FUNCTION[1]
        and root.word(f"{PCI_DEVICES}/{address}/vendor") == DIRECT_NIC_FUNCTION[0]
        for address in addresses
    )
