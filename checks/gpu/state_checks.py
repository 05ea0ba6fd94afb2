"""Checks of how the GPUs are: whole (MIG), free, joined by NVLink where the launch asks, and on
which way NICs reach their memory: peer memory or dma-buf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checks.base.check import CheckSet, any_launch, the_launch
from checks.base.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    UnjudgedError,
    command,
    or_unjudged,
    passed,
    skip,
)
from checks.base.fold import fold
from checks.base.needs import GPU_RESOURCES, LaunchNeeds, ProcessNeeds
from checks.base.units import GIB, Quantity, format_bytes
from checks.base.unknown import Unknown, known, or_unknown
from checks.base.written_numbers import leading_integer
from checks.gpu.facts import DRIVER_VERSION, IMEX_CHANNELS, MEMORY_PEERS, GpuFacts, NvmlGpu
from checks.gpu.hardware_use import gpu_processes, nics_of, physical_gpus, visible_gpus
from checks.rdma.facts import RdmaFacts
from checks.rdma.registration import through_peermem
from checks.system.facts import SystemFacts

CHECKS = CheckSet()

# What a GPU that nobody uses may hold: the driver keeps a few MiB, and up to some hundreds where
# NVML does not count its reserve apart. A CUDA context alone is about half of this.
IDLE_BYTES = GIB
MIG_ON = 1


@or_unknown
def _of_launch(gpus: GpuFacts, needs: LaunchNeeds | None) -> Mapping[str, NvmlGpu] | Unknown:
    """Return the GPUs that the launch uses, by NVML's address; without a launch all of the host."""
    nvml = known(gpus.nvml)
    if nvml.error:
        return Unknown(f"NVML: {nvml.error}")
    all_of = {gpu.address or f"GPU {n}": gpu for n, gpu in enumerate(nvml.gpus)}
    if needs is None:
        return all_of
    used: dict[str, NvmlGpu] = {}
    for process in gpu_processes(needs):
        visible = known(visible_gpus(gpus, process))
        if process.gpu is not None and process.gpu < len(visible):
            address = visible[process.gpu]
            used[address] = all_of[address]
    return used


def _gpus_in_use(gpus: GpuFacts, needs: LaunchNeeds | None) -> Mapping[str, NvmlGpu]:
    """Return the GPUs to judge one by one. Raises UnjudgedError if there is none."""
    if not passed("GPUs").known(gpus.nvidia) or physical_gpus(gpus) == ():
        raise UnjudgedError(skip("no NVIDIA GPU is visible here"))
    used = passed("GPUs").known(_of_launch(gpus, needs))
    if not used:
        raise UnjudgedError(skip("the launch uses no GPU of this host", "GPUs"))
    return used


@CHECKS.check("gpu.mig", any_launch)
def mig(needs: LaunchNeeds | None, gpus: GpuFacts) -> Iterable[Finding]:
    """Judge whether MIG is off on each GPU in use."""
    evidence = (Evidence("nvmlDeviceGetMigMode", str(MIG_ON)),)
    return fold(
        passed(f"GPU {address}", "MIG off", "MIG off")
        if gpu.mig != MIG_ON
        else passed(f"GPU {address}", "MIG on", "MIG off", evidence=evidence).warned(
            "with MIG on, CUDA shows a process one instance of one GPU, and no second device",
            "turn MIG off for this GPU, once nothing runs on it",
            (command("nvidia-smi", "-i", address, "-mig", "0", as_root=True),),
        )
        for address, gpu in _gpus_in_use(gpus, needs).items()
    )


@CHECKS.check("gpu.memory-busy", any_launch)
def memory_busy(needs: LaunchNeeds | None, gpus: GpuFacts) -> Iterable[Finding]:
    return fold(_busy(f"GPU {address}", gpu) for address, gpu in _gpus_in_use(gpus, needs).items())


def _busy(subject: str, gpu: NvmlGpu) -> Finding:
    """Judge whether other processes use memory of a GPU."""
    finding = passed(subject, need=format_bytes(IDLE_BYTES, "at most {} used"))
    if gpu.used_bytes is None or gpu.memory_bytes is None:
        return finding.unknown("NVML does not say what is used")
    have = f"{format_bytes(gpu.used_bytes)} of {format_bytes(gpu.memory_bytes)} used"
    running = gpu.processes or 0
    if running:
        have += f" by {running} process{'es' if running > 1 else ''}"
    finding = finding._replace(have=Quantity(have, gpu.used_bytes, "bytes"))
    if gpu.used_bytes <= IDLE_BYTES and not running:
        return finding
    return finding.warned(
        "SGLang makes a smaller KV pool, or runs out of GPU memory at its start",
        "see nvidia-smi for what runs there, and end it",
        evidence=(Evidence("nvmlDeviceGetMemoryInfo used", str(gpu.used_bytes)),),
    )


# Models whose racks join GPUs of several hosts over NVLink.
MULTI_NODE_NVLINK = ("GB200", "GB300")


