"""Checks of Mooncake's own choice of NICs against what PCI says."""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, Status, skip
from checks.base.fold import fold
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.gpu.hardware_use import nics_of, visible_gpus
from checks.pci.paths import PathClass
from checks.placement.mooncake_topology import ANY_PROCESS, View, predicted
from checks.rdma.use import devices_in_use
from checks.releases.mooncake import MooncakeRelease, release_of
from checks.run.facts import Facts

CHECKS = CheckSet()
SHOWN_NICS = 4


@CHECKS.declare("topology.mooncake-view", "gpus", "numa", "pci", "rdma")
def mooncake_view(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "topology.mooncake-view"
    if needs is None:
        return _of_host(check, facts)
    release = release_of(needs.mooncake_version)
    found = []
    for process in registering(needs):
        assert process.gpu is not None
        finding = Finding(check, Status.UNKNOWN, process.name)
        view = predicted(facts, process, release)
        names = nics_of(facts, needs, process)
        if isinstance(view, Unknown) or isinstance(names, Unknown):
            found.append(finding._replace(text=_reason(view, names)))
        else:
            found.append(judge_gpu(finding, facts, view, process.gpu, names, release))
    return fold(found) or [skip(check, "no process registers memory of a GPU over RDMA", "launch")]


def _of_host(check: str, facts: Facts) -> list[Finding]:
    """Every GPU that this process may use, with all NICs."""
    visible = visible_gpus(facts.gpus, ANY_PROCESS)
    finding = Finding(check, Status.UNKNOWN, "host")
    if isinstance(visible, Unknown):
        return [finding._replace(text=visible.reason)]
    if not visible:
        return [skip(check, "no GPU is visible here")]
    view = predicted(facts, ANY_PROCESS, None)
    names = devices_in_use(facts.rdma, ANY_PROCESS).names
    if isinstance(view, Unknown) or isinstance(names, Unknown):
        return [finding._replace(text=_reason(view, names))]
    if not names:
        return [skip(check, "no NIC of this host is usable")]
    return fold(
        [
            judge_gpu(finding._replace(subject=f"GPU {index}"), facts, view, index, names, None)
            for index in range(len(visible))
        ]
    )


def _reason(*values: object) -> str:
    return next(value.reason for value in values if isinstance(value, Unknown))


def judge_gpu(
    finding: Finding,
    facts: Facts,
    view: View,
    gpu: int,
    names: tuple[str, ...],
    release: MooncakeRelease | None,
) -> Finding:
    """``finding`` of GPU number ``gpu`` of ``view``, whose NICs in use are ``names``."""
    finding = finding._replace(need="the nearest NIC in use preferred")
    if isinstance(view.gpus, Unknown):
        return finding._replace(status=Status.UNKNOWN, text=view.gpus.reason)
    place = view.at(f"cuda:{gpu}")
    if gpu >= len(view.gpus):
        text = "its GPU is not visible, as gpu.count says"
        return finding._replace(status=Status.SKIP, text=text)
    if not names:
        return finding._replace(status=Status.SKIP, text="no NIC of this host is usable to it")
    if len(names) == 1:
        return finding._replace(status=Status.PASS, have=f"{names[0]} alone")
    # Without an entry (MC_CUSTOM_TOPO_JSON) memory of the GPU may go through any NIC.
    first = names if place is None else place.first
    if isinstance(first, Unknown):
        return finding._replace(status=Status.UNKNOWN, text=first.reason)
    address = view.gpus[gpu]
    paths = {name: facts.pci.paths.get((address, name)) for name in names}
    known = {name: path for name, path in paths.items() if isinstance(path, PathClass)}
    far = max((known[name] for name in first if name in known), default=None)
    near = min(known.values(), default=None)
    finding = finding._replace(have=f"{_listed(first, known)} preferred")
    unknown = [path for path in paths.values() if isinstance(path, Unknown)]
    if far is None or near is None or (unknown and far is not PathClass.PIX and far == near):
        reason = unknown[0].reason if unknown else f"none of {', '.join(names)} is a PCI device"
        return finding._replace(status=Status.UNKNOWN, text=f"how far they are: {reason}")
    if far == near:
        return finding._replace(status=Status.PASS)
    nearest = tuple(name for name in names if known.get(name) == near)
    farther = tuple(name for name in first if name in known and known[name] > near)
    old = release is not None and not release.looks_at_nodes and far is PathClass.SYS
    newer = "Mooncake 0.3.8 and later look at the node first; or " if old else ""
    return finding._replace(
        status=Status.WARN,
        text=f"Mooncake takes {_listed(farther, known)} for its memory, though "
        f"{_listed(nearest, known)} is in use",
        evidence=(
            Evidence("PCI address of its GPU", address),
            *(
                Evidence(f"PCI address of {name}", facts.pci.nics[name].address)
                for name in (*farther[:2], *nearest[:2])
            ),
        ),
        advice=f"{newer}name {', '.join(nearest[:SHOWN_NICS])} for it, or give its location in a "
        "file for MC_CUSTOM_TOPO_JSON",
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
