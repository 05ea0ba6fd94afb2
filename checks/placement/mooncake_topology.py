"""Which NIC Mooncake takes first for each piece of memory: foretold, or asked of Mooncake.

Its topology has a location per NUMA node (``cpu:0``) and per GPU that CUDA shows it (``cuda:0``).
Of a location's NICs the preferred are chosen from at random, the others only when a transfer is
tried again; memory of no known location may go through any NIC. Source: topology.cpp,
discoverCpuTopology, discoverCudaTopology and selectDevice; memory_location.cpp.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from checks.framework.needs import ProcessNeeds, RdmaUse
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.gpu.facts import GpuFacts
from checks.gpu.hardware_use import visible_gpus
from checks.numa.facts import NumaFacts
from checks.pci.facts import PciFacts, PciFunction, count_shared
from checks.rdma.facts import RdmaFacts
from checks.rdma.use import ChosenBy, devices_in_use
from checks.releases.mooncake import MooncakeRelease

# Anything on this host, with all that Mooncake finds by itself.
ANY_PROCESS = ProcessNeeds("this host", "", {}, rdma=RdmaUse((), ChosenBy.DISCOVERY.value))
# What of a process's environment decides the topology of the classic engine.
VARIABLES = tuple("CUDA_VISIBLE_DEVICES MC_CUSTOM_TOPO_JSON MC_GID_INDEX MC_IB_PORT".split())
VARIABLES += ("MC_TE_FILTERS", "NCCL_IB_GID_INDEX")


class Location(NamedTuple):
    """A location of Mooncake's topology.

    Attributes:
        others: Taken only when a transfer is tried again.
    """

    name: str
    preferred: tuple[str, ...] | Unknown
    others: tuple[str, ...] = ()

    @property
    def first(self) -> tuple[str, ...] | Unknown:
        """Return the NICs of which any may be chosen first: the preferred, or else the others."""
        return self.others if self.preferred == () else self.preferred


class View(NamedTuple):
    """Mooncake's topology for one process.

    Attributes:
        gpus: The PCI address of ``cuda:N`` at index N.
    """

    locations: tuple[Location, ...]
    gpus: tuple[str, ...] | Unknown

    def at(self, name: str) -> Location | None:
        """Return the location of that name; None if Mooncake has none."""
        return next((place for place in self.locations if place.name == name), None)


@or_unknown
def predict_view(
    numa: NumaFacts,
    pci: PciFacts,
    gpus: GpuFacts,
    rdma: RdmaFacts,
    process: ProcessNeeds,
    release: MooncakeRelease | None,
    knows_gpus: bool = True,
) -> View | Unknown:
    """Foretell the topology that ``process`` gets, from the facts of the host.

    A file of MC_CUSTOM_TOPO_JSON takes the place of the host's topology.

    Args:
        release: Mooncake's, None for the newest known.
        knows_gpus: Mooncake is built with CUDA.

    Returns:
        Unknown if the process's devices, or that file, are not known.
    """
    import json

    used = devices_in_use(rdma, process, release)
    if isinstance(used.names, Unknown):
        return used.names
    visible = visible_gpus(gpus, process) if knows_gpus else ()
    path = process.environment.get("MC_CUSTOM_TOPO_JSON", "")
    if path and used.chosen is ChosenBy.TOPOLOGY:
        content = require(rdma.topologies[path])
        try:
            read = require(parse_locations(json.loads(content)))
        except (ValueError, RecursionError) as error:
            return Unknown(f"not a topology: {error}")
        return View(tuple(_keep_nics(place, used.names) for place in read), visible)
    places = [_node_location(rdma, row.node, used.names) for row in numa.nodes]
    for index, address in enumerate(() if isinstance(visible, Unknown) else visible):
        places.append(_gpu_location(pci, gpus, f"cuda:{index}", address, used.names, release))
    return View(tuple(places), visible)


def _node_location(rdma: RdmaFacts, number: int, names: Sequence[str]) -> Location:
    """Return the location of a NUMA node: of the NICs ``names`` it prefers those on that node.

    The preferred NICs are Unknown if the node of one NIC is not known.
    """
    nodes = {nic.name: nic.node for nic in rdma.present}
    for name in names:
        near_node = nodes[name]
        if isinstance(near_node, Unknown):
            return Location(f"cpu:{number}", near_node)
    return _location(f"cpu:{number}", tuple(name for name in names if nodes[name] == number), names)


def _gpu_location(
    pci: PciFacts,
    gpus: GpuFacts,
    location: str,
    address: str,
    names: Sequence[str],
    release: MooncakeRelease | None,
) -> Location:
    """Return the location of a GPU: it prefers the nearest of the NICs on its NUMA node, or of all
    NICs if none is on that node.

    Args:
        location: Its name, ``cuda:0``.
        address: The GPU's.
        names: The NICs in use.
        release: None for the newest known; older releases do not look at NUMA nodes.
    """
    if isinstance(gpus.accelerators, Unknown):
        return Location(location, gpus.accelerators)
    gpu = next((function for function in gpus.on_pci if function.address == address), None)
    if gpu is None:  # sysfs does not show it, and then Mooncake cannot tell how far anything is
        return _location(location, (), names)
    nics = {name: pci.nics[name] for name in names if name in pci.nics}
    for function in (gpu, *nics.values()):
        if isinstance(function.node, Unknown) and not function.node.absent:
            return Location(location, function.node)
        if not function.parents:
            return Location(location, Unknown(f"{function.address}: sysfs shows no bridge above"))
    known_node = isinstance(gpu.node, int)
    near = {name: nic for name, nic in nics.items() if known_node and nic.node == gpu.node}
    if release is not None and not release.looks_at_nodes:
        near = {}
    steps = {name: pci_steps(_path(gpu), _path(nic)) for name, nic in (near or nics).items()}
    least = min(steps.values(), default=0)
    return _location(location, tuple(name for name in steps if steps[name] == least), names)


def _path(function: PciFunction) -> str:
    return "/".join(("/sys/devices", *function.parents, function.address))


def pci_steps(path: str, other: str) -> int:
    """Return the slashes of both sysfs paths behind what they share (getPciDistance)."""
    shared = count_shared(path, other)
    return path.count("/", shared) + other.count("/", shared)


def _location(name: str, preferred: tuple[str, ...], names: Sequence[str]) -> Location:
    return Location(name, preferred, tuple(nic for nic in names if nic not in preferred))


def _keep_nics(place: Location, names: Sequence[str]) -> Location:
    """Return a location without the NICs that are not in ``names``."""
    if isinstance(place.preferred, Unknown):
        return place
    return place._replace(
        preferred=tuple(name for name in place.preferred if name in names),
        others=tuple(name for name in place.others if name in names),
    )


@or_unknown
def parse_locations(rows: Any | Unknown) -> tuple[Location, ...] | Unknown:
    """Read ``{"cpu:0": [[preferred NICs], [others]]}`` as locations, sorted by name and number.

    Returns:
        Unknown if ``rows`` is Unknown or of another form.
    """
    rows = require(rows)
    wrong = Unknown('not a topology: no object of {"location": [[preferred], [others]]}')
    if not isinstance(rows, dict):
        return wrong
    places = []
    for name, halves in rows.items():
        if not isinstance(halves, list) or [type(half) for half in halves] != [list, list]:
            return wrong
        if not all(isinstance(nic, str) for half in halves for nic in half):
            return wrong
        places.append(Location(str(name), tuple(halves[0]), tuple(halves[1])))
    return tuple(sorted(places, key=lambda place: _order(place.name)))


def _order(name: str) -> tuple[str, int, str]:
    location_type, _, number = name.partition(":")
    small = number.isascii() and number.isdecimal() and len(number) < 10
    return location_type, int(number) if small else 0, name


def measure_locations(
    root: Root, interpreter: str, process: ProcessNeeds, devices: Sequence[str]
) -> tuple[Location, ...] | Unknown:
    """Ask the installed Mooncake for the topology of ``process``.

    Args:
        devices: The only NICs that it may use; () lets it discover all.

    Returns:
        Unknown without an answer.
    """
    environment, names = process.environment, ",".join(devices)
    variables = [f"{key}={environment[key]}" for key in VARIABLES if key in environment]
    return parse_locations(root.call("mooncake.local_topology", interpreter, names, *variables))


def differences(
    foretold: Sequence[Location], measured: Sequence[Location]
) -> tuple[tuple[str, str, str], ...]:
    """Return ``(location, foretold, measured)``, in words, for each location that differs.

    A location whose foretold NICs are not known is left out.
    """
    wanted, have = ({place.name: place for place in places} for places in (foretold, measured))
    rows = []
    for name in sorted({*wanted, *have}, key=_order):
        unknown = name in wanted and isinstance(wanted[name].preferred, Unknown)
        pair = (_nics_text(wanted.get(name)), _nics_text(have.get(name)))
        if pair[0] != pair[1] and not unknown:
            rows.append((name, *pair))
    return tuple(rows)


def _nics_text(place: Location | None) -> str:
    """Say which NICs a location prefers, and which others it has; or that it does not exist."""
    if place is None:
        return "no such location"
    if isinstance(place.preferred, Unknown):
        return place.preferred.reason
    preferred, others = (", ".join(sorted(half)) for half in (place.preferred, place.others))
    return f"{preferred or 'none preferred'}; then {others or 'none'}"


# Loading the library takes a second; opening each of many NICs and CUDA's start take longer.
LIMIT_SECONDS = 60
_MARK = "topology:"
# The engine listens on a port of its own choice while it lives, and registers no memory.
_PROGRAM = f"""
import sys
from mooncake.engine import TransferEngine
if not hasattr(TransferEngine, "get_local_topology"):
    sys.exit("this Mooncake has no get_local_topology, which 0.3.6 and later have")
answer = TransferEngine().get_local_topology(*filter(None, sys.argv[1:]))
print("\\n{_MARK}" + answer.replace("\\n", " "), flush=True)
"""


def local_topology(interpreter: str, devices: str, *variables: str) -> Any:
    """Ask ``TransferEngine.get_local_topology`` in a child: location -> [preferred, others].

    Args:
        devices: Names with commas between them, "" for discovery.
        variables: ``NAME=value``, in place of all variables MC_* of this process.

    Raises:
        OSError: With the child's message; ValueError if the answer is no JSON.
    """
    import json
    import os
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name[:3] != "MC_"}
    environment |= dict(variable.partition("=")[::2] for variable in variables)
    try:
        done = subprocess.run(
            [interpreter, "-c", _PROGRAM, devices],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{interpreter}: no answer within {LIMIT_SECONDS} s") from None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not answers:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1][:300] if lines else f"exit code {done.returncode}"
        raise OSError(f"{interpreter}: {why}")
    return json.loads(answers[-1].removeprefix(_MARK))
