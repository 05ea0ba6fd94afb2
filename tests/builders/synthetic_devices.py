"""The GPUs and NICs of synthetic hosts: their PCI functions, and what drivers make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.builders.synthetic import SyntheticHost

GIB = 1 << 30
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
CHARACTER_DEVICE = 0o20666


@dataclass
class Tree:
    """What a host consists of, by absolute name, before it is written."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)


class Gpu(NamedTuple):
    """lanes: (current, maximum), None in a virtual machine. mapped: visible to this process."""

    address: str
    parents: tuple[str, ...]
    node: int | None
    vendor: str = "0x10de"
    device: str = "0x2324"
    name: str = "NVIDIA H800"
    memory_bytes: int = 80 * GIB
    used_bytes: int = 4 << 20
    processes: int = 0
    mig: int = 0
    lanes: tuple[int, int] | None = (16, 16)
    mapped: bool = True


class Nic(NamedTuple):
    """A NIC with one port. ``number`` makes its uverbs node, interface and addresses. gids: (index,
    GID, type, interface), by default the usual four of RoCE with an IPv4 address."""

    name: str
    address: str
    parents: tuple[str, ...]
    node: int | None
    ipv4: str
    number: int
    vendor: str = "0x15b3"
    device: str = "0x1021"
    driver: str = "mlx5_core"
    driver_id: int = 1
    provider: str = "mlx5"
    firmware: str = "28.39.1002"
    node_type: str = "1: CA"
    link_layer: str = "Ethernet"
    state: str = "4: ACTIVE"
    physical_state: str = "5: LinkUp"
    rate: str = "400 Gb/sec (4X NDR)"
    mtu_bytes: int = 9000
    active_mtu_bytes: int = 4096
    max_mr_size_bytes: int = (1 << 64) - 1
    max_mr: int = 16777216
    max_qp: int = 131072
    lanes: tuple[int, int] | None = (16, 16)
    gids: tuple[tuple[int, str, str, str], ...] | None = None
    mapped: bool = True

    @property
    def interface(self) -> str:
        return f"eth{self.number + 1}"


def add_gpus(tree: Tree, gpus: Sequence[Gpu], host: SyntheticHost) -> None:
    for gpu in gpus:
        driver = "nvidia" if gpu.vendor == "0x10de" else "amdgpu"
        add_function(tree, gpu, "0x030200", driver, host)
    nvidia = [gpu for gpu in gpus if gpu.vendor == "0x10de"]
    if not nvidia:
        return
    kind = "Open Kernel Module for x86_64" if host.open_driver else "x86_64 Kernel Module"
    tree.files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX {kind}  {host.nvidia_driver}  Release Build  (builder@host)\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)"
    )
    for index, gpu in enumerate(nvidia):
        if gpu.mapped:
            tree.files[f"/dev/nvidia{index}"] = ""
    mapped = [gpu for gpu in nvidia if gpu.mapped]
    if mapped:
        tree.files["/dev/nvidiactl"] = ""
    error = host.nvml_error
    if error is None and not mapped:
        error = (12, "NVML Shared Library Not Found")
    tree.calls["gpus.visible_devices"] = None
    tree.calls["gpus.nvml"] = (
        {"code": error[0], "error": error[1]}
        if error
        else {
            "driver": host.nvidia_driver,
            "cuda": 12080,
            "devices": [_nvml(gpu, index) for index, gpu in enumerate(mapped)],
        }
    )
    able = int(host.dma_buf and host.open_driver)
    tree.calls["gpus.cuda_attributes"] = [{"rdma": 1, "dma_buf": able} for _ in mapped]


def _nvml(gpu: Gpu, index: int) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
        "address": f"0000{gpu.address.upper()}",
        "memory_bytes": gpu.memory_bytes,
        "used_bytes": gpu.used_bytes,
        "numa_node": gpu.node,
        "mig": gpu.mig,
        "compute_mode": 0,
        "ecc": 1,
        "persistence": 1,
        "processes": gpu.processes,
    }


