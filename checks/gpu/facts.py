"""GPU facts: what PCI shows, what NVML says, and how the kernel lets RDMA reach GPU memory."""

import re
from typing import Any, NamedTuple

from checks.framework.needs import LaunchNeeds
from checks.framework.patterns import answered, of
from checks.framework.root import Root
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require
from checks.pci.facts import PciFunction, read_accelerators

DRIVER_VERSION = "/proc/driver/nvidia/version"
MEMORY_PEERS = "/sys/kernel/mm/memory_peers"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
# NVIDIA's module, and the separate one of before driver 470.
PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")


class NvmlGpu(NamedTuple):
    """A GPU as NVML sees it, in NVML's order; None for each fact that NVML does not tell."""

    name: str | None
    uuid: str | None
    address: str | None  # as sysfs writes it
    memory_bytes: int | None
    used_bytes: int | None
    numa_node: int | None
    mig: int | None  # 1 where MIG is on
    compute_mode: int | None  # 0 shared, 2 prohibited, 3 one process only
    ecc: int | None
    processes: int | None  # those computing, of this PID namespace


class Nvml(NamedTuple):
    """NVML's answer.

    Attributes:
        error, code: Why NVML did not start, "" and 0 if it did.
    """

    driver: str
    cuda_version: int | None  # the newest that the driver supports, 1000 x major + 10 x minor
    gpus: tuple[NvmlGpu, ...]
    error: str = ""
    code: int = 0


class CudaAbility(NamedTuple):
    """CUDA's attributes of one GPU: GPUDirect RDMA (116) and dma-buf (124)."""

    rdma: bool | None
    dma_buf: bool | None


class GpuFacts(NamedTuple):
    """Facts about the GPUs.

    Attributes:
        abilities: In CUDA's order; read only if GPU memory is registered.
    """

    accelerators: tuple[PciFunction, ...] | Unknown  # see ``PciFacts``
    nvml: Nvml | Unknown  # Unknown and absent where nothing says NVIDIA
    device_nodes: tuple[str, ...] | Unknown  # /dev/nvidiaN that this process sees
    visible_devices: str | Unknown | None  # CUDA_VISIBLE_DEVICES of this process
    abilities: tuple[CudaAbility, ...] | Unknown
    peer_modules: tuple[str, ...] | Unknown  # those loaded
    memory_peers: tuple[str, ...] | Unknown  # peer-memory clients that ib_core knows
    kernel_module: str | Unknown  # "open", "proprietary", or "" without an NVIDIA driver
    kernel_module_version: str | Unknown
    imex_channels: tuple[str, ...] | Unknown  # names of their nodes

    @property
    def nvidia(self) -> bool | Unknown:
        """Whether NVML, PCI or a device node shows an NVIDIA GPU; Unknown if PCI cannot be read."""
        if not isinstance(self.nvml, Unknown) and self.nvml.gpus:
            return True
        if any(gpu.vendor == "0x10de" for gpu in self.on_pci) or self.nodes:
            return True
        return self.accelerators if isinstance(self.accelerators, Unknown) else False

    @property
    def on_pci(self) -> tuple[PciFunction, ...]:
        """The accelerators; () if PCI could not be read."""
        return () if isinstance(self.accelerators, Unknown) else self.accelerators

    @property
    def nodes(self) -> tuple[str, ...]:
        """The device nodes; () if /dev could not be read."""
        return () if isinstance(self.device_nodes, Unknown) else self.device_nodes


def read_gpus(root: Root, needs: LaunchNeeds | None) -> GpuFacts:
    """Read the GPUs' facts.

    NVML is asked only if PCI, the driver or device nodes show NVIDIA's.
    """
    accelerators = read_accelerators(root)
    on_pci = () if isinstance(accelerators, Unknown) else accelerators
    driver = root.text(DRIVER_VERSION)
    nodes = _device_nodes(root)
    nvidia = any(gpu.vendor == "0x10de" for gpu in on_pci) or not isinstance(driver, Unknown)
    nvidia = nvidia or (not isinstance(nodes, Unknown) and bool(nodes))
    none = Unknown("neither PCI nor /dev nor /proc shows an NVIDIA GPU", absent=True)
    none = accelerators if isinstance(accelerators, Unknown) else none
    registers = needs is not None and any(
        isinstance(process.gpu_registered_bytes, Unknown) or process.gpu_registered_bytes > 0
        for process in needs.processes
    )
    unasked = Unknown("not asked: the launch registers no GPU memory", absent=True)
    module, version = _kernel_module(driver)
    visible = root.call("gpus.visible_devices") if nvidia else None
    wrong = Unknown("gpus.visible_devices: not a text")
    return GpuFacts(
        accelerators,
        _nvml(root) if nvidia else none,
        nodes,
        visible if visible is None or isinstance(visible, str | Unknown) else wrong,
        (_abilities(root) if registers else unasked) if nvidia else none,
        _peer_modules(root),
        root.entries(MEMORY_PEERS),
        module,
        version,
        root.entries(IMEX_CHANNELS),
    )


