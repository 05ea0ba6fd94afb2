"""Check of NVLink between hosts: the IMEX channel, where the launch comes to need one."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, skip
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.gpu.facts import IMEX_CHANNELS, GpuFacts
from checks.run.facts import Facts

CHECKS = CheckSet()

# Models whose racks join GPUs of several hosts over NVLink.
MULTI_NODE_NVLINK = ("GB200", "GB300")


@CHECKS.declare("gpu.imex", "gpus", "rdma")
def imex(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "gpu.imex"
    if needs is None:
        return [skip(check)]
    forced = any("MC_FORCE_MNNVL" in process.environment for process in needs.processes)
    silent = needs.rdma_processes and _rack_scale(facts.gpus) and facts.rdma.nics == ()
    if not forced and not silent:
        text = "the launch moves nothing over NVLink between hosts"
        return [Finding(check, Status.SKIP, "launch", text=text)]
    channels = facts.gpus.imex_channels
    finding = Finding(check, Status.PASS, "IMEX channels", need="1 channel")
    if isinstance(channels, Unknown):
        return [finding._replace(status=Status.UNKNOWN, text=channels.reason)]
    if channels:
        return [finding._replace(have=", ".join(channels))]
    node = f"{IMEX_CHANNELS}/channel0"
    return [
        finding._replace(
            status=Status.WARN,
            have="none",
            evidence=(Evidence(IMEX_CHANNELS, "absent or empty"),),
            text="MC_FORCE_MNNVL asks for NVLink, over which no transfer succeeds without one"
            if forced
            else "without an RDMA device Mooncake goes over NVLink in silence, which needs one",
            advice="start nvidia-imex and map the channel into the container",
            settings=(Setting(Kind.DEVICE, node, node),),
        )
    ]


def _rack_scale(gpus: GpuFacts) -> bool:
    if isinstance(gpus.nvml, Unknown):
        return False
    return any(word in (gpu.name or "") for gpu in gpus.nvml.gpus for word in MULTI_NODE_NVLINK)