def add_function(
    tree: Tree, function: Gpu | Nic, kind: str, driver: str, host: SyntheticHost
) -> str:
    """A PCI function with the bridges above it; its folder below /sys/devices."""
    for depth in range(1, len(function.parents)):
        bridge = function.parents[depth]
        _function_files(
            tree,
            "/".join(("/sys/devices", *function.parents[: depth + 1])),
            ("0x1000", "0xc030", "0x060400"),
            function.node,
            (16, 16),
        )
        tree.calls[f"pci.acs {bridge}"] = host.acs_control
    folder = "/".join(("/sys/devices", *function.parents, function.address))
    ids = (function.vendor, function.device, kind)
    _function_files(tree, folder, ids, function.node, function.lanes)
    tree.files.setdefault(f"/sys/bus/pci/drivers/{driver}/module_name", driver)
    tree.links[f"{folder}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    if host.iommu is not None:
        group = f"/sys/kernel/iommu_groups/{sum(map(ord, function.address))}"
        tree.files[f"{group}/type"] = host.iommu
        tree.links[f"{folder}/iommu_group"] = group
    return folder


def _function_files(
    tree: Tree,
    folder: str,
    ids: tuple[str, str, str],
    node: int | None,
    lanes: tuple[int, int] | None,
) -> None:
    vendor, device, kind = ids
    tree.links[f"/sys/bus/pci/devices/{folder.rpartition('/')[2]}"] = folder
    tree.files |= {
        f"{folder}/vendor": vendor,
        f"{folder}/device": device,
        f"{folder}/class": kind,
        f"{folder}/numa_node": str(-1 if node is None else node),
    }
    if lanes is not None:
        tree.files |= {
            f"{folder}/current_link_width": str(lanes[0]),
            f"{folder}/max_link_width": str(lanes[1]),
            f"{folder}/current_link_speed": "32.0 GT/s PCIe",
            f"{folder}/max_link_speed": "32.0 GT/s PCIe",
        }


def add_nics(tree: Tree, nics: Sequence[Nic], host: SyntheticHost) -> None:
    kernel: dict[str, Any] = {}
    for nic in nics:
        folder = add_function(tree, nic, "0x020000", nic.driver, host)
        _device(tree, folder, nic)
        _port(tree, f"{folder}/infiniband/{nic.name}/ports/1", nic)
        _calls(tree, nic)
        kernel[nic.name] = {"resources": {"qp": 1, "cq": 1, "mr": 0, "pd": 1, "ctx": 0}}
        kernel[nic.name]["driver_id"] = nic.driver_id
    if not nics:
        return
    tree.calls["rdma.kernel"] = {"netns_mode": "shared", "copy_on_fork": True, "devices": kernel}
    tree.calls["rdma.interfaces"] = {
        "lo": [["127.0.0.1", 8]],
        **{nic.interface: [[nic.ipv4, 24]] for nic in nics},
    }
    mapped = any(nic.mapped for nic in nics)
    tree.calls["rdma.device_node /dev/infiniband/rdma_cm"] = _node(mapped)
    real = f"{LIBRARIES}/libibverbs.so.1.14.{host.rdma_core}.0"
    tree.files[real] = ""
    tree.links[f"{LIBRARIES}/libibverbs.so.1"] = real
    for provider in {nic.provider for nic in nics}:
        tree.files[f"{LIBRARIES}/libibverbs/lib{provider}-rdmav34.so"] = ""
        tree.files[f"/etc/libibverbs.d/{provider}.driver"] = f"driver {provider}"


def _node(mapped: bool) -> dict[str, Any]:
    if mapped:
        return {"mode": CHARACTER_DEVICE, "open": True}
    return {"unknown": "No such file or directory", "absent": True}


def _device(tree: Tree, folder: str, nic: Nic) -> None:
    own = f"{folder}/infiniband/{nic.name}"
    verbs = f"{folder}/infiniband_verbs/uverbs{nic.number}"
    net = f"{folder}/net/{nic.interface}"
    tree.files |= {
        f"{own}/node_type": nic.node_type,
        f"{own}/fw_ver": nic.firmware,
        f"{own}/hca_type": "MT4129" if nic.provider == "mlx5" else nic.provider,
        f"{own}/node_guid": f"0000:0000:0000:{nic.number:04x}",
        f"{own}/sys_image_guid": f"0000:0000:0000:{nic.number:04x}",
        f"{verbs}/ibdev": nic.name,
        f"{verbs}/abi_version": "1",
        f"{verbs}/dev": f"231:{192 + nic.number}",
        f"{net}/mtu": str(nic.mtu_bytes),
        f"{net}/operstate": "up",
        f"{net}/address": f"02:00:00:00:00:{nic.number:02x}",
        "/sys/class/infiniband_verbs/abi_version": "6",
    }
    tree.links |= {
        f"{own}/device": folder,
        f"{verbs}/device": folder,
        f"{net}/device": folder,
        f"/sys/class/infiniband/{nic.name}": own,
        f"/sys/class/infiniband_verbs/uverbs{nic.number}": verbs,
        f"/sys/class/net/{nic.interface}": net,
    }


def _port(tree: Tree, folder: str, nic: Nic) -> None:
    tree.files |= {
        f"{folder}/state": nic.state,
        f"{folder}/phys_state": nic.physical_state,
        f"{folder}/link_layer": nic.link_layer,
        f"{folder}/rate": nic.rate,
        f"{folder}/lid": "0x0",
        f"{folder}/sm_lid": "0x0",
        f"{folder}/pkeys/0": "0xffff",
    }
    gids = default_gids(nic) if nic.gids is None else nic.gids
    for index in range(8):
        tree.files[f"{folder}/gids/{index}"] = ":".join(["0000"] * 8)
    for index, gid, kind, interface in gids:
        tree.files[f"{folder}/gids/{index}"] = gid
        tree.files[f"{folder}/gid_attrs/types/{index}"] = kind
        tree.files[f"{folder}/gid_attrs/ndevs/{index}"] = interface


def default_gids(nic: Nic) -> tuple[tuple[int, str, str, str], ...]:
    """Link-local and IPv4-mapped, each as RoCE v1 and v2, as mlx5 fills its table."""
    octets = [int(part) for part in nic.ipv4.split(".")]
    mapped = ":".join(["0000"] * 5 + ["ffff"])
    mapped += f":{octets[0]:02x}{octets[1]:02x}:{octets[2]:02x}{octets[3]:02x}"
    local = f"fe80:0000:0000:0000:0000:00ff:fe00:{nic.number:04x}"
    kinds = ("IB/RoCE v1", "RoCE v2")
    return tuple(
        (2 * row + column, gid, kind, nic.interface)
        for row, gid in enumerate((local, mapped))
        for column, kind in enumerate(kinds)
    )


def _calls(tree: Tree, nic: Nic) -> None:
    path = f"/dev/infiniband/uverbs{nic.number}"
    tree.calls[f"rdma.device_node {path}"] = _node(nic.mapped)
    if nic.mapped:
        tree.files[path] = ""
    limits = {
        "max_mr_size": nic.max_mr_size_bytes,
        "page_size_cap": 0xFFFFFFFFFFFFF000,
        "max_mr": nic.max_mr,
        "max_qp": nic.max_qp,
        "max_qp_wr": 32768,
        "max_cq": 16777216,
        "max_cqe": 4194303,
        "max_pd": 8388608,
        "max_sge": 30,
    }
    port = {"active_mtu_bytes": nic.active_mtu_bytes, "gid_table": 255, "pkey_table": 1}
    tree.calls[f"rdma.verbs {nic.name}"] = (
        {
            "listed": True,
            "opened": True,
            "limits": limits,
            "ports": {"1": port},
            "pages_on_demand": True,
        }
        if nic.mapped
        else {"listed": False, "opened": False, "error": "No such device"}
    )
