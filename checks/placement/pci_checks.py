"""Checks of the PCIe way between GPUs, NICs and memory: link width, ACS, IOMMU."""

from collections.abc import Iterable
from typing import NamedTuple

from checks.framework.device_nodes import PCI_DEVICES
from checks.framework.finding import (
    Evidence,
    Finding,
    Kind,
    Setting,
    Subject,
    UnjudgedError,
    command,
    or_unjudged,
    passed,
    skip,
)
from checks.framework.fold import fold
from checks.framework.needs import LaunchNeeds
from checks.framework.problem import Problems
from checks.framework.unknown import Unknown, must_be_read
from checks.gpu.facts import GpuFacts
from checks.gpu.hardware_use import gpu_function, gpu_processes, nics_in_use
from checks.pci.facts import PciFacts, PciFunction, bridges_between
from checks.rdma.facts import RdmaFacts

CHECKS = Problems()

# ACS control (PCI Express Base Specification): what sends a transfer between two devices below one
# switch up to the root complex. Bit 2: requests, 3: completions, 4: upstream forwarding.
ACS_REDIRECTS = 0b11100
TRANSLATING = ("DMA", "DMA-FQ")
PASS_THROUGH = ("identity", "none")


class _PciDevices(NamedTuple):
    """GPUs by address and NICs by name: those in use, all of the host's without a launch."""

    gpus: dict[str, PciFunction]
    nics: dict[str, PciFunction]

    @property
    def subjects(self) -> dict[str, PciFunction]:
        """Each device by the subject of its findings, GPUs first."""
        subjects: dict[str, PciFunction] = {}
        subjects |= {Subject(f"GPU {address}", "gpu"): gpu for address, gpu in self.gpus.items()}
        return subjects | {Subject(f"NIC {name}", "device"): nic for name, nic in self.nics.items()}


def _pci_devices_in_use(
    pci: PciFacts, gpus: GpuFacts, rdma: RdmaFacts, needs: LaunchNeeds | None
) -> _PciDevices:
    """Return the GPUs and NICs on PCI that the launch uses; all of the host's without a launch.

    Raises:
        UnjudgedError: If no device is in use, or if the devices are not known.
    """
    must_be_read(pci)
    finding = passed("PCI")
    if needs is None:
        accelerators = {gpu.address: gpu for gpu in finding.require(pci.accelerators)}
        used = _PciDevices(accelerators, dict(pci.nics))
        finding.require(rdma.nics)
    else:
        used = _PciDevices({}, {})
        # gpu.count says what is wrong with the GPUs themselves, and with a silent library.
        silent = isinstance(gpus.nvml, Unknown) or bool(gpus.nvml.error)
        for process in gpu_processes(needs):
            gpu = gpu_function(gpus, process)
            if isinstance(gpu, Unknown) and not silent:
                finding.require(gpu)
            if isinstance(gpu, PciFunction):
                used.gpus[gpu.address] = gpu
        for name in finding.require(nics_in_use(rdma, needs)):
            if name in pci.nics:
                used.nics[name] = pci.nics[name]
                continue
            for nic in rdma.present:
                if nic.name == name:
                    finding.require(nic.pci_address)
    if not used.gpus and not used.nics:
        what = "the host has" if needs is None else "the launch uses"
        raise UnjudgedError(skip(f"{what} no GPU and no NIC on PCI here", "PCI"))
    return used


@CHECKS("pci.link-degraded")
def link_degraded(
    needs: LaunchNeeds | None, pci: PciFacts, rdma: RdmaFacts, gpus: GpuFacts
) -> Iterable[Finding]:
    used = _pci_devices_in_use(pci, gpus, rdma, needs)
    return fold(_judge_link(subject, function, pci) for subject, function in used.subjects.items())


@or_unjudged
def _judge_link(subject: str, function: PciFunction, pci: PciFacts) -> Finding:
    """Judge whether a PCIe link uses all lanes that both the device and the bridge above have."""
    finding = passed(subject)
    link = function.link
    unread = [fact for fact in (link.width, link.max_width) if isinstance(fact, Unknown)]
    if unread and unread[0].absent:
        return finding.skipped(unread[0].reason)
    width, most = finding.require(link.width), finding.require(link.max_width)
    bridge = pci.bridges.get(function.parents[-1]) if function.parents else None
    formula = f"the device's x{most}"
    if bridge is not None and isinstance(bridge.link.max_width, int):
        most = min(most, bridge.link.max_width)
        formula += f", the x{bridge.link.max_width} of {bridge.address} above it"
    speeds = [speed for speed in (link.speed, link.max_speed) if isinstance(speed, str)]
    have = f"x{width}"
    if len(speeds) == 2:
        have += f" at {speeds[0].split(' PCIe')[0]} of {speeds[1].split(' PCIe')[0]}"
    evidence = (Evidence(f"{PCI_DEVICES}/{function.address}/current_link_width", str(width)),)
    finding = passed(subject, have, f"x{most}", formula, evidence=evidence)
    if width >= most:
        return finding
    return finding.warned(
        f"{width} of {most} lanes: at most {width / most:.0%} of the bandwidth",
        "reseat the card or its riser, and look for AER lines about it in dmesg",
    )


