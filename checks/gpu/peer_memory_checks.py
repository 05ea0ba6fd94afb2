"""Check of the way on which NICs reach GPU memory: peer memory or dma-buf."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown, known, or_unknown
from checks.gpu.facts import DRIVER_VERSION, MEMORY_PEERS, GpuFacts
from checks.system.facts import SystemFacts

CHECKS = CheckSet()

# mooncake-common bool_parser.h: anything else leaves WITH_NVIDIA_PEERMEM at its default, true.
FALSE_WORDS = ("0", "false", "no", "off", "disable")
# ibv_reg_dmabuf_mr needs the RDMA core of Linux 5.12.
DMA_BUF_KERNEL = (5, 12)
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@CHECKS.check("gpu.peer-memory", the_launch)
def peer_memory(needs: LaunchNeeds, gpus: GpuFacts, system: SystemFacts) -> Iterable[Finding]:
    processes = [process for process in needs.processes if registers_gpu_memory(process)]
    if not processes:
        return [passed("launch", "registers no GPU memory")]
    if not passed("launch").known(gpus.nvidia):
        text = "only NVIDIA GPUs are judged here"
        if not gpus.on_pci:
            text = "no GPU is visible here"
        return [skip(text, "launch")]
    return fold(_reach(process, system, gpus) for process in processes)


def registers_gpu_memory(process: ProcessNeeds) -> bool:
    """Return whether a process registers GPU memory for RDMA; how much is known once it runs."""
    amount = process.gpu_registered_bytes
    return process.rdma is not None and (isinstance(amount, Unknown) or amount > 0)


def takes_peer_memory(process: ProcessNeeds) -> bool:
    """Return whether Mooncake registers GPU memory through peer memory, as it does by default."""
    value = process.environment.get("WITH_NVIDIA_PEERMEM", "")
    return value.strip().lower() not in FALSE_WORDS


def _reach(process: ProcessNeeds, system: SystemFacts, gpus: GpuFacts) -> Finding:
    finding = passed(process.name)
    if takes_peer_memory(process):
        finding = _over_peer_memory(finding, system, gpus)
    else:
        finding = _over_dma_buf(finding, system, gpus)
    if finding.status is not Status.PASS:
        return finding
    variable = expandable_segments(process)
    if not variable:
        return finding
    return finding.warned(
        "memory from expandable segments is made of many CUDA allocations: older PyTorch does "
        "not make them fit for RDMA, and EFA and older Mooncake (before #3538) refuse them",
        f"remove expandable_segments from {variable} for this process",
        (
            Setting(
                Kind.ENVIRONMENT,
                variable,
                _without_expandable(process.environment[variable]),
                process.environment[variable],
            ),
        ),
    )


def expandable_segments(process: ProcessNeeds) -> str:
    """Return the variable that turns PyTorch's expandable segments on, "" if none does."""
    for name in ALLOCATOR_VARIABLES:
        for entry in process.environment.get(name, "").split(","):
            key, _, value = entry.partition(":")
            if key.strip() == "expandable_segments" and value.strip().lower() in ("true", "1"):
                return name
    return ""


def _without_expandable(value: str) -> str:
    entries = [entry for entry in value.split(",") if "expandable_segments" not in entry]
    return ",".join(entries)


def _over_peer_memory(finding: Finding, system: SystemFacts, gpus: GpuFacts) -> Finding:
    finding = finding._replace(need="nvidia_peermem loaded (WITH_NVIDIA_PEERMEM is on)")
    modules, clients = gpus.peer_modules, gpus.memory_peers
    seen = [*_known(modules), *_known(clients)]
    evidence = (
        Evidence("/proc/modules", ", ".join(_known(modules)) or "no nvidia_peermem"),
        Evidence(MEMORY_PEERS, ", ".join(_known(clients)) or "no client"),
    )
    finding = finding._replace(evidence=evidence)
    if seen:
        return finding._replace(have=f"{seen[0]} loaded")
    for fact in (modules, clients):
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


def _known(names: tuple[str, ...] | Unknown) -> tuple[str, ...]:
    return () if isinstance(names, Unknown) else names


def _over_dma_buf(finding: Finding, system: SystemFacts, gpus: GpuFacts) -> Finding:
    finding = finding._replace(
        need="dma-buf: open kernel module, Linux 5.12 (WITH_NVIDIA_PEERMEM=0)"
    )
    problem = _dma_buf_problem(system, gpus)
    have = f"{gpus.kernel_module} kernel module" if isinstance(gpus.kernel_module, str) else ""
    finding = finding._replace(
        have=have, evidence=(Evidence(DRIVER_VERSION, str(gpus.kernel_module_version)),)
    )
    if problem is None:
        return finding._replace(have=f"{have}, attribute 124 = 1")
    if isinstance(problem, Unknown):
        return finding.unknown(problem.of("whether the GPUs can do dma-buf is not known: "))
    return finding.failed(
        f"{problem}: no NIC can be opened for a GPU, and the server ends",
        "load nvidia_peermem, and leave WITH_NVIDIA_PEERMEM unset",
        (
            Setting(Kind.MODULE, "nvidia_peermem", ""),
            Setting(Kind.ENVIRONMENT, "WITH_NVIDIA_PEERMEM", "", "0"),
        ),
    )


@or_unknown
def _dma_buf_problem(system: SystemFacts, gpus: GpuFacts) -> str | Unknown | None:
    """Return why GPU memory cannot be exported as dma-buf; None where it can."""
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
