"""Checks of the PCIe way between GPUs, NICs and memory: link width, ACS, IOMMU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Kind, Setting, Status, command
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.gpu.hardware_use import gpu_function, nics_in_use
from checks.pci.facts import Function
from checks.pci.gpus import PCI_DEVICES
from checks.pci.paths import bridges_between
from checks.run.facts import Facts

CHECKS = CheckSet()

# ACS control (PCI Express Base Specification): what sends a transfer between two devices below one
# switch up to the root complex. Bit 2: requests, 3: completions, 4: upstream forwarding.
ACS_REDIRECTS = 0b11100
TRANSLATING = ("DMA", "DMA-FQ")
PASS_THROUGH = ("identity", "none")


def _used(facts: Facts, needs: LaunchNeeds | None) -> dict[str, Function] | Unknown:
    """GPUs and NICs in use by what they are called; all of the host's without a launch."""
    pci = facts.pci
    if needs is None:
        for fact in (pci.accelerators, facts.rdma.nics):
            if isinstance(fact, Unknown):
                return fact
        assert isinstance(pci.accelerators, tuple)
        found = {f"GPU {gpu.address}": gpu for gpu in pci.accelerators}
        return found | {f"NIC {name}": nic for name, nic in pci.nics.items()}
    used: dict[str, Function] = {}
    for process in needs.processes:
        if process.gpu is not None:
            gpu = gpu_function(facts, process)
            # gpu.count says what is wrong with the GPUs themselves.
            if isinstance(gpu, Function):
                used[f"GPU {gpu.address}"] = gpu
            elif isinstance(gpu, Unknown) and not _silent(facts):
                return gpu
    names = nics_in_use(facts, needs)
    if isinstance(names, Unknown):
        return names
    for name in names:
        if name in pci.nics:
            used[f"NIC {name}"] = pci.nics[name]
            continue
        nic = next((nic for nic in facts.rdma.present if nic.name == name), None)
        if nic is not None and isinstance(nic.pci_address, Unknown):
            return nic.pci_address
    return used


def _silent(facts: Facts) -> bool:
    """Whether the driver's library tells of no GPU at all, which the checks of GPUs judge."""
    nvml = facts.gpus.nvml
    return isinstance(nvml, Unknown) or bool(nvml.error)


def _each(check: str, facts: Facts, needs: LaunchNeeds | None) -> Mapping[str, Function] | Finding:
    used = _used(facts, needs)
    if isinstance(used, Unknown):
        return Finding(check, Status.UNKNOWN, "PCI", text=used.reason)
    if not used:
        what = "the host has" if needs is None else "the launch uses"
        return Finding(check, Status.SKIP, "PCI", text=f"{what} no GPU and no NIC on PCI here")
    return used


