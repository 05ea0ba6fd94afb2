"""Which GPU, NICs and NUMA nodes of this host a process of the launch uses."""

from checks.framework.needs import GPU_RESOURCES, GivenGpus, LaunchNeeds, ProcessNeeds
from checks.framework.unknown import Unknown, or_unknown, require
from checks.gpu.facts import GpuFacts
from checks.pci.facts import PciFunction
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import devices_in_use
from checks.releases import sglang
from checks.releases.mooncake import release_of

NVML_LIBRARY_NOT_FOUND = 12  # nvmlReturn_t (nvml.h); other errors come from a driver that is there


def nics_of(
    rdma: RdmaFacts, needs: LaunchNeeds, process: ProcessNeeds
) -> tuple[str, ...] | Unknown:
    """Return the RDMA devices that ``process`` registers memory with."""
    return devices_in_use(rdma, process, release_of(needs.mooncake_version)).names


def nics_in_use(rdma: RdmaFacts, needs: LaunchNeeds) -> tuple[str, ...] | Unknown:
    """Return the NICs that the launch's processes use, each once.

    Processes whose NICs are not known are left out; Unknown if that leaves no NIC.
    """
    names: dict[str, None] = {}
    missing: Unknown | None = None
    for process in needs.rdma_processes:
        used = nics_of(rdma, needs, process)
        if isinstance(used, Unknown):
            missing = used
        else:
            names |= dict.fromkeys(used)
    return missing if missing is not None and not names else tuple(names)


@or_unknown
def nic_node(rdma: RdmaFacts, name: str) -> int | Unknown | None:
    """Return the NUMA node of an RDMA device, as Mooncake reads it; None if it names none."""
    nic = next((nic for nic in require(rdma.nics) if nic.name == name), None)
    return Unknown(f"{name}: no such RDMA device") if nic is None else nic.node


def splits_segment(process: ProcessNeeds) -> bool | Unknown:
    """Return whether Mooncake binds shares of its segment to the nodes of several NICs."""
    if process.rdma is None:
        return False
    nodes = process.segment_nodes
    return nodes if isinstance(nodes, Unknown) else len(nodes) > 1


def physical_gpus(gpus: GpuFacts) -> tuple[str, ...] | Unknown:
    """Return the PCI addresses of the GPUs that this process may use, in NVML's (PCI) order.

    If NVML was not asked or is not installed, the GPUs on PCI are taken: NVIDIA's, else those of
    other makers.

    Returns:
        Unknown if neither NVML nor PCI can tell.
    """
    if isinstance(gpus.nvml, Unknown):
        silent = gpus.nvml
    elif not gpus.nvml.error:
        return tuple(gpu.address or f"GPU {index}" for index, gpu in enumerate(gpus.nvml.gpus))
    else:
        silent = Unknown(f"NVML: {gpus.nvml.error}")
        if gpus.nvml.code != NVML_LIBRARY_NOT_FOUND:
            return silent
    if isinstance(gpus.accelerators, Unknown):
        return gpus.accelerators
    nvidia = tuple(gpu.address for gpu in gpus.accelerators if gpu.vendor == "0x10de")
    if not nvidia:
        return tuple(gpu.address for gpu in gpus.accelerators)
    if isinstance(gpus.device_nodes, Unknown):
        return silent
    # A container sees all GPUs on PCI, and device nodes of its own alone.
    if not gpus.device_nodes:
        return ()
    return nvidia if len(gpus.device_nodes) == len(nvidia) else silent


def visible_setting(gpus: GpuFacts, process: ProcessNeeds) -> str | Unknown | None:
    """Return CUDA_VISIBLE_DEVICES of the process: set by the launch, or inherited from here if it
    runs in no container.

    Returns:
        None if it is not set.
    """
    setting = process.environment.get("CUDA_VISIBLE_DEVICES")
    return gpus.visible_devices if setting is None and process.container is None else setting


@or_unknown
def visible_gpus(gpus: GpuFacts, process: ProcessNeeds) -> tuple[str, ...] | Unknown:
    """Return the PCI addresses of the GPUs that CUDA shows to ``process``, in CUDA's order.

    An entry that names no GPU ends the list, as in CUDA. Which GPUs a pod is given is not known:
    the first GPUs of the host are taken.
    """
    physical = require(physical_gpus(gpus))
    visible_to_container = require(container_gpu_addresses(gpus, process))
    setting = visible_setting(gpus, process)
    if setting is None or isinstance(setting, Unknown):
        return visible_to_container if setting is None else setting
    chosen: list[str] = []
    for entry in setting.split(",") if setting.strip() else ():
        if entry.strip().isdecimal():
            address = _by_number(entry.strip(), visible_to_container)
        else:
            address = require(_named_gpu(entry.strip(), physical, gpus))
        if address is None or address not in visible_to_container:
            break
        chosen.append(address)
    return tuple(chosen)


