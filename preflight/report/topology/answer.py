"""What sits where on a host, and which NIC Mooncake takes for it: read, and judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from checks.framework.finding import Finding, Status
from checks.framework.fold import fold_names, join_names, ranges
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.problem import Problem
from checks.framework.root import Root
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown, UnreadTopicError, require
from checks.gpu.facts import NvmlGpu
from checks.gpu.hardware_use import gpu_function, nics_of, physical_gpus, splits_segment
from checks.pci.facts import ACCELERATOR_VENDORS, PathClass, PciFunction
from checks.placement.mooncake_topology import (
    ANY_PROCESS,
    VARIABLES,
    Location,
    View,
    differences,
    measure_locations,
    predict_view,
)
from checks.rdma.devices import Port
from checks.rdma.facts import Nic
from checks.rdma.use import ChosenBy, DevicesInUse, Transport, devices_in_use
from checks.releases.mooncake import release_of
from checks.run_checks.facts import Facts, read_facts
from checks.run_checks.runner import judge
from checks.software.facts import Environment
from preflight.base.usage_error import UsageError
from preflight.command_inputs.host_source import open_host, size_within
from preflight.command_inputs.launch_words import LaunchWords
from preflight.processes.processes import LaunchProcess

TOPICS = ("gpus", "numa", "pci", "rdma", "software")
# What others judge of the same: the module of each id.
CHECKS = {
    "topology.mooncake-view": "checks.placement.node_checks",
    "numa.gpu-nic-distance": "checks.placement.node_checks",
    "numa.unknown-nic-node": "checks.placement.node_checks",
    "rdma.device-missing": "checks.rdma.device_checks",
    "rdma.no-device": "checks.rdma.device_checks",
    "gpu.count": "checks.gpu.judge",
}


class TopologyAnswer(NamedTuple):
    """All that ``topology`` shows.

    Attributes:
        root: The name of the host or capture that was read.
        source: The launch, "" without one.
        measures: Whether the installed Mooncake was asked, too.
        findings: Of the checks in ``CHECKS``.
        status: The worst of all.
        processes: Of the launch.
    """

    root: str
    source: str
    topology: Topology
    engine: Engine | Unknown
    views: tuple[MooncakeView, ...]
    measures: bool
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    status: Status
    processes: tuple[LaunchProcess, ...] = ()


def topology_answer(
    launch: LaunchWords, root: str, timeout_seconds: float, measure: bool, short: bool = False
) -> TopologyAnswer:
    """Read the host and return the answer; asks the installed Mooncake if ``measure``.

    Raises UsageError.

    Args:
        root: The host to read, "/" or a capture.
        short: Name each process by its role alone, if all roles differ.
    """
    host = open_host(root, timeout_seconds)
    sized = size_within(launch, host, timeout_seconds)
    if isinstance(sized, Unknown):
        raise UsageError(sized.reason)
    needs = None if sized is None else use_roles(sized.needs, short)
    facts = read_facts(host.root, needs, timeout_seconds, TOPICS)
    engine = engine_of_host(facts)
    try:
        drawn = topology_of(facts, needs)
        views = views_of(facts, needs, engine, host.root if measure else None)
        note_texts = notes(facts, needs, drawn, views)
    except UnreadTopicError as missing:
        raise UsageError(f"{missing} (--timeout gives it longer)") from None
    findings = tuple(judge(facts, needs, _checks()))
    shown = host.name, "" if needs is None else needs.source, drawn, engine, views, measure
    of_launch = () if sized is None else sized.sizing.inputs.processes
    return TopologyAnswer(*shown, findings, note_texts, _status(findings, views), of_launch)


def use_roles(needs: LaunchNeeds, short: bool) -> LaunchNeeds:
    """Return the needs with each process named by its role alone, if ``short`` and if all roles
    differ; else unchanged.
    """
    processes = needs.processes
    if not short or len({each.role for each in processes}) < len(processes):
        return needs
    return needs._replace(processes=tuple(each._replace(name=each.role) for each in processes))


def _checks() -> list[Problem]:
    of_modules = [(id_, import_module(module).CHECKS.problems) for id_, module in CHECKS.items()]
    return [check for id_, checks in of_modules for check in checks if check.id == id_]


def _status(findings: Sequence[Finding], views: Sequence[MooncakeView]) -> Status:
    """Return the worst status: of the findings, of the measurement, of processes left without a
    device.

    PASS if nothing is wrong or nothing was judged.
    """
    seen = {finding.status for finding in findings}
    if any(isinstance(view.measured, Unknown) or isinstance(view.view, Unknown) for view in views):
        seen.add(Status.UNKNOWN)
    # Why each is lost is for the checks of rdma to judge; here it is that none is left.
    lost = any(view.devices.lost and view.devices.names == () for view in views)
    if lost or any(view.differs for view in views):
        seen.add(Status.WARN)
    order = (Status.FAIL, Status.UNKNOWN, Status.WARN)
    return next((status for status in order if status in seen), Status.PASS)


WITHOUT_CUDA = "mooncake-transfer-engine-non-cuda"


class Engine(NamedTuple):
    """The installed Mooncake: its interpreter, and name and version of its wheel ("" if no wheel
    says so).
    """

    interpreter: str
    wheel: str
    version: str

    @property
    def knows_gpus(self) -> bool:
        return self.wheel != WITHOUT_CUDA


class MooncakeView(NamedTuple):
    """Processes for which Mooncake chooses the same, and its choice.

    Attributes:
        processes: Their names.
        release: The Mooncake version whose rule applies, "" for the newest known.
        view: The predicted choice.
        measured: The installed library's answer; None if it was not asked.
        differs: (location, predicted, measured) for each location that differs.
    """

    processes: tuple[str, ...]
    release: str
    devices: DevicesInUse
    view: View | Unknown
    measured: tuple[Location, ...] | Unknown | None
    differs: tuple[tuple[str, str, str], ...]


def engine_of_host(facts: Facts) -> Engine | Unknown:
    """Return the installed Mooncake that a launch would load here; Unknown if none is found."""
    software = facts.topic("software")
    engine = software if isinstance(software, Unknown) else software.engine
    if isinstance(engine, Unknown):
        return engine
    if not isinstance(engine, Environment) or (engine.package is None and not engine.mooncake):
        return Unknown("no Mooncake is installed for this interpreter or the python3 on PATH")
    name, version = engine.mooncake[0][:2] if engine.mooncake else ("", "")
    return Engine(engine.interpreter, name, version)


def views_of(
    facts: Facts, needs: LaunchNeeds | None, engine: Engine | Unknown, root: Root | None
) -> tuple[MooncakeView, ...]:
    """Predict which NICs Mooncake chooses, for each group of processes that get the same choice.

    If ``needs`` is None, any process of this host is meant.

    Args:
        root: The host on which the installed library is asked too; None not to ask.
    """
    processes = (ANY_PROCESS,) if needs is None else needs.rdma_processes
    version = "" if needs is None else needs.mooncake_version
    if not version and isinstance(engine, Engine):
        version = engine.version
    release = release_of(version)
    knows_gpus = isinstance(engine, Unknown) or engine.knows_gpus
    groups: dict[str, tuple[list[ProcessNeeds], DevicesInUse, View | Unknown]] = {}
    for process in processes:
        devices = devices_in_use(facts.rdma, process, release)
        topics = facts.numa, facts.pci, facts.gpus, facts.rdma
        view = predict_view(*topics, process, release, knows_gpus)
        variables = [process.environment.get(name) for name in VARIABLES]
        groups.setdefault(repr((devices, view, variables)), ([], devices, view))[0].append(process)
    views = []
    for group, devices, view in groups.values():
        measured_places = None if root is None else _measure_group(group[0], devices, engine, root)
        differs: tuple[tuple[str, str, str], ...] = ()
        if isinstance(measured_places, tuple) and isinstance(view, View):
            differs = differences(view.locations, measured_places)
        names = tuple(process.name for process in group)
        views.append(MooncakeView(names, version, devices, view, measured_places, differs))
    return tuple(views)


def _measure_group(
    process: ProcessNeeds, devices: DevicesInUse, engine: Engine | Unknown, root: Root
) -> tuple[Location, ...] | Unknown:
    """Ask the installed library which NICs it chooses for a process; Unknown if it is not asked."""
    if isinstance(engine, Unknown):
        return engine
    if "MC_FORCE_TCP" in process.environment and devices.transport is Transport.TCP:
        return Unknown("not asked: the process is set to use TCP")
    if "MC_USE_TENT" in process.environment:
        return Unknown("not asked: MC_USE_TENT is another engine, whose answer is of another form")
    by_name = devices.chosen not in (ChosenBy.DISCOVERY, ChosenBy.TOPOLOGY)
    names = devices.candidates if by_name else ()
    return measure_locations(root, engine.interpreter, process, names)


_WITHOUT_NAMES = (ChosenBy.NOBODY, ChosenBy.DISCOVERY)


def notes(
    facts: Facts, needs: LaunchNeeds | None, topology: Topology, views: tuple[MooncakeView, ...]
) -> tuple[str, ...]:
    """Return the notes in the order in which they are shown, each once."""
    texts = [*_host_notes(facts, topology)]
    for view in views:
        texts += _view_notes(topology, view, facts.numa.memory_nodes)
        texts += _segment_notes(needs, view)
        texts += _left_out_notes(topology, view)
    return tuple(dict.fromkeys(texts))


def _host_notes(facts: Facts, topology: Topology) -> Iterator[str]:
    """Yield notes on NICs and GPUs that are not known or not usable, and on missing NUMA nodes."""
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


def _view_notes(
    topology: Topology, group: MooncakeView, memory_nodes: Sequence[int]
) -> Iterator[str]:
    """Yield notes on lost, idle and shared NICs, and on NUMA nodes without a NIC in use."""
    for cause in dict.fromkeys(lost.cause for lost in group.devices.lost):
        lost = [device for device in group.devices.lost if device.cause is cause]
        names = join_names(device.name for device in lost)
        yield f"{names}: not used by Mooncake ({cause.value}: {lost[0].why})"
    used = group.devices.names
    if isinstance(group.view, Unknown) or isinstance(used, Unknown) or len(used) < 2:
        return
    first = {place.name: place.first for place in group.view.locations}
    nics_of = {name: nics for name, nics in first.items() if not isinstance(nics, Unknown)}
    taken = {nic for nics in nics_of.values() for nic in nics}
    idle = [name for name in used if name not in taken]
    if idle and len(nics_of) == len(first):
        yield (
            f"{join_names(idle)}: preferred for no memory, so used only when a transfer is tried "
            "again; everything is registered there all the same"
        )
    of_gpus = [nics for name, nics in nics_of.items() if name.startswith("cuda:")]
    if len(of_gpus) > 1 and len(set(of_gpus)) == 1 and len(of_gpus[0]) == 1:
        yield f"all {len(of_gpus)} GPUs share {of_gpus[0][0]}, of {len(used)} NICs in use"
    sits = (nic.numa_node for nic in topology.nics if nic.name in used)
    nodes = {numa_node for numa_node in sits if isinstance(numa_node, int)}
    for each in topology.nodes if nodes else ():
        if (
            each.numa_node in memory_nodes
            and each.numa_node not in nodes
            and each.memory_bytes != 0
        ):
            memory = f"memory on node {each.numa_node} has no NIC in use there"
            yield f"{memory}: its transfers take any of {join_names(used)}"


def _left_out_notes(topology: Topology, group: MooncakeView) -> Iterator[str]:
    """Yield a note for GPUs of a group's processes that have a nearer, usable NIC that is not in
    use.

    Yields nothing if the launch does not choose the NICs itself.
    """
    names = group.devices.names
    if isinstance(names, Unknown) or not names or group.devices.chosen in _WITHOUT_NAMES:
        return
    lost = {device.name for device in group.devices.lost}
    usable = [nic.name for nic in topology.nics if nic.name not in lost and nic.active]
    gpus_of: dict[tuple[str, str, str], list[str]] = {}
    for gpu in topology.gpus:
        if not set(gpu.used_by) & set(group.processes):
            continue
        paths = {name: topology.paths[gpu.name, name] for name in usable}
        levels = {name: PathClass[path] for name, path in paths.items() if isinstance(path, str)}
        used = min((levels[name] for name in names if name in levels), default=None)
        best = min(levels.values(), default=None)
        if used is not None and best is not None and best < used:
            nearest = join_names(name for name in levels if levels[name] is best)
            gpus_of.setdefault((nearest, best.name, used.name), []).append(gpu.name)
    for (nearest, best_name, used_name), gpus in gpus_of.items():
        yield (
            f"{join_names(gpus)}: {nearest} ({best_name}) is nearer than {join_names(names)} "
            f"({used_name}), and {group.devices.how} leaves it out"
        )


def _segment_notes(needs: LaunchNeeds | None, group: MooncakeView) -> Iterator[str]:
    """Yield a note on processes whose segment is split over several NUMA nodes.

    A rank that is bound to one node may have its segment on that node, and is not named.
    """
    split: dict[tuple[int, ...], list[str]] = {}
    for process in needs.processes if needs is not None else ():
        if process.name in group.processes and splits_segment(process) is True:
            split.setdefault(require(process.segment_nodes), []).append(process.name)
    unnamed = group.devices.chosen in _WITHOUT_NAMES
    where = "NICs" if unnamed else f"devices of {group.devices.how}"
    for nodes, names in split.items():
        listed = ", ".join(str(numa_node) for numa_node in sorted(nodes))
        who = fold_names(names) if len(names) > 1 else names[0]
        yield f"{who}: the segment is split over nodes {listed}, where the {where} sit"


def topology_of(facts: Facts, needs: LaunchNeeds | None) -> Topology:
    """Return the NUMA nodes, GPUs and NICs of the host, and their paths.

    A list that could not be read is empty; nothing is raised for it.

    GPUs are numbered as NVML does, which is in PCI order; those that this process may not use are
    left out, if that is known.

    Args:
        needs: Tells which processes use a device; None without a launch.
    """
    addresses, users = physical_gpus(facts.gpus), _users(facts, needs)
    if isinstance(addresses, Unknown):
        addresses = tuple(gpu.address for gpu in facts.gpus.on_pci)
    placed = enumerate(addresses)
    gpus = tuple(_gpu(facts, index, address, users.get(address, ())) for index, address in placed)
    present = sorted(facts.rdma.present, key=lambda nic: natural(nic.name))
    nics = tuple(_nic(facts, nic, users.get(nic.name, ())) for nic in present)
    pairs = [(gpu, nic) for gpu in gpus for nic in nics]
    paths = {(gpu.name, nic.name): _path(facts, gpu.address, nic.name) for gpu, nic in pairs}
    nodes = (
        (x.node, x.cpus if isinstance(x.cpus, Unknown) else ranges(x.cpus), x.total_bytes)
        for x in facts.numa.nodes
    )
    return Topology(tuple(TopologyNode(*each) for each in nodes), gpus, nics, paths)


def natural(name: str) -> tuple[str, int]:
    """Return a sort key by which ``mlx5_10`` comes after ``mlx5_9``."""
    match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL | re.ASCII)
    return (match[1], int(match[2])) if match else (name, -1)


def _gpu(facts: Facts, index: int, address: str, users: tuple[str, ...]) -> TopologyDevice:
    """Return one GPU for the drawing.

    Args:
        address: On PCI; index: for the name (``GPU0``).
    """
    function = next((each for each in facts.gpus.on_pci if each.address == address), None)
    seen = () if isinstance(facts.gpus.nvml, Unknown) else facts.gpus.nvml.gpus
    nvml = next((gpu for gpu in seen if gpu.address == address), None)
    hidden = Unknown(f"{address}: is not among the devices on PCI")
    numa_node = hidden if function is None else function.node
    known = address if ":" in address else ""
    name, model = f"GPU{index}", _model(function, nvml)
    return TopologyDevice("gpu", name, known, numa_node, model, users)


def _model(function: PciFunction | None, nvml: NvmlGpu | None) -> str:
    """Name a GPU or accelerator by NVML, with its memory, else by its PCI ids; or ``not known``."""
    if nvml is not None and nvml.name:
        size = f" {format_bytes(nvml.memory_bytes)}" if nvml.memory_bytes else ""
        return nvml.name + size
    if function is None or isinstance(function.vendor, Unknown):
        return "not known"
    device = "" if isinstance(function.device, Unknown) else f" {function.device}"
    return ACCELERATOR_VENDORS.get(function.vendor, function.vendor) + device


def _nic(facts: Facts, nic: Nic, users: tuple[str, ...]) -> TopologyDevice:
    """Return one NIC as it is drawn."""
    function = facts.pci.nics.get(nic.name)
    address = "" if function is None else function.address
    ports = () if isinstance(nic.ports, Unknown) else nic.ports
    active = any(isinstance(port.state, str) and "ACTIVE" in port.state for port in ports)
    return TopologyDevice("nic", nic.name, address, nic.node, _describe_nic(nic), users, active)


def _describe_nic(nic: Nic) -> str:
    """Describe the driver and ports of a NIC, as ``mlx5 400 Gb/s ACTIVE``."""
    names = [word for word in (nic.provider, nic.driver) if isinstance(word, str) and word]
    if isinstance(nic.ports, Unknown):
        return " ".join((*names[:1], "ports not known"))
    ports = [_port(port) for port in nic.ports]
    if len(set(ports)) == 1 and len(ports) > 1:
        ports = [f"{len(ports)} ports {ports[0]}"]
    return " ".join((*names[:1], ", ".join(ports) or "no port"))


def _port(port: Port) -> str:
    rate = "" if isinstance(port.rate, Unknown) else port.rate.partition(" (")[0]
    state = "state not known" if isinstance(port.state, Unknown) else port.state
    return " ".join(filter(None, (rate.replace("Gb/sec", "Gb/s"), state)))


def _users(facts: Facts, needs: LaunchNeeds | None) -> dict[str, tuple[str, ...]]:
    """Map each PCI address of a GPU and each NIC name to the names of the processes that use it.

    Returns:
        Empty without a launch.
    """
    users: dict[str, tuple[str, ...]] = {}
    if needs is None:
        return users
    for process in needs.processes:
        function = None if process.gpu is None else gpu_function(facts.gpus, process)
        gpus = [function.address] if isinstance(function, PciFunction) else []
        nics = () if process.rdma is None else nics_of(facts.rdma, needs, process)
        for device in (*gpus, *(() if isinstance(nics, Unknown) else nics)):
            users[device] = (*users.get(device, ()), process.name)
    return users


def _path(facts: Facts, address: str, nic: str) -> str | Unknown:
    """Return the class of the PCI path between a GPU and a NIC, as ``PIX``."""
    name = address if nic in facts.pci.nics else nic
    missing = Unknown(f"{name}: is no PCI device here", absent=True)
    path = facts.pci.paths.get((address, nic), missing)
    return path.name if isinstance(path, PathClass) else path


class TopologyDevice(NamedTuple):
    """A GPU or an RDMA device.

    Attributes:
        device_kind: Gpu or nic.
        name: ``GPU0`` or ``mlx5_0``.
        address: On PCI, or "".
        numa_node: None if the firmware does not say.
        what: Model and, of a NIC, its ports (``NVIDIA H20``, ``mlx5 400 Gb/s ACTIVE``).
        used_by: Names of the launch's processes that use it, () if none.
        active: Whether a port of the NIC is active; False for a GPU.
    """

    device_kind: str
    name: str
    address: str
    numa_node: int | Unknown | None
    what: str
    used_by: tuple[str, ...] = ()
    active: bool = False


class TopologyNode(NamedTuple):
    """A NUMA node.

    Attributes:
        cpus: As the kernel lists them.
        memory_bytes: MemTotal.
    """

    numa_node: int
    cpus: str | Unknown
    memory_bytes: int | Unknown


class Topology(NamedTuple):
    """NUMA nodes, GPUs and NICs of a host, and the PCI path between each GPU and NIC.

    Attributes:
        paths: (GPU name, NIC name) -> PIX, PXB, PHB, NODE or SYS; Unknown if not known.
    """

    nodes: tuple[TopologyNode, ...]
    gpus: tuple[TopologyDevice, ...]
    nics: tuple[TopologyDevice, ...]
    paths: Mapping[tuple[str, str], str | Unknown]