@CHECKS.declare("pci.link-degraded", "pci", "rdma", "gpus")
def link_degraded(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "pci.link-degraded"
    used = _each(check, facts, needs)
    if isinstance(used, Finding):
        return [used]
    return fold(_link(check, subject, function, facts) for subject, function in used.items())


def _link(check: str, subject: str, function: Function, facts: Facts) -> Finding:
    finding = Finding(check, Status.UNKNOWN, subject)
    link = function.link
    if isinstance(link.width, Unknown) or isinstance(link.max_width, Unknown):
        missing = link.width if isinstance(link.width, Unknown) else link.max_width
        assert isinstance(missing, Unknown)
        status = Status.SKIP if missing.absent else Status.UNKNOWN
        return finding._replace(status=status, text=missing.reason)
    most = link.max_width
    bridge = facts.pci.bridges.get(function.parents[-1]) if function.parents else None
    formula = f"the device's x{most}"
    if bridge is not None and isinstance(bridge.link.max_width, int):
        most = min(most, bridge.link.max_width)
        formula += f", the x{bridge.link.max_width} of {bridge.address} above it"
    speeds = [speed for speed in (link.speed, link.max_speed) if isinstance(speed, str)]
    have = f"x{link.width}"
    if len(speeds) == 2:
        have += f" at {speeds[0].split(' PCIe')[0]} of {speeds[1].split(' PCIe')[0]}"
    finding = finding._replace(
        status=Status.PASS,
        have=have,
        need=f"x{most}",
        formula=formula,
        evidence=(
            Evidence(f"{PCI_DEVICES}/{function.address}/current_link_width", str(link.width)),
        ),
    )
    if link.width >= most:
        return finding
    return finding._replace(
        status=Status.WARN,
        text=f"{link.width} of {most} lanes: at most {link.width / most:.0%} of the bandwidth",
        advice="reseat the card or its riser, and look for AER lines about it in dmesg",
    )


@CHECKS.declare("pci.acs", "pci", "rdma", "gpus")
def acs(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "pci.acs"
    used = _each(check, facts, needs)
    if isinstance(used, Finding):
        return [used]
    gpus = [function for subject, function in used.items() if subject.startswith("GPU ")]
    nics = [function for subject, function in used.items() if subject.startswith("NIC ")]
    between = dict.fromkeys(
        bridge for gpu in gpus for nic in nics for bridge in bridges_between(gpu.place, nic.place)
    )
    if not between:
        text = "no GPU and NIC in use share a PCIe switch"
        return [Finding(check, Status.SKIP, "PCI", text=text)]
    if facts.pci.direct_nic:
        text = "a Direct NIC platform needs ACS on (see rdma_topo of rdma-core)"
        return [Finding(check, Status.SKIP, "PCI", text=text)]
    missing = Unknown("its configuration space was not read")
    return fold(_redirects(check, bridge, facts.pci.acs.get(bridge, missing)) for bridge in between)


def _redirects(check: str, bridge: str, control: int | Unknown | None) -> Finding:
    finding = Finding(check, Status.PASS, f"bridge {bridge}", need="no redirection")
    if isinstance(control, Unknown):
        return finding._replace(status=Status.UNKNOWN, text=control.reason)
    if control is None:
        return finding._replace(have="no ACS")
    evidence = (Evidence(f"ACS control of {bridge}", f"0x{control:04x}"),)
    finding = finding._replace(evidence=evidence, have=f"ACS control 0x{control:04x}")
    if not control & ACS_REDIRECTS:
        return finding
    cleared = control & ~ACS_REDIRECTS
    return finding._replace(
        status=Status.WARN,
        text="transfers between a NIC and a GPU below this switch go up to the CPU and back",
        advice="turn ACS off in the firmware; until the next boot, on the host, as printed",
        settings=(
            command(
                "setpci",
                "-s",
                bridge,
                f"ECAP_ACS+0x6.w={cleared:04x}",
                name=f"ACS control of {bridge}",
                now=f"{control:04x}",
                as_root=True,
            ),
        ),
    )


@CHECKS.declare("pci.iommu", "pci", "rdma", "gpus")
def iommu(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "pci.iommu"
    used = _each(check, facts, needs)
    if isinstance(used, Finding):
        return [used]
    arm = not isinstance(facts.pci.iommus, Unknown) and any(
        name.startswith(("smmu", "arm-smmu")) for name in facts.pci.iommus
    )
    return fold(_mode(check, subject, function, facts, arm) for subject, function in used.items())


def _mode(check: str, subject: str, function: Function, facts: Facts, arm: bool) -> Finding:
    finding = Finding(check, Status.PASS, subject, need="identity, or no IOMMU")
    mode = function.iommu
    if isinstance(mode, Unknown):
        return finding._replace(status=Status.UNKNOWN, text=mode.reason)
    finding = finding._replace(
        have="no IOMMU" if mode == "none" else mode,
        evidence=(Evidence("type of its group in /sys/kernel/iommu_groups", mode),),
    )
    if mode in PASS_THROUGH:
        return finding
    if mode not in TRANSLATING:
        return finding._replace(status=Status.UNKNOWN, text=f"{mode!r} is no type known here")
    name, wanted = ("iommu.passthrough", "1") if arm else ("iommu", "pt")
    return finding._replace(
        status=Status.WARN,
        text="every DMA is translated: slower transfers and registration",
        advice=f"boot the host with {name}={wanted}",
        settings=(
            Setting(Kind.KERNEL_ARGUMENT, name, wanted, _argument(facts.pci.command_line, name)),
        ),
    )


def _argument(command_line: str | Unknown, name: str) -> str:
    """What the kernel's command line says of ``name``, "" for nothing."""
    words = [] if isinstance(command_line, Unknown) else command_line.split()
    values = [word.partition("=")[2] for word in words if word.partition("=")[0] == name]
    return values[-1] if values else ""
