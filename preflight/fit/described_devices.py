"""GPUs and NICs of a host that is described: what is known of each model, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.units import GIB

_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_CHARACTER_DEVICE = 0o20666
_DRIVER = "570.124.06"


class Tree(NamedTuple):
    """A host as files, links and answers of calls, to be filled."""

    files: dict[str, str]
    links: dict[str, str]
    calls: dict[str, Any]


class GpuModel(NamedTuple):
    """device: of the PCI ID list. memory_gib: as its maker sells it."""

    product: str
    device: str
    memory_gib: int
    source: str


class NicModel(NamedTuple):
    """What ``ibv_query_device`` says of one, and how its driver is called."""

    product: str
    vendor: str
    device: str
    driver: str
    driver_id: int
    provider: str
    max_mr_size_bytes: int
    source: str


_SHEET = "NVIDIA's data sheet"
GPUS: Mapping[str, GpuModel] = {
    "H800": GpuModel("NVIDIA H800", "0x2324", 80, _SHEET),
    "H100": GpuModel("NVIDIA H100 SXM5", "0x2330", 80, _SHEET),
    "H200": GpuModel("NVIDIA H200", "0x2335", 141, _SHEET),
    "H20": GpuModel("NVIDIA H20", "0x2329", 96, _SHEET),
    "B200": GpuModel("NVIDIA B200", "0x2901", 180, _SHEET),
    "A100-80G": GpuModel("NVIDIA A100-SXM4-80GB", "0x20b2", 80, _SHEET),
    "A100-40G": GpuModel("NVIDIA A100-SXM4-40GB", "0x20b0", 40, _SHEET),
    "A800": GpuModel("NVIDIA A800-SXM4-80GB", "0x20f3", 80, _SHEET),
    "A10": GpuModel("NVIDIA A10", "0x2236", 24, _SHEET),
    "A30": GpuModel("NVIDIA A30", "0x20b7", 24, _SHEET),
    "A40": GpuModel("NVIDIA A40", "0x2235", 48, _SHEET),
    "L4": GpuModel("NVIDIA L4", "0x27b8", 24, _SHEET),
    "L20": GpuModel("NVIDIA L20", "0x26ba", 48, _SHEET),
    "L40": GpuModel("NVIDIA L40", "0x26b5", 48, _SHEET),
    "L40S": GpuModel("NVIDIA L40S", "0x26b9", 48, _SHEET),
    "T4": GpuModel("NVIDIA T4", "0x1eb8", 16, _SHEET),
    "V100-32G": GpuModel("NVIDIA V100-SXM2-32GB", "0x1db5", 32, _SHEET),
}
NICS: Mapping[str, NicModel] = {
    "mlx5": NicModel(
        "ConnectX-7 with RoCE (mlx5)",
        "0x15b3",
        "0x1021",
        "mlx5_core",
        1,
        "mlx5",
        (1 << 64) - 1,
        "no bound on a region, and tables in the host's memory",
    ),
    "erdma": NicModel(
        "Alibaba eRDMA (erdma)",
        "0x1ded",
        "0x107f",
        "erdma",
        19,
        "erdma",
        64 * GIB,
        "a region of 64 GiB at most, and tables of its own",
    ),
}


def add_gpus(tree: Tree, count: int, name: str, nodes: int) -> None:
    """Add so many of one model, evenly over the nodes."""
    files, _, calls = tree
    model = GPUS[name]
    devices = []
    for index in range(count):
        node = index * nodes // count
        address = f"0000:{0x10 + index:02x}:00.0"
        _function(tree, address, ("0x10de", model.device, "0x030200"), "nvidia", node)
        files[f"/dev/nvidia{index}"] = ""
        devices.append(
            {
                "name": model.product,
                "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
                "address": f"0000{address.upper()}",
                "memory_bytes": model.memory_gib * GIB,
                "used_bytes": 0,
                "numa_node": node,
                "mig": 0,
                "compute_mode": 0,
                "ecc": 1,
                "persistence": 1,
                "processes": 0,
            }
        )
    files["/dev/nvidiactl"] = ""
    files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {_DRIVER}  Release Build\n"
        "GCC version:  gcc version 12.3.0"
    )
    files["/proc/modules"] += "nvidia_peermem 16384 0 - Live 0x0\nnvidia 16384 0 - Live 0x0\n"
    for module in ("nvidia", "nvidia_peermem"):
        files[f"/sys/module/{module}/refcnt"] = "0"
    calls["gpus.visible_devices"] = None
    calls["gpus.nvml"] = {"driver": _DRIVER, "cuda": 12080, "devices": devices}
    calls["gpus.cuda_attributes"] = [{"rdma": 1, "dma_buf": 1} for _ in devices]


def add_nics(tree: Tree, count: int, name: str, nodes: int) -> None:
    """Add so many of one model, evenly over the nodes."""
    files, links, calls = tree
    model = NICS[name]
    kernel: dict[str, Any] = {}
    interfaces: dict[str, Any] = {"lo": [["127.0.0.1", 8]]}
    for index in range(count):
        address, device = f"0000:{0x60 + index:02x}:00.0", f"{name}_{index}"
        ids = (model.vendor, model.device, "0x020000")
        node = index * nodes // count
        folder = _function(tree, address, ids, model.driver, node)
        _nic(tree, folder, device, index, model)
        kernel[device] = {
            "resources": {"qp": 1, "cq": 1, "mr": 0, "pd": 1, "ctx": 0},
            "driver_id": model.driver_id,
        }
        interfaces[f"eth{index + 1}"] = [[f"10.0.0.{index + 1}", 24]]
        calls["network.addresses"].append(
            {"interface": f"eth{index + 1}", "address": f"10.0.0.{index + 1}", "up": True}
        )
        calls |= _answers(device, index, model)
    calls["rdma.kernel"] = {"netns_mode": "shared", "copy_on_fork": True, "devices": kernel}
    calls["rdma.interfaces"] = interfaces
    calls["rdma.device_node /dev/infiniband/rdma_cm"] = _openable()
    real = f"{_LIBRARIES}/libibverbs.so.1.14.52.0"
    files[real] = ""
    links[f"{_LIBRARIES}/libibverbs.so.1"] = real
    files[f"{_LIBRARIES}/libibverbs/lib{model.provider}-rdmav34.so"] = ""
    files[f"/etc/libibverbs.d/{model.provider}.driver"] = f"driver {model.provider}"
    for module in ("ib_uverbs", "ib_core"):
        files["/proc/modules"] += f"{module} 16384 0 - Live 0x0\n"
        files[f"/sys/module/{module}/refcnt"] = "0"


def _openable() -> dict[str, Any]:
    return {"mode": _CHARACTER_DEVICE, "open": True}


def _function(tree: Tree, address: str, ids: tuple[str, str, str], driver: str, node: int) -> str:
    """Add a PCI function on its node's root bus; return its folder below /sys/devices."""
    files, links, _ = tree
    folder = f"/sys/devices/pci0000:{address[5:7]}/{address}"
    links[f"/sys/bus/pci/devices/{address}"] = folder
    vendor, device, kind = ids
    files |= {
        f"{folder}/vendor": vendor,
        f"{folder}/device": device,
        f"{folder}/class": kind,
        f"{folder}/numa_node": str(node),
        f"{folder}/current_link_width": "16",
        f"{folder}/max_link_width": "16",
        f"{folder}/current_link_speed": "32.0 GT/s PCIe",
        f"{folder}/max_link_speed": "32.0 GT/s PCIe",
        f"/sys/bus/pci/drivers/{driver}/module_name": driver,
        f"/sys/kernel/iommu_groups/{address[5:7]}/type": "identity",
    }
    links[f"{folder}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    links[f"{folder}/iommu_group"] = f"/sys/kernel/iommu_groups/{address[5:7]}"
    return folder


def _nic(tree: Tree, folder: str, name: str, number: int, model: NicModel) -> None:
    files, links, _ = tree
    own, interface = f"{folder}/infiniband/{name}", f"eth{number + 1}"
    verbs, net = f"{folder}/infiniband_verbs/uverbs{number}", f"{folder}/net/{interface}"
    port = f"{own}/ports/1"
    files |= {
        f"{own}/node_type": "1: CA",
        f"{own}/fw_ver": "0",
        f"{own}/hca_type": model.provider,
        f"{own}/node_guid": f"0000:0000:0000:{number:04x}",
        f"{own}/sys_image_guid": f"0000:0000:0000:{number:04x}",
        f"{verbs}/ibdev": name,
        f"{verbs}/abi_version": "1",
        f"{verbs}/dev": f"231:{192 + number}",
        f"{net}/mtu": "9000",
        f"{net}/operstate": "up",
        f"{net}/address": f"02:00:00:00:00:{number:02x}",
        "/sys/class/infiniband_verbs/abi_version": "6",
        f"{port}/state": "4: ACTIVE",
        f"{port}/phys_state": "5: LinkUp",
        f"{port}/link_layer": "Ethernet",
        f"{port}/rate": "400 Gb/sec (4X NDR)",
        f"{port}/lid": "0x0",
        f"{port}/sm_lid": "0x0",
        f"{port}/pkeys/0": "0xffff",
        f"/dev/infiniband/uverbs{number}": "",
    }
    mapped = f"0000:0000:0000:0000:0000:ffff:0a00:{number + 1:04x}"
    for at in range(8):
        files[f"{port}/gids/{at}"] = ":".join(["0000"] * 8)
    for at, gid in enumerate((f"fe80:0000:0000:0000:0000:00ff:fe00:{number:04x}", mapped)):
        files[f"{port}/gids/{at}"] = gid
        files[f"{port}/gid_attrs/types/{at}"] = "RoCE v2"
        files[f"{port}/gid_attrs/ndevs/{at}"] = interface
    links |= {
        f"{own}/device": folder,
        f"{verbs}/device": folder,
        f"{net}/device": folder,
        f"/sys/class/infiniband/{name}": own,
        f"/sys/class/infiniband_verbs/uverbs{number}": verbs,
        f"/sys/class/net/{interface}": net,
    }


def _answers(name: str, number: int, model: NicModel) -> dict[str, Any]:
    limits = {
        "max_mr_size": model.max_mr_size_bytes,
        "page_size_cap": 0xFFFFFFFFFFFFF000,
        "max_mr": 1 << 24,
        "max_qp": 1 << 17,
        "max_qp_wr": 32768,
        "max_cq": 1 << 24,
        "max_cqe": (1 << 22) - 1,
        "max_pd": 1 << 23,
        "max_sge": 30,
    }
    port = {"active_mtu_bytes": 4096, "gid_table": 255, "pkey_table": 1}
    return {
        f"rdma.device_node /dev/infiniband/uverbs{number}": _openable(),
        f"rdma.verbs {name}": {
            "listed": True,
            "opened": True,
            "limits": limits,
            "ports": {"1": port},
        },
    }
