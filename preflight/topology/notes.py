"""What is worth knowing of a topology and is no fault in itself: one sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.fold import fold_names
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.gpu.hardware_use import physical_gpus, splits_segment
from checks.pci.paths import PathClass
from checks.placement.mooncake_topology import View
from checks.rdma.use import ChosenBy
from checks.run.facts import Facts
from preflight.render.names import folded
from preflight.topology.build import Topology
from preflight.topology.views import MooncakeView

_WITHOUT_NAMES = (ChosenBy.NOBODY, ChosenBy.DISCOVERY)


def notes(
    facts: Facts, needs: LaunchNeeds | None, topology: Topology, views: tuple[MooncakeView, ...]
) -> tuple[str, ...]:
    """In the order in which they are shown, each once."""
    said = [*_of_host(facts, topology)]
    for view in views:
        said += _of_view(topology, view)
        said += _of_segments(needs, view)
        said += _left_out(topology, view)
    return tuple(dict.fromkeys(said))


def _of_host(facts: Facts, topology: Topology) -> Iterator[str]:
    if isinstance(facts.rdma.nics, Unknown):
        yield f"NICs are not known: {facts.rdma.nics.reason}"
    usable = physical_gpus(facts.gpus)
    if isinstance(usable, Unknown):
        yield f"which GPUs this process may use is not known: {usable.reason}"
    elif len(facts.gpus.on_pci) > len(usable):
        hidden = len(facts.gpus.on_pci) - len(usable)
        yield f"{hidden} more on PCI, which this process may not use: not drawn"
    if not topology.nodes and topology.nics:
        yield (
            "sysfs shows no NUMA node (/sys/devices/system/node): Mooncake has no location for "
            "memory of the host, and without a GPU no NIC either"
        )


def _of_view(topology: Topology, seen: MooncakeView) -> Iterator[str]:
    causes = dict.fromkeys(lost.cause for lost in seen.devices.lost)
    for cause in causes:
        lost = [one for one in seen.devices.lost if one.cause is cause]
        names = folded(one.name for one in lost)
        yield f"{names}: not used by Mooncake ({cause.value}: {lost[0].why})"
    used = seen.devices.names
    if isinstance(seen.view, Unknown) or isinstance(used, Unknown) or len(used) < 2:
        return
    first = {place.name: place.first for place in seen.view.locations}
    known = {name: nics for name, nics in first.items() if not isinstance(nics, Unknown)}
    taken = {nic for nics in known.values() for nic in nics}
    idle = [name for name in used if name not in taken]
    if idle and len(known) == len(first):
        yield (
            f"{folded(idle)}: preferred for no memory, so used only when a transfer is tried "
            "again; everything is registered there all the same"
        )
    yield from _of_gpus(seen.view, known, len(used))
    yield from _of_nodes(topology, seen, used)


def _left_out(topology: Topology, seen: MooncakeView) -> Iterator[str]:
    """NICs that are nearer to a GPU than any in use, and that the launch does not name."""
    names = seen.devices.names
    if isinstance(names, Unknown) or not names or seen.devices.chosen in _WITHOUT_NAMES:
        return
    lost = {one.name for one in seen.devices.lost}
    usable = [nic.name for nic in topology.nics if nic.name not in lost and "ACTIVE" in nic.what]
    found: dict[tuple[str, str, str], list[str]] = {}
    for gpu in topology.gpus:
        if not set(gpu.used_by) & set(seen.processes):
            continue
        paths = {name: topology.paths[gpu.name, name] for name in usable}
        known = {name: PathClass[path] for name, path in paths.items() if isinstance(path, str)}
        used = min((known[name] for name in names if name in known), default=None)
        best = min(known.values(), default=None)
        if used is not None and best is not None and best < used:
            nearest = folded(name for name in known if known[name] is best)
            found.setdefault((nearest, best.name, used.name), []).append(gpu.name)
    for (nearest, best_name, used_name), gpus in found.items():
        yield (
            f"{folded(gpus)}: {nearest} ({best_name}) is nearer than {folded(names)} "
            f"({used_name}), and {seen.devices.how} leaves it out"
        )


def _of_gpus(view: View, known: dict[str, tuple[str, ...]], nics: int) -> Iterator[str]:
    gpus = {name: nics for name, nics in known.items() if name.startswith("cuda:")}
    if len(gpus) > 1 and len(set(gpus.values())) == 1 and len(next(iter(gpus.values()))) == 1:
        (name,) = next(iter(gpus.values()))
        yield f"all {len(gpus)} GPUs share {name}, of {nics} NICs in use"


def _of_nodes(topology: Topology, seen: MooncakeView, names: tuple[str, ...]) -> Iterator[str]:
    nodes = {nic.node for nic in topology.nics if nic.name in names and nic.node is not None}
    if not nodes:
        return
    for node in topology.nodes:
        if node.node not in nodes and node.memory_bytes != 0:
            yield (
                f"memory on node {node.node} has no NIC in use there: its transfers take any of "
                f"{folded(names)}"
            )


def _of_segments(needs: LaunchNeeds | None, seen: MooncakeView) -> Iterator[str]:
    """Whose segment lies on several nodes: a rank that is bound to one may have it there whole."""
    split: dict[tuple[int, ...], list[str]] = {}
    for process in needs.processes if needs is not None else ():
        if process.name in seen.processes and splits_segment(process) is True:
            assert not isinstance(process.segment_nodes, Unknown)
            split.setdefault(process.segment_nodes, []).append(process.name)
    for nodes, names in split.items():
        listed = ", ".join(str(node) for node in sorted(nodes))
        where = (
            "NICs" if seen.devices.chosen in _WITHOUT_NAMES else f"devices of {seen.devices.how}"
        )
        yield f"{_named(names)}: the segment is split over nodes {listed}, where the {where} sit"


def _named(names: list[str]) -> str:
    return fold_names(names) if len(names) > 1 else names[0]