@CHECKS.check("gpu.imex", the_launch)
def imex(needs: LaunchNeeds, gpus: GpuFacts, rdma: RdmaFacts) -> Iterable[Finding]:
    """Judge whether a launch over NVLink between hosts has an IMEX channel."""
    forced = any("MC_FORCE_MNNVL" in process.environment for process in needs.processes)
    names = [] if isinstance(gpus.nvml, Unknown) else [gpu.name or "" for gpu in gpus.nvml.gpus]
    rack_scale = any(word in name for name in names for word in MULTI_NODE_NVLINK)
    silent = needs.rdma_processes and rack_scale and rdma.nics == ()
    if not forced and not silent:
        return [skip("the launch moves nothing over NVLink between hosts", "launch")]
    channels = gpus.imex_channels
    finding = passed("IMEX channels", need="1 channel")
    if isinstance(channels, Unknown):
        return [finding.unknown(channels)]
    if channels:
        return [finding._replace(have=", ".join(channels))]
    channel_file = f"{IMEX_CHANNELS}/channel0"
    text = "without an RDMA device Mooncake uses NVLink, which needs an IMEX channel"
    if forced:
        text = "MC_FORCE_MNNVL asks for NVLink, and without an IMEX channel no transfer succeeds"
    advice = "start nvidia-imex and map the channel into the container"
    settings = (Setting(Kind.DEVICE, channel_file, channel_file),)
    evidence = (Evidence(IMEX_CHANNELS, "absent or empty"),)
    return [finding.warned(text, advice, settings, have="none", evidence=evidence)]


# ibv_reg_dmabuf_mr needs the RDMA core of Linux 5.12.
DMA_BUF_KERNEL = (5, 12)
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@CHECKS.check("gpu.peer-memory", the_launch)
def peer_memory(
    needs: LaunchNeeds, gpus: GpuFacts, system: SystemFacts, rdma: RdmaFacts
) -> Iterable[Finding]:
    """Judge whether a NIC can register GPU memory where the launch asks for it."""
    # How much of it there is, is known once it runs.
    amounts = [(process, process.gpu_registered_bytes) for process in needs.processes]
    some = [process for process, size in amounts if isinstance(size, Unknown) or size > 0]
    processes = [process for process in some if process.rdma is not None]
    if not processes:
        return [passed("launch", "registers no GPU memory")]
    if not passed("launch").known(gpus.nvidia):
        if any(gpu.vendor == AMD for gpu in gpus.on_pci):
            return fold(_reach_amd(process, gpus, rdma, needs) for process in processes)
        judged = "only NVIDIA's and AMD's GPUs are judged here"
        return [skip(judged if gpus.on_pci else "no GPU is visible here", "launch")]
    return fold(_reach(process, system, gpus) for process in processes)


def _reach(process: ProcessNeeds, system: SystemFacts, gpus: GpuFacts) -> Finding:
    """Judge the way to an NVIDIA GPU's memory, then expandable segments."""
    judge_way = _over_peer_memory if through_peermem(process.environment) else _over_dma_buf
    finding = judge_way(passed(process.name), system, gpus)
    variable = expandable_segments(process)
    if finding.status is not Status.PASS or not variable:
        return finding
    value = process.environment[variable]
    kept = ",".join(entry for entry in value.split(",") if "expandable_segments" not in entry)
    return finding.warned(
        "memory from expandable segments is made of many CUDA allocations: older PyTorch does "
        "not make them fit for RDMA, and EFA and older Mooncake (before #3538) refuse them",
        f"remove expandable_segments from {variable} for this process",
        (Setting(Kind.ENVIRONMENT, variable, kept, value),),
    )


def expandable_segments(process: ProcessNeeds) -> str:
    """Return the variable that turns PyTorch's expandable segments on, "" if none does."""
    for name in ALLOCATOR_VARIABLES:
        for entry in process.environment.get(name, "").split(","):
            key, _, value = entry.partition(":")
            if key.strip() == "expandable_segments" and value.strip().lower() in ("true", "1"):
                return name
    return ""


AMD = GPU_RESOURCES["amd.com/gpu"]
# The client of the peer-memory kernels that AMD's driver is, and what keeps Mooncake off dma-buf.
AMD_PEER, NO_HIP_DMA_BUF = "amdkfd", "MOONCAKE_DISABLE_HIP_DMABUF"
# Drivers without on-demand paging: a dma-buf that they import is pinned whole, and a second copy of
# it is held in GPU memory; others are asked. Source: AMD-AGI/Infera mooncake_mode.py.
WITHOUT_PAGING = ("ionic",)


