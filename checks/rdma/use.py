"""Which RDMA devices a process of the launch comes to use, as Mooncake's topology decides.

First it lists the devices that it can reach (topology.cpp, listInfiniBandDevices), then it opens
each (rdma_context.cpp, openRdmaDevice) and drops those that fail. Whether nothing left is an error
or silent TCP depends on who chose them. Registered memory is charged once per device in use.
"""

from collections.abc import Mapping
from enum import Enum
from errno import EAGAIN
from typing import NamedTuple

from checks.framework.finding import Subject
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import leading_integer
from checks.rdma.devices import GidChoice, choose_gid
from checks.rdma.facts import Nic, RdmaFacts
from checks.releases.mooncake import MooncakeRelease, release_of

# The driver of AWS's devices, which have no reliable-connected queue pairs: Mooncake's RDMA makes
# one for every peer, its transport "efa" none.
EFA = "efa"
# Switches another engine on, where that is built in.
TENT = "MC_USE_TENT"


class Cause(Enum):
    """Why a device that a process would take is not used."""

    MISSING = "no such device"
    UVERBS = "its uverbs node"
    CGROUP = "no open device left in the cgroup"
    PROVIDER = "no user-space library"
    PORT = "port not active"
    GID = "no usable GID"
    FILTERED = "filtered out"


class Lost(NamedTuple):
    """A device that a process would take but cannot use.

    Attributes:
        why: The reason in words.
    """

    name: str
    cause: Cause
    why: str


class Transport(Enum):
    """The transport that a process uses in the end."""

    RDMA = "RDMA"
    TCP = "TCP, without a message"
    NONE = "an error at start"
    NOT_ASKED = "not RDMA"


class ChosenBy(Enum):
    """Who says which devices a process looks for."""

    NOBODY = "not RDMA, or not known"
    LAUNCH = "names in the launch"
    DISCOVERY = "Mooncake's own discovery"
    FILTERS = "MC_MS_FILTERS"
    TOPOLOGY = "MC_CUSTOM_TOPO_JSON"
    FORCED_TCP = "MC_FORCE_TCP, which is read before any device is looked for"


class DevicesInUse(NamedTuple):
    """The devices that a process uses."""

    names: tuple[str, ...] | Unknown  # those that it registers memory with, or why unknown
    candidates: tuple[str, ...]  # the devices that the process would take if all were well
    lost: tuple[Lost, ...]  # candidates that are not used, and why
    transport: Transport | Unknown
    how: str  # who chose the candidates, with the place of their names
    without: Transport = Transport.NONE  # what becomes of a process that can open none
    chosen: ChosenBy = ChosenBy.NOBODY  # who names the candidates
    at_most: tuple[str, ...] = ()  # all devices that ``names`` may be, if only GIDs are unknown


class Use(NamedTuple):
    """Processes of a launch that come to the same devices, with the same environment for them."""

    processes: tuple[ProcessNeeds, ...]  # () for the host itself, if no launch is given
    devices: DevicesInUse
    candidate_nics: tuple[Nic, ...]  # devices of the host that would be taken if all were well
    release: MooncakeRelease | None  # Mooncake's, None if it is not known

    @property
    def has_host_gids(self) -> bool:
        """Whether all the processes certainly have the host's GIDs."""
        return all(map(has_host_gids, self.processes))

    @property
    def who(self) -> str:
        if len(self.processes) < 2:
            return self.processes[0].name if self.processes else "host"
        names = [process.name for process in self.processes]
        ranks = tuple(n for name in names if isinstance(name, Subject) for n in name.ranks)
        return Subject(f"{names[0]} and {len(names) - 1} more", "process", ranks)

    @property
    def environment(self) -> Mapping[str, str]:
        return self.processes[0].environment if self.processes else {}

    @property
    def nics(self) -> tuple[Nic, ...]:
        """The devices that the processes come to; () if that is not known."""
        names = () if isinstance(self.devices.names, Unknown) else self.devices.names
        return tuple(nic for nic in self.candidate_nics if nic.name in names)


