"""Are the GPUs in use the launch's alone: whole, and their memory free?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Status, command
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds
from checks.base.units import GIB, format_bytes
from checks.base.unknown import Unknown
from checks.gpu.facts import NvmlGpu
from checks.gpu.hardware_use import gpu_processes, physical_gpus, visible_gpus
from checks.run.facts import Facts

CHECKS = CheckSet()

# What a GPU that nobody uses may hold: the driver keeps a few MiB, and up to some hundreds where
# NVML does not count its reserve apart. A CUDA context alone is about half of this.
IDLE_BYTES = GIB
MIG_ON = 1


def _of_launch(facts: Facts, needs: LaunchNeeds | None) -> Mapping[str, NvmlGpu] | Unknown:
    """The GPUs in use, by address as NVML has them; all of the host's without a launch."""
    gpus = facts.gpus
    if isinstance(gpus.nvml, Unknown):
        return gpus.nvml
    if gpus.nvml.error:
        return Unknown(f"NVML: {gpus.nvml.error}")
    all_of = {gpu.address or f"GPU {n}": gpu for n, gpu in enumerate(gpus.nvml.gpus)}
    if needs is None:
        return all_of
    used: dict[str, NvmlGpu] = {}
    for process in gpu_processes(needs):
        visible = visible_gpus(gpus, process)
        if isinstance(visible, Unknown):
            return visible
        if process.gpu is not None and process.gpu < len(visible):
            address = visible[process.gpu]
            used[address] = all_of[address]
    return used


def _gpus_in_use(
    check: str, facts: Facts, needs: LaunchNeeds | None
) -> Mapping[str, NvmlGpu] | Finding:
    """The GPUs to judge one by one, or the one finding that says why there is none."""
    if not facts.gpus.nvidia or physical_gpus(facts.gpus) == ():
        return Finding(check, Status.SKIP, "host", text="no NVIDIA GPU is visible here")
    used = _of_launch(facts, needs)
    if isinstance(used, Unknown):
        return Finding(check, Status.UNKNOWN, "GPUs", text=used.reason)
    if not used:
        return Finding(check, Status.SKIP, "GPUs", text="the launch uses no GPU of this host")
    return used


@CHECKS.declare("gpu.mig", "gpus")
def mig(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "gpu.mig"
    used = _gpus_in_use(check, facts, needs)
    if isinstance(used, Finding):
        return [used]
    return fold(
        Finding(check, Status.PASS, f"GPU {address}", have="MIG off", need="MIG off")
        if gpu.mig != MIG_ON
        else Finding(
            check,
            Status.WARN,
            f"GPU {address}",
            have="MIG on",
            need="MIG off",
            text="CUDA shows a process one instance of it, and never a second device",
            evidence=(Evidence("nvmlDeviceGetMigMode", str(gpu.mig)),),
            advice="turn MIG off for this GPU, once nothing runs on it",
            settings=(command("nvidia-smi", "-i", address, "-mig", "0", as_root=True),),
        )
        for address, gpu in used.items()
    )


@CHECKS.declare("gpu.memory-busy", "gpus")
def memory_busy(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "gpu.memory-busy"
    used = _gpus_in_use(check, facts, needs)
    if isinstance(used, Finding):
        return [used]
    return fold(_busy(check, f"GPU {address}", gpu) for address, gpu in used.items())


def _busy(check: str, subject: str, gpu: NvmlGpu) -> Finding:
    finding = Finding(check, Status.PASS, subject, need=f"at most {format_bytes(IDLE_BYTES)} used")
    if gpu.used_bytes is None or gpu.memory_bytes is None:
        return finding._replace(status=Status.UNKNOWN, text="NVML does not say what is used")
    have = f"{format_bytes(gpu.used_bytes)} of {format_bytes(gpu.memory_bytes)} used"
    running = gpu.processes or 0
    if running:
        have += f" by {running} process{'es' if running > 1 else ''}"
    finding = finding._replace(have=have)
    if gpu.used_bytes <= IDLE_BYTES and not running:
        return finding
    return finding._replace(
        status=Status.WARN,
        text="the KV pool comes out smaller, or the start ends for want of memory",
        evidence=(Evidence("nvmlDeviceGetMemoryInfo used", str(gpu.used_bytes)),),
        advice="see nvidia-smi for what runs there, and end it",
    )