@or_unjudged
def _reach_amd(
    process: ProcessNeeds, gpus: GpuFacts, rdma: RdmaFacts, needs: LaunchNeeds
) -> Finding:
    """Judge the way to an AMD GPU's memory: dma-buf if Mooncake has that, else peer memory."""
    off = leading_integer(process.environment.get(NO_HIP_DMA_BUF, "0")) != 0
    finding = passed(process.name, need=f"{AMD_PEER} in {MEMORY_PEERS}, or dma-buf")
    peer = AMD_PEER in finding.known(gpus.memory_peers)
    finding = finding._replace(have=f"{AMD_PEER} {'is there' if peer else 'is not there'}")
    if peer and off:
        return finding
    names = finding.known(nics_of(rdma, needs, process))
    paging = {
        nic.name: nic.driver not in WITHOUT_PAGING and nic.verbs.pages_on_demand
        for nic in rdma.present
        if nic.name in names
    }
    pinning = [name for name, pages in paging.items() if pages is False]
    if not pinning:
        if peer:
            return finding
        why = "whether this Mooncake has dma-buf for AMD's GPUs"
        if any(isinstance(pages, Unknown) for pages in paging.values()):
            why += ", and the NICs page on demand (ibv_devinfo -v: ODP_SUPPORT),"
        return finding.unknown(f"{why} is not known")
    setting = Setting(Kind.ENVIRONMENT, NO_HIP_DMA_BUF, "1")
    text = (
        f"by dma-buf {', '.join(pinning)} pin the whole KV cache and hold a second copy of it in "
        "GPU memory: a large one ends with SIGSEGV or HIP error 209"
    )
    if peer:
        advice = f"set {NO_HIP_DMA_BUF}=1: peer memory takes the KV cache as it is, on every NIC"
        return finding.warned(text, advice, (setting,))
    if off:
        text = "without dma-buf and without peer memory ibv_reg_mr of GPU memory fails (EINVAL)"
    return finding.warned(
        text,
        "load a peer-memory module on the host, or name NICs with on-demand paging "
        "(--disaggregation-ib-device), or lower --mem-fraction-static until it fits twice",
    )


def _over_peer_memory(finding: Finding, system: SystemFacts, gpus: GpuFacts) -> Finding:
    """Judge GPUDirect RDMA through nvidia_peermem."""
    finding = finding._replace(need="nvidia_peermem loaded (WITH_NVIDIA_PEERMEM is on)")
    facts = gpus.peer_modules, gpus.memory_peers
    modules, clients = (() if isinstance(fact, Unknown) else fact for fact in facts)
    evidence = (
        Evidence("/proc/modules", ", ".join(modules) or "no nvidia_peermem"),
        Evidence(MEMORY_PEERS, ", ".join(clients) or "no client"),
    )
    finding = finding._replace(evidence=evidence)
    for name in (*modules, *clients):
        return finding._replace(have=f"{name} loaded")
    for fact in facts:
        if isinstance(fact, Unknown):
            return finding.unknown(fact)
    advice = "load nvidia_peermem on the host"
    if _dma_buf_problem(system, gpus) is None:
        advice += ", or set WITH_NVIDIA_PEERMEM=0: dma-buf works here"
    return finding.failed(
        "ibv_reg_mr of GPU memory fails with Bad address [14], and the server ends",
        advice,
        (Setting(Kind.MODULE, "nvidia_peermem", ""),),
        have="not loaded",
    )


def _over_dma_buf(finding: Finding, system: SystemFacts, gpus: GpuFacts) -> Finding:
    """Judge GPUDirect RDMA through dma-buf."""
    finding = finding._replace(
        need="dma-buf: open kernel module, Linux 5.12 (WITH_NVIDIA_PEERMEM=0)"
    )
    problem = _dma_buf_problem(system, gpus)
    have = f"{gpus.kernel_module} kernel module" if isinstance(gpus.kernel_module, str) else ""
    evidence = (Evidence(DRIVER_VERSION, str(gpus.kernel_module_version)),)
    finding = finding._replace(have=have, evidence=evidence)
    if problem is None:
        return finding._replace(have=f"{have}, attribute 124 = 1")
    if isinstance(problem, Unknown):
        return finding.unknown(problem.of("whether the GPUs can do dma-buf is not known: "))
    unset = Setting(Kind.ENVIRONMENT, "WITH_NVIDIA_PEERMEM", "", "0")
    return finding.failed(
        f"{problem}: no NIC can be opened for a GPU, and the server ends",
        "load nvidia_peermem, and leave WITH_NVIDIA_PEERMEM unset",
        (Setting(Kind.MODULE, "nvidia_peermem", ""), unset),
    )


@or_unknown
def _dma_buf_problem(system: SystemFacts, gpus: GpuFacts) -> str | Unknown | None:
    """Return why GPU memory cannot be exported as dma-buf; None if it can."""
    # The proprietary module never has it, whatever the GPU (NVIDIA open-gpu-kernel-modules).
    if gpus.kernel_module == "proprietary":
        return "the proprietary kernel module exports no dma-buf"
    kernel = system.kernel
    if not isinstance(kernel, Unknown) and kernel < DMA_BUF_KERNEL:
        return f"Linux {kernel[0]}.{kernel[1]} registers no dma-buf"
    abilities = known(gpus.abilities)
    if any(ability.dma_buf is False for ability in abilities):
        return "CUDA says that a GPU has no dma-buf (attribute 124 = 0)"
    if not abilities or any(ability.dma_buf is None for ability in abilities):
        return Unknown("CUDA does not say (attribute 124)")
    return kernel if isinstance(kernel, Unknown) else None