def uses(rdma: RdmaFacts, needs: LaunchNeeds) -> list[Use]:
    """Group the launch's RDMA processes that use the same devices with the same variables for them.

    Groups and processes are in the launch's order.
    """
    release = release_of(needs.mooncake_version)
    by_devices: dict[str, Use] = {}
    for process in needs.rdma_processes:
        devices = devices_in_use(rdma, process, release)
        variables = {k: v for k, v in process.environment.items() if k in _VARIABLES}
        candidate_nics = tuple(nic for nic in rdma.present if nic.name in devices.candidates)
        key = repr((devices, sorted(variables.items()), has_host_gids(process)))
        use = by_devices.get(key, Use((), devices, candidate_nics, release))
        by_devices[key] = use._replace(processes=(*use.processes, process))
    return list(by_devices.values())


# What else of a process's environment decides how a device in use behaves.
_VARIABLES = (
    *("MC_IB_PORT", "MC_GID_INDEX", "NCCL_IB_GID_INDEX", "MC_MTU", "MC_PKEY_INDEX"),
    *("MC_MAX_MR_SIZE", "MC_NUM_QP_PER_EP", "MC_NUM_CQ_PER_CTX", "RDMAV_HUGEPAGES_SAFE"),
    *("MC_ENABLE_DEST_DEVICE_AFFINITY", "MC_ENABLE_HCA_PEER_AFFINITY"),
)
# What the store's client alone reads (client_service.cpp, get_auto_discover).
_OF_THE_CLIENT = ("MC_MS_AUTO_DISC", "MC_MS_FILTERS")


# Ranks of one server ask alike, and every check asks again: the facts of the last answer, what was
# asked, and the answer.
_last: list[tuple[RdmaFacts | None, object, DevicesInUse]] = [
    (None, None, DevicesInUse((), (), (), Transport.NONE, ""))
]


def devices_in_use(
    rdma: RdmaFacts, process: ProcessNeeds, release: MooncakeRelease | None = None
) -> DevicesInUse:
    """Return the devices that ``process`` uses, those that it loses, and its transport.

    Args:
        release: Mooncake's, None for the newest known.
    """
    asked = process.rdma, process.environment, process.container, has_host_gids(process), release
    last_rdma, last_asked, answer = _last[0]
    if last_rdma is not rdma or last_asked != asked:
        answer = _find_devices(rdma, process, release)
        _last[0] = rdma, asked, answer
    return answer


def _find_devices(
    rdma: RdmaFacts, process: ProcessNeeds, release: MooncakeRelease | None
) -> DevicesInUse:
    if process.rdma is None:
        return DevicesInUse((), (), (), Transport.NOT_ASKED, "does not use RDMA")
    named, environment = process.rdma.devices, process.environment
    if process.rdma.by_engine:
        environment = {k: v for k, v in environment.items() if k not in _OF_THE_CLIENT}
    tent = _tent(rdma, process) if TENT in environment else None
    for unknown in (named, rdma.nics, tent):
        if isinstance(unknown, Unknown):
            return _unknown_devices(unknown)
    assert not isinstance(named, Unknown)
    wanted, chosen, how = _devices_to_find(rdma, named, environment, process.rdma.origin)
    if isinstance(wanted, Unknown):
        return _unknown_devices(wanted)
    automatic = chosen is not ChosenBy.LAUNCH
    if not automatic and not named:
        return DevicesInUse((), (), (), Transport.NONE, how, chosen=chosen)
    there = {nic.name: nic for nic in rdma.present}
    candidates = tuple(there) if wanted is None else wanted
    filters = environment.get("MC_TE_FILTERS", "")
    if release is not None and not release.reads_te_filters:
        filters = ""
    listed = {*map(str.strip, filters.split(","))} - {""}

    def reach(name: str) -> Lost | Unknown | None:
        if listed and name not in listed:
            return Lost(name, Cause.FILTERED, "MC_TE_FILTERS leaves it out")
        if name not in there:
            return Lost(name, Cause.MISSING, "this host has no such RDMA device")
        return reach_problem(there[name])

    def open_problem(name: str) -> Lost | Unknown | None:
        problem = port_problem(there[name], environment)
        if problem is None:
            problem = gid_problem(there[name], environment, release, has_host_gids(process))
        return problem

    reach_problems = {name: reach(name) for name in candidates}
    reached = [name for name, problem in reach_problems.items() if problem is None]
    open_problems = {name: open_problem(name) for name in reached}
    names = tuple(name for name, problem in open_problems.items() if problem is None)
    problems = (*reach_problems.values(), *open_problems.values())
    lost = tuple(problem for problem in problems if isinstance(problem, Lost))
    doubts = [problem for problem in problems if isinstance(problem, Unknown)]
    if forces_tcp(named, environment):
        forced = DevicesInUse((), candidates, (), Transport.TCP, "MC_FORCE_TCP")
        return forced._replace(chosen=ChosenBy.FORCED_TCP)
    silent = automatic and "MC_FORCE_HCA" not in environment
    without = Transport.TCP if silent else Transport.NONE
    if doubts:
        left = tuple(name for name in reached if not isinstance(open_problems[name], Lost))
        of_gids = len(doubts) == len(left) - len(names) and all(
            port_problem(there[name], environment) is None for name in left
        )
        at_most = left if of_gids else ()
        return DevicesInUse(doubts[0], candidates, lost, doubts[0], how, without, chosen, at_most)
    transport = Transport.RDMA if names else Transport.NONE if reached else without
    return DevicesInUse(names, candidates, lost, transport, how, without, chosen)


