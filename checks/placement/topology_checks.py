"""Checks of Mooncake's own choice of NICs against what PCI says."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, any_launch
from checks.base.finding import Evidence, Finding, Status, skip, unknown
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.gpu.facts import GpuFacts
from checks.gpu.hardware_use import nics_of, visible_gpus
from checks.numa.facts import NumaFacts
from checks.pci.facts import PciFacts
from checks.pci.paths import PathClass
from checks.placement.mooncake_topology import ANY_PROCESS, View, predicted
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import MooncakeRelease, release_of

CHECKS = CheckSet()
SHOWN_NICS = 4


@CHECKS.check("topology.mooncake-view", any_launch)
def mooncake_view(
    needs: LaunchNeeds | None, gpus: GpuFacts, numa: NumaFacts, pci: PciFacts, rdma: RdmaFacts
) -> Iterable[Finding]:
    if needs is None:
        return _of_host(numa, pci, gpus, rdma)
    release = release_of(needs.mooncake_version)
    found = []
    for process in registering(needs):
        assert process.gpu is not None
        finding = unknown(process.name, "")
        view = predicted(numa, pci, gpus, rdma, process, release)
        names = nics_of(rdma, needs, process)
        if isinstance(view, Unknown) or isinstance(names, Unknown):
            found.append(finding._replace(text=_reason(view, names)))
        else:
            found.append(judge_gpu(finding, pci, view, process.gpu, names, release))
    return fold(found) or [skip("no process registers memory of a GPU over RDMA", "launch")]


def _of_host(numa: NumaFacts, pci: PciFacts, gpus: GpuFacts, rdma: RdmaFacts) -> list[Finding]:
    """Every GPU that this process may use, with all NICs."""
    visible = visible_gpus(gpus, ANY_PROCESS)
    finding = unknown("host", "")
    if isinstance(visible, Unknown):
        return [finding._replace(text=visible.reason)]
    if not visible:
        return [skip("no GPU is visible here")]
    view = predicted(numa, pci, gpus, rdma, ANY_PROCESS, None)
    names = devices_in_use(rdma, ANY_PROCESS).names
    if isinstance(view, Unknown) or isinstance(names, Unknown):
        return [finding._replace(text=_reason(view, names))]
    if not names:
        return [skip("no NIC of this host is usable")]
    return fold(
        [
            judge_gpu(finding._replace(subject=f"GPU {index}"), pci, view, index, names, None)
            for index in range(len(visible))
        ]
    )


def _reason(*values: object) -> str:
    return next(value.reason for value in values if isinstance(value, Unknown))


def judge_gpu(
    finding: Finding,
    pci: PciFacts,
    view: View,
    gpu: int,
    names: tuple[str, ...],
    release: MooncakeRelease | None,
) -> Finding:
    """``finding`` of GPU number ``gpu`` of ``view``, whose NICs in use are ``names``."""
    finding = finding._replace(need="the nearest NIC in use preferred")
    if isinstance(view.gpus, Unknown):
        return finding.unknown(view.gpus.reason)
    place = view.at(f"cuda:{gpu}")
    if gpu >= len(view.gpus):
        text = "its GPU is not visible, as gpu.count says"
        return finding.skipped(text)
    if not names:
        return finding.skipped("no NIC of this host is usable to it")
    if len(names) == 1:
        return finding._replace(status=Status.PASS, have=f"{names[0]} alone")
    # Without an entry (MC_CUSTOM_TOPO_JSON) memory of the GPU may go through any NIC.
    first = names if place is None else place.first
    if isinstance(first, Unknown):
        return finding.unknown(first.reason)
    address = view.gpus[gpu]
    paths = {name: pci.paths.get((address, name)) for name in names}
    known = {name: path for name, path in paths.items() if isinstance(path, PathClass)}
    far = max((known[name] for name in first if name in known), default=None)
    near = min(known.values(), default=None)
    finding = finding._replace(have=f"{_listed(first, known)} preferred")
    unknown = [path for path in paths.values() if isinstance(path, Unknown)]
    if far is None or near is None or (unknown and far is not PathClass.PIX and far == near):
        reason = unknown[0].reason if unknown else f"none of {', '.join(names)} is a PCI device"
        return finding.unknown(f"how far they are: {reason}")
    if far == near:
        return finding._replace(status=Status.PASS)
    nearest = tuple(name for name in names if known.get(name) == near)
    farther = tuple(name for name in first if name in known and known[name] > near)
    old = release is not None and not release.looks_at_nodes and far is PathClass.SYS
    newer = "Mooncake 0.3.8 and later look at the node first; or " if old else ""
    return finding.warned(
        f"Mooncake takes {_listed(farther, known)} for its memory, though "
        f"{_listed(nearest, known)} is in use",
        f"{newer}name {', '.join(nearest[:SHOWN_NICS])} for it, or give its location in a "
        "file for MC_CUSTOM_TOPO_JSON",
        evidence=(
            Evidence("PCI address of its GPU", address),
            *(
                Evidence(f"PCI address of {name}", pci.nics[name].address)
                for name in (*farther[:2], *nearest[:2])
            ),
        ),
    )


def _listed(names: Iterable[str], known: dict[str, PathClass]) -> str:
    """``mlx5_0 PIX, mlx5_1 PIX``."""
    words = [f"{name} {known[name].name}" if name in known else name for name in names]
    more = f" and {len(words) - SHOWN_NICS} more" if len(words) > SHOWN_NICS else ""
    return ", ".join(words[:SHOWN_NICS]) + more


def registering(needs: LaunchNeeds) -> tuple[ProcessNeeds, ...]:
    """The processes whose GPU memory goes over RDMA."""
    return tuple(
        process
        for process in needs.rdma_processes
        if process.gpu is not None and process.gpu_registered_bytes != 0
    )
