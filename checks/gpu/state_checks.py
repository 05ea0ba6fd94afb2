"""Checks of how the GPUs are: whole (MIG), free, and joined by NVLink where the launch asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checks.base.check import CheckSet, any_launch, the_launch
from checks.base.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    UnjudgedError,
    command,
    passed,
    skip,
)
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds
from checks.base.units import GIB, Quantity, format_bytes
from checks.base.unknown import Unknown, known, or_unknown
from checks.gpu.facts import IMEX_CHANNELS, GpuFacts, NvmlGpu
from checks.gpu.hardware_use import gpu_processes, physical_gpus, visible_gpus
from checks.rdma.facts import RdmaFacts

CHECKS = CheckSet()

# What a GPU that nobody uses may hold: the driver keeps a few MiB, and up to some hundreds where
# NVML does not count its reserve apart. A CUDA context alone is about half of this.
IDLE_BYTES = GIB
MIG_ON = 1


@or_unknown
def _of_launch(gpus: GpuFacts, needs: LaunchNeeds | None) -> Mapping[str, NvmlGpu] | Unknown:
    """Return the GPUs in use, by address as NVML has them; all of the host's without a launch."""
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
    """Return the GPUs to judge one by one. Raises UnjudgedError where there is none."""
    if not passed("GPUs").known(gpus.nvidia) or physical_gpus(gpus) == ():
        raise UnjudgedError(skip("no NVIDIA GPU is visible here"))
    used = passed("GPUs").known(_of_launch(gpus, needs))
    if not used:
        raise UnjudgedError(skip("the launch uses no GPU of this host", "GPUs"))
    return used


@CHECKS.check("gpu.mig", any_launch)
def mig(needs: LaunchNeeds | None, gpus: GpuFacts) -> Iterable[Finding]:
    return fold(
        passed(f"GPU {address}", "MIG off", "MIG off")
        if gpu.mig != MIG_ON
        else passed(
            f"GPU {address}",
            "MIG on",
            "MIG off",
            evidence=(Evidence("nvmlDeviceGetMigMode", str(gpu.mig)),),
        ).warned(
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
    forced = any("MC_FORCE_MNNVL" in process.environment for process in needs.processes)
    silent = needs.rdma_processes and _rack_scale(gpus) and rdma.nics == ()
    if not forced and not silent:
        text = "the launch moves nothing over NVLink between hosts"
        return [skip(text, "launch")]
    channels = gpus.imex_channels
    finding = passed("IMEX channels", need="1 channel")
    if isinstance(channels, Unknown):
        return [finding.unknown(channels)]
    if channels:
        return [finding._replace(have=", ".join(channels))]
    node = f"{IMEX_CHANNELS}/channel0"
    return [
        finding.warned(
            "MC_FORCE_MNNVL asks for NVLink, and without an IMEX channel no transfer succeeds"
            if forced
            else "without an RDMA device Mooncake uses NVLink, which needs an IMEX channel",
            "start nvidia-imex and map the channel into the container",
            (Setting(Kind.DEVICE, node, node),),
            have="none",
            evidence=(Evidence(IMEX_CHANNELS, "absent or empty"),),
        )
    ]


def _rack_scale(gpus: GpuFacts) -> bool:
    if isinstance(gpus.nvml, Unknown):
        return False
    return any(word in (gpu.name or "") for gpu in gpus.nvml.gpus for word in MULTI_NODE_NVLINK)
