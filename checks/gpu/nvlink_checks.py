"""Check of NVLink between hosts: the IMEX channel, where the launch comes to need one."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, the_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, passed, skip
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.gpu.facts import IMEX_CHANNELS, GpuFacts
from checks.rdma.facts import RdmaFacts

CHECKS = CheckSet()

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
        return [finding.unknown(channels.reason)]
    if channels:
        return [finding._replace(have=", ".join(channels))]
    node = f"{IMEX_CHANNELS}/channel0"
    return [
        finding.warned(
            "MC_FORCE_MNNVL asks for NVLink, over which no transfer succeeds without one"
            if forced
            else "without an RDMA device Mooncake goes over NVLink in silence, which needs one",
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