def _tent(rdma: RdmaFacts, process: ProcessNeeds) -> Unknown | None:
    """Return why the engine TENT makes the devices unknown; None if this Mooncake has no TENT."""
    parts = Unknown("its container has its own") if (process.container is not None) else rdma.parts
    if isinstance(parts, Unknown):
        return parts.of(f"{TENT}: whether this Mooncake has that engine is not known: ")
    if "tent" not in parts:
        return None
    return Unknown(f"{TENT}: that engine chooses its devices by itself")


def _unknown_devices(reason: Unknown) -> DevicesInUse:
    return DevicesInUse(reason, (), (), reason, "")


def _devices_to_find(
    rdma: RdmaFacts, named: tuple[str, ...], environment: Mapping[str, str], origin: str
) -> tuple[tuple[str, ...] | Unknown | None, ChosenBy, str]:
    """Return ``(names, who chose them, the place of the names)``, as in client_service.cpp.

    names: the devices to look for, None for all of the host, Unknown if a topology file is unread.

    Args:
        named: The devices that the launch names.
        origin: Where it names them.
    """
    if not _finds_devices_itself(named, environment):
        return tuple(dict.fromkeys(named)), ChosenBy.LAUNCH, origin
    path = environment.get("MC_CUSTOM_TOPO_JSON")
    if path is not None:
        content = rdma.topologies.get(path, Unknown(f"{path}: not an absolute path", absent=True))
        if isinstance(content, str):
            return _devices_of_topology(content), ChosenBy.TOPOLOGY, f"MC_CUSTOM_TOPO_JSON={path}"
        if not content.absent:
            return content, ChosenBy.TOPOLOGY, path
    if "MC_MS_FILTERS" in environment:
        text = environment["MC_MS_FILTERS"]
        names = dict.fromkeys(filter(None, map(str.strip, text.split(","))))
        return tuple(names), ChosenBy.FILTERS, f"MC_MS_FILTERS={text!r}"
    return None, ChosenBy.DISCOVERY, ChosenBy.DISCOVERY.value