@CHECKS("pci.acs")
def acs(
    needs: LaunchNeeds | None, pci: PciFacts, rdma: RdmaFacts, gpus: GpuFacts
) -> Iterable[Finding]:
    """Judge whether ACS sends transfers between GPU and NIC up to the CPU."""
    used = _pci_devices_in_use(pci, gpus, rdma, needs)
    pairs = [(gpu, nic) for gpu in used.gpus.values() for nic in used.nics.values()]
    between = dict.fromkeys(bridge for pair in pairs for bridge in bridges_between(*pair))
    if not between:
        return [skip("no GPU and NIC in use share a PCIe switch", "PCI")]
    if pci.direct_nic:
        return [skip("a Direct NIC platform needs ACS on (see rdma_topo of rdma-core)", "PCI")]
    missing = Unknown("its configuration space was not read")
    return fold(_judge_acs(bridge, pci.acs.get(bridge, missing)) for bridge in between)


@or_unjudged
def _judge_acs(bridge: str, control: int | Unknown | None) -> Finding:
    """Judge ACS of one bridge; warn if it redirects.

    Args:
        control: ACS register, None without ACS.
    """
    finding = passed(f"bridge {bridge}", need="no redirection")
    bits = finding.require(control)
    if bits is None:
        return finding._replace(have="no ACS")
    evidence = (Evidence(f"ACS control of {bridge}", f"0x{bits:04x}"),)
    finding = finding._replace(evidence=evidence, have=f"ACS control 0x{bits:04x}")
    if not bits & ACS_REDIRECTS:
        return finding
    call = ("setpci", "-s", bridge, f"ECAP_ACS+0x6.w={bits & ~ACS_REDIRECTS:04x}")
    label = f"ACS control of {bridge}"
    clear = command(*call, name=label, now=f"{bits:04x}", as_root=True)
    return finding.warned(
        "transfers between a NIC and a GPU below this switch go up to the CPU and back",
        "turn ACS off in the firmware; or run the printed command on the host at each boot",
        (clear,),
    )


@CHECKS("pci.iommu")
def iommu(
    needs: LaunchNeeds | None, pci: PciFacts, rdma: RdmaFacts, gpus: GpuFacts
) -> Iterable[Finding]:
    """Judge whether an IOMMU translates the DMA of each device."""
    used = _pci_devices_in_use(pci, gpus, rdma, needs)
    arm = not isinstance(pci.iommus, Unknown) and any(
        name.startswith(("smmu", "arm-smmu")) for name in pci.iommus
    )
    return fold(_judge_iommu(name, function, pci, arm) for name, function in used.subjects.items())


@or_unjudged
def _judge_iommu(subject: str, function: PciFunction, pci: PciFacts, arm: bool) -> Finding:
    """Judge the IOMMU mode of one device: warn if it translates.

    Args:
        arm: The host has Arm's IOMMU.
    """
    finding = passed(subject, need="identity, or no IOMMU")
    mode = finding.require(function.iommu)
    finding = finding._replace(
        have="no IOMMU" if mode == "none" else mode,
        evidence=(Evidence("type of its group in /sys/kernel/iommu_groups", mode),),
    )
    if mode in PASS_THROUGH:
        return finding
    if mode not in TRANSLATING:
        return finding.undecided(f"{mode!r} is no type known here")
    name, wanted = ("iommu.passthrough", "1") if arm else ("iommu", "pt")
    arguments = [] if isinstance(pci.command_line, Unknown) else pci.command_line.split()
    values = [word.partition("=")[2] for word in arguments if word.partition("=")[0] == name]
    return finding.warned(
        "every DMA is translated: slower transfers and registration",
        f"boot the host with {name}={wanted}",
        (Setting(Kind.KERNEL_ARGUMENT, name, wanted, (values[-1] if values else "")),),
    )
