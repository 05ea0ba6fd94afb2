"""Are the GPUs in use the launch's alone: whole, and their memory free?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checks.base.check import CheckSet, any_launch
from checks.base.finding import (
    Evidence,
    Finding,
    UnjudgedError,
    command,
    passed,
    skip,
)
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds
from checks.base.units import GIB, format_bytes
from checks.base.unknown import Unknown, known, or_unknown
from checks.gpu.facts import GpuFacts, NvmlGpu
from checks.gpu.hardware_use import gpu_processes, physical_gpus, visible_gpus

CHECKS = CheckSet()

# What a GPU that nobody uses may hold: the driver keeps a few MiB, and up to some hundreds where
# NVML does not count its reserve apart. A CUDA context alone is about half of this.
IDLE_BYTES = GIB
MIG_ON = 1


@or_unknown
def _of_launch(gpus: GpuFacts, needs: LaunchNeeds | None) -> Mapping[str, NvmlGpu] | Unknown:
    """The GPUs in use, by address as NVML has them; all of the host's without a launch."""
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
    """Return the GPUs to judge one by one; raise why there is none."""
    if not gpus.nvidia or physical_gpus(gpus) == ():
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
            "CUDA shows a process one instance of it, and never a second device",
            "turn MIG off for this GPU, once nothing runs on it",
            (command("nvidia-smi", "-i", address, "-mig", "0", as_root=True),),
        )
        for address, gpu in _gpus_in_use(gpus, needs).items()
    )


@CHECKS.check("gpu.memory-busy", any_launch)
def memory_busy(needs: LaunchNeeds | None, gpus: GpuFacts) -> Iterable[Finding]:
    return fold(_busy(f"GPU {address}", gpu) for address, gpu in _gpus_in_use(gpus, needs).items())


def _busy(subject: str, gpu: NvmlGpu) -> Finding:
    finding = passed(subject, need=f"at most {format_bytes(IDLE_BYTES)} used")
    if gpu.used_bytes is None or gpu.memory_bytes is None:
        return finding.unknown("NVML does not say what is used")
    have = f"{format_bytes(gpu.used_bytes)} of {format_bytes(gpu.memory_bytes)} used"
    running = gpu.processes or 0
    if running:
        have += f" by {running} process{'es' if running > 1 else ''}"
    finding = finding._replace(have=have)
    if gpu.used_bytes <= IDLE_BYTES and not running:
        return finding
    return finding.warned(
        "the KV pool comes out smaller, or the start ends for want of memory",
        "see nvidia-smi for what runs there, and end it",
        evidence=(Evidence("nvmlDeviceGetMemoryInfo used", str(gpu.used_bytes)),),
    )