@or_unknown
def container_gpu_addresses(gpus: GpuFacts, process: ProcessNeeds) -> tuple[str, ...] | Unknown:
    """Return the PCI addresses of the GPUs that the container or job of a process is given, in
    CUDA's order.

    All GPUs of the host if nothing limits them; () if it asks for another maker's.
    """
    asked = require(container_gpus(process))
    if asked is not None and lacks_resource(gpus, asked):
        return ()
    physical = require(physical_gpus(gpus))
    if asked is None or not asked.names:
        return physical[: asked.number] if asked is not None else physical
    named = [require(_named_gpu(name, physical, gpus)) for name in asked.names]
    return tuple(address for address in physical if address in named)


def lacks_resource(gpus: GpuFacts, asked: GivenGpus) -> str:
    """Return a resource that is asked for and whose maker has no GPU here; "" if there is none."""
    if isinstance(gpus.accelerators, Unknown) or not gpus.accelerators:
        return ""
    here = {gpu.vendor for gpu in gpus.accelerators}
    return next((name for name in asked.resources if GPU_RESOURCES[name] not in here), "")


def container_gpus(process: ProcessNeeds) -> GivenGpus | Unknown | None:
    """Return the GPUs given to the container or Slurm job of a process; None if nothing says so."""
    if process.container is not None:
        return process.container.gpus
    number = process.environment.get("SLURM_GPUS_ON_NODE", "")
    if not number.isdecimal() or len(number) > 4:
        return None
    entries = process.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entries = [entry.strip() for entry in filter(None, entries)]
    if any(not entry.isdecimal() or int(entry) >= int(number) for entry in entries):
        return Unknown("CUDA_VISIBLE_DEVICES goes beyond the GPUs of the job, which Slurm may hide")
    return GivenGpus(int(number))


def _by_number(entry: str, places: tuple[str, ...]) -> str | None:
    return places[int(entry)] if len(entry) < 5 and int(entry) < len(places) else None


@or_unknown
def _named_gpu(entry: str, physical: tuple[str, ...], gpus: GpuFacts) -> str | Unknown | None:
    """Return the address of the GPU that an entry of CUDA_VISIBLE_DEVICES names, None if it names
    no GPU; Unknown for an MIG instance.

    Args:
        physical: The addresses of all GPUs.
    """
    if entry.startswith("MIG-"):
        return Unknown(f"CUDA_VISIBLE_DEVICES names the MIG instance {entry}")
    if entry.startswith("GPU-"):
        uuids = zip(physical, require(gpus.nvml).gpus, strict=True)
        return next((address for address, gpu in uuids if (gpu.uuid or "").startswith(entry)), None)
    return _by_number(entry, physical) if entry.isdecimal() else None


def taken_gpu(gpus: GpuFacts, process: ProcessNeeds, index: int) -> str | Unknown:
    """Name the host's GPU that ``process`` takes as its GPU ``index``: an address, or ``GPU 2``.

    It is "" if the process sees no such GPU, Unknown if the GPUs of its container are not known.
    """
    setting = visible_setting(gpus, process)
    container = process.container
    asked = GivenGpus()
    if container is not None:
        if not isinstance(container.gpus, GivenGpus) or container.runtime == "kubernetes":
            return Unknown("which GPUs its container is given")
        asked = container.gpus
        if len(asked.names) > 1 and not all(name.isdecimal() for name in asked.names):
            return Unknown("which of its container's GPUs is which")
    if isinstance(setting, Unknown):  # all inherit the same one
        return f"GPU {index} of those that are visible"
    entry = str(index)
    listed = None if setting is None else [name.strip() for name in setting.split(",")]
    for names in (listed, asked.names or None):
        if names is not None and entry.isdecimal():
            if int(entry) >= len(names):
                return ""
            entry = names[int(entry)]
    if asked.number is not None and entry.isdecimal() and int(entry) >= asked.number:
        return ""
    physical = physical_gpus(gpus)
    named = f"GPU {entry}"
    if not isinstance(physical, Unknown) and physical:
        gpu = _named_gpu(entry, physical, gpus)
        return named if isinstance(gpu, Unknown) else gpu or ""
    return named


def gpu_processes(needs: LaunchNeeds) -> list[ProcessNeeds]:
    """Return the processes of the launch that use a GPU."""
    return [process for process in needs.processes if process.gpu is not None]


@or_unknown
def gpu_function(gpus: GpuFacts, process: ProcessNeeds) -> PciFunction | Unknown | None:
    """Return the PCI function of the process's GPU; None if CUDA shows it no such GPU."""
    visible = require(visible_gpus(gpus, process))
    if process.gpu is None or process.gpu >= len(visible):
        return None
    address = visible[process.gpu]
    function = next((gpu for gpu in gpus.on_pci if gpu.address == address), None)
    return function or Unknown(f"{address}: sysfs shows no such GPU")


def probes_numactl(sglang_version: str) -> bool | Unknown:
    """Tell whether a rank of this SGLang starts without binding if numactl cannot bind it."""
    release = sglang.release_of(sglang_version)
    if release is None:
        return Unknown(f"the version is not known ({sglang_version!r})")
    return release.probes_numactl