def _finds_devices_itself(named: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Tell whether Mooncake looks for devices itself: as MC_MS_AUTO_DISC says, or without names."""
    switch = leading_integer(environment.get("MC_MS_AUTO_DISC", ""))
    return switch == 1 if switch in (0, 1) else not named


def forces_tcp(named: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Tell whether MC_FORCE_TCP keeps a store's client off RDMA.

    It does if Mooncake looks for devices itself; devices that are named are opened all the same.
    """
    return "MC_FORCE_TCP" in environment and _finds_devices_itself(named, environment)


def _devices_of_topology(content: str) -> tuple[str, ...]:
    """Return the devices of ``{"cpu:0": [[preferred], [others]]}``; () for any other content."""
    import json

    try:
        rows = json.loads(content).values()
        return tuple(dict.fromkeys(str(name) for row in rows for half in row for name in half))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()


DEFAULT_PORT = 1


def port_of(environment: Mapping[str, str]) -> int:
    """Return the number in MC_IB_PORT; 1 if that is not a number from 1 to 255."""
    number = leading_integer(environment.get("MC_IB_PORT", ""))
    return number if number is not None and 0 < number < 256 else DEFAULT_PORT


@or_unknown
def reach_problem(nic: Nic) -> Lost | Unknown | None:
    """Return why Mooncake does not list a device, None if it lists the device (topology.cpp)."""
    for problem in (file_problem(nic), provider_problem(nic)):
        if problem is not None:
            return problem
    states = [port.state for port in require(nic.ports) if port.gid_table != 0]
    if any(state == "ACTIVE" for state in states):
        return None
    unknown = next((state for state in states if isinstance(state, Unknown)), None)
    return Lost(nic.name, Cause.PORT, "no port of it is active") if unknown is None else unknown


def file_problem(nic: Nic) -> Lost | Unknown | None:
    """Return why a device cannot be opened: its file below /dev/infiniband, or libibverbs' refusal.

    Returns:
        None if it can be opened, or libibverbs does not list it. Unknown if the file was not tried.
    """
    device_file = nic.uverbs_node
    cause = Cause.UVERBS
    if isinstance(device_file, Unknown):
        if not device_file.absent:
            return device_file
        why = f"/dev/infiniband/{nic.uverbs} does not exist" if nic.uverbs else device_file.reason
    elif not device_file.character:
        why = f"{device_file.path} is not a character device"
    elif not device_file.opens:
        why = f"{device_file.path}: {device_file.why_not}"
    elif nic.verbs.listed is True and nic.verbs.error:
        # The rdma cgroup has no handle left (kernel/cgroup/rdma.c); seen.
        cause = Cause.CGROUP if nic.verbs.errno == EAGAIN else cause
        why = f"ibv_open_device: {nic.verbs.error}"
    else:
        return None
    return Lost(nic.name, cause, why)


@or_unknown
def provider_problem(nic: Nic) -> Lost | Unknown | None:
    """Return a problem if libibverbs has no library for the device, else None."""
    if require(nic.verbs.listed):
        return None
    return Lost(nic.name, Cause.PROVIDER, "libibverbs does not list it")


@or_unknown
def port_problem(nic: Nic, environment: Mapping[str, str]) -> Lost | Unknown | None:
    """Return a problem if the port that Mooncake opens is not active, else None."""
    number = port_of(environment)
    port = require(nic.port(number))
    if port is None:
        return Lost(nic.name, Cause.PORT, f"it has no port {number}")
    state = require(port.state)
    return None if state == "ACTIVE" else Lost(nic.name, Cause.PORT, f"port {number} is {state}")


@or_unknown
def gid_problem(
    nic: Nic, environment: Mapping[str, str], release: MooncakeRelease | None, has_host_gids: bool
) -> Lost | Unknown | None:
    """Return a problem if no GID of the opened port is usable.

    Args:
        has_host_gids: If False, the container may have more GIDs, and the problem becomes Unknown.
    """
    choice = require(gid_choice(nic, environment, release))
    if choice.gid or has_host_gids:
        return None if choice.gid else Lost(nic.name, Cause.GID, choice.how)
    return Unknown(
        f"{choice.how} on the host, and its network may add entries of its own",
        advice="run this check inside the container: its own addresses are in the table there",
    )


def has_host_gids(process: ProcessNeeds) -> bool:
    """Tell whether a process certainly has the host's GIDs; a pod's own network may add others."""
    container = process.container
    return container is None or container.host_network or container.own_network


@or_unknown
def gid_choice(
    nic: Nic, environment: Mapping[str, str], release: MooncakeRelease | None
) -> GidChoice | Unknown:
    """Return which GID Mooncake takes on the port that it opens; ``gid`` of the choice is None if
    none will do.

    Returns:
        Unknown without such a port, or if the port could not be read.
    """
    number = port_of(environment)
    port = require(nic.port(number))
    if port is None:
        return Unknown(f"{nic.name} has no port {number}")
    return choose_gid(port, environment, release)