@or_unknown
def _device_nodes(root: Root) -> tuple[str, ...] | Unknown:
    names = require(root.names("/dev"))
    return tuple(name for name in names if re.fullmatch(r"nvidia\d{1,4}", name, re.ASCII))


def _peer_modules(root: Root) -> tuple[str, ...] | Unknown:
    """Return the loaded PEER_MODULES; Unknown if none is seen and /proc/modules is unreadable."""
    content = root.text("/proc/modules")
    rows = [] if isinstance(content, Unknown) else content.split("\n")
    loaded = {row.split(" ")[0] for row in rows}
    # A module shows in /sys/module when it is loaded or built in.
    shown = [not isinstance(root.mode(f"/sys/module/{name}"), Unknown) for name in PEER_MODULES]
    modules = tuple(m for m, there in zip(PEER_MODULES, shown, strict=True) if there or m in loaded)
    return modules or none_if_absent(content, ()) if isinstance(content, Unknown) else modules


def _kernel_module(content: str | Unknown) -> tuple[str | Unknown, str | Unknown]:
    """Return ``(type, version)`` of NVIDIA's loaded module, from the text of
    /proc/driver/nvidia/version.

    The type is "open" or "proprietary"; both are "" without the module.
    """
    if isinstance(content, Unknown):
        return ("", "") if content.absent else (content, content)
    first = content.partition("\n")[0]
    number = re.search(r"\b(\d{3,4}\.\d+(?:\.\d+)?)\b", first, re.ASCII)
    unsaid = Unknown(f"{DRIVER_VERSION}: names no version: {first[:60]!r}")
    version = number[1] if number else unsaid
    if "Open Kernel Module" in first:
        return "open", version
    if "Kernel Module" in first:
        return "proprietary", version
    return Unknown(f"{DRIVER_VERSION}: names no kernel module: {first[:60]!r}"), version


def _nvml(root: Root) -> Nvml | Unknown:
    """Read the recorded or live answer of NVML."""

    def take(answer: dict[str, Any]) -> Nvml:
        if "error" in answer:
            return Nvml("", None, (), str(answer["error"]), _integer(answer.get("code")) or 0)
        driver, cuda = _text(answer.get("driver")) or "", _integer(answer.get("cuda"))
        return Nvml(driver, cuda, tuple(map(_nvml_gpu, of(list, answer["devices"]))))

    return answered(root.call("gpus.nvml"), take, "gpus.nvml: not a record of GPUs")


def _nvml_gpu(device: dict[str, Any]) -> NvmlGpu:
    """Read one GPU of NVML's answer."""
    address = _text(device.get("address"))
    return NvmlGpu(
        _text(device.get("name")),
        _text(device.get("uuid")),
        # NVML writes the domain with eight digits and in capitals.
        None if address is None else address.lower()[-12:],
        *(_integer(device.get(name)) for name in NvmlGpu._fields[3:]),
    )


def _abilities(root: Root) -> tuple[CudaAbility, ...] | Unknown:
    """Read the flags of each GPU that CUDA gave; a flag that it did not give is None."""

    def ability(row: dict[str, Any]) -> CudaAbility:
        flags = (row.get(name) for name in ("rdma", "dma_buf"))
        return CudaAbility(*(bool(flag) if isinstance(flag, int) else None for flag in flags))

    wrong, answer = "gpus.cuda_attributes: not a list of GPUs", root.call("gpus.cuda_attributes")
    return answered(answer, lambda rows: tuple(map(ability, of(list, rows))), wrong)


def _integer(value: object) -> int | None:
    return value if type(value) is int else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
