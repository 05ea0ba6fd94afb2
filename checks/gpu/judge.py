"""Checks of the GPUs themselves: does the driver answer, and are there as many as ranks?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, passed, skip
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.gpu.facts import DRIVER_VERSION, GpuFacts
from checks.gpu.hardware_use import gpu_processes, physical_gpus, visible_gpus, visible_setting

CHECKS = CheckSet()

# nvmlReturn_t codes after which no CUDA program starts either (nvml.h).
DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH = 9, 15, 18
NVML_ERRORS = {
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    GPU_IS_LOST: "GPU is lost",
    VERSION_MISMATCH: "Driver/library version mismatch",
}


@CHECKS.check("gpu.driver")
def driver(gpus: GpuFacts) -> Iterable[Finding]:
    if not gpus.nvidia and gpus.kernel_module == "":
        return [skip("no NVIDIA GPU is visible here")]
    finding = passed("NVIDIA driver", need="an answer of NVML")
    nvml = finding.known(gpus.nvml)
    if not nvml.error:
        kind = gpus.kernel_module if isinstance(gpus.kernel_module, str) else ""
        words = [nvml.driver, f"{kind} kernel module" if kind else ""]
        return [finding._replace(have=", ".join(filter(None, words)))]
    text = NVML_ERRORS.get(nvml.code, nvml.error)
    evidence = [Evidence("nvmlInit", f"{nvml.code}: {nvml.error}")]
    if isinstance(gpus.kernel_module_version, str) and gpus.kernel_module_version:
        evidence.append(Evidence(DRIVER_VERSION, gpus.kernel_module_version))
    finding = finding._replace(have=text, evidence=tuple(evidence))
    if nvml.code not in NVML_ERRORS:
        text = f"NVML gives no answer ({text}), so nothing is known of the GPUs"
        return [finding.unknown(text)]
    advice = {
        VERSION_MISMATCH: "reboot, or unload and load the nvidia modules, so that module and "
        "library are of one version",
        DRIVER_NOT_LOADED: "load the driver: modprobe nvidia",
        GPU_IS_LOST: "reset or power-cycle the GPU; see the Xid lines in dmesg",
    }[nvml.code]
    settings = (Setting(Kind.MODULE, "nvidia", ""),) if nvml.code == DRIVER_NOT_LOADED else ()
    return [finding.failed(f"no CUDA program starts: {text}", advice, settings)]


@CHECKS.check("gpu.count", the_launch)
def count(needs: LaunchNeeds, gpus: GpuFacts) -> Iterable[Finding]:
    processes = gpu_processes(needs)
    if not processes:
        return [passed("launch", "uses no GPU")]
    groups: dict[str | None, list[ProcessNeeds]] = {}
    for process in processes:
        setting = passed("launch").known(visible_setting(gpus, process))
        groups.setdefault(setting, []).append(process)
    return [_count_of(group, setting, gpus) for setting, group in groups.items()]


def _count_of(processes: list[ProcessNeeds], setting: str | None, gpus: GpuFacts) -> Finding:
    highest = max(process.gpu for process in processes if process.gpu is not None)
    subject = "launch" if setting is None else f"CUDA_VISIBLE_DEVICES={setting}"
    finding = passed(
        subject,
        need=f"{highest + 1} GPU{'s' if highest else ''}",
        formula=f"highest GPU index {highest} + 1, of {len(processes)} ranks",
    ).unknown("")
    visible, physical = visible_gpus(gpus, processes[0]), physical_gpus(gpus)
    if isinstance(visible, Unknown):
        return finding._replace(text=f"which GPUs are visible is not known: {visible.reason}")
    assert not isinstance(physical, Unknown)
    found = len(visible)
    finding = finding._replace(have=f"{found} visible" if found else "none visible")
    if found > highest:
        return finding._replace(status=Status.PASS)
    finding = finding.failed(
        "ranks without a GPU end with CUDA error: invalid device ordinal"
        if found
        else "no CUDA device is available to any rank",
        evidence=(Evidence("GPUs that this process may use", ", ".join(physical) or "none"),),
    )
    if setting is not None and len(physical) > highest:
        wanted = ",".join(str(index) for index in range(highest + 1))
        return finding._replace(
            advice=f"let CUDA_VISIBLE_DEVICES name {highest + 1} of the {len(physical)} GPUs",
            settings=(Setting(Kind.ENVIRONMENT, "CUDA_VISIBLE_DEVICES", wanted, setting),),
        )
    if len(gpus.on_pci) > max(len(physical), highest):
        advice = f"give the container more of the host's {len(gpus.on_pci)} GPUs (docker --gpus)"
        return finding._replace(advice=advice)
    return finding._replace(advice="use fewer ranks on this host, or a host with more GPUs")
