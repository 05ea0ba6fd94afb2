"""Which RDMA devices a process of the launch comes to use, as Mooncake's topology decides.

First it lists the devices that it can reach (topology.cpp, listInfiniBandDevices), then it opens
each (rdma_context.cpp, openRdmaDevice) and drops those that fail. Whether nothing left is an error
or silent TCP depends on who chose them. Registered memory is charged once per device in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from checks.base.c_numbers import leading_integer
from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.problems import Cause, Lost, open_problem, reach_problem
from checks.releases.mooncake import MooncakeRelease, release_of


class Transport(Enum):
    """What a process ends up with."""

    RDMA = "RDMA"
    TCP = "TCP, without a word"
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
    """names: the devices that memory is registered with, or why that cannot be told.

    candidates: those that it would take if all were well. lost: which of them are not used, and
    why. chosen: who chose them; how: the same, with where that is written. without: what becomes of
    a process that can open none of them.
    """

    names: tuple[str, ...] | Unknown
    candidates: tuple[str, ...]
    lost: tuple[Lost, ...]
    transport: Transport | Unknown
    how: str
    without: Transport = Transport.NONE
    chosen: ChosenBy = ChosenBy.NOBODY

    @property
    def missing(self) -> tuple[str, ...]:
        """Named devices that the host does not have."""
        return tuple(lost.name for lost in self.lost if lost.cause is Cause.MISSING)


class Use(NamedTuple):
    """Processes of a launch that come to the same devices, with the same environment for them."""

    processes: tuple[ProcessNeeds, ...]
    devices: DevicesInUse

    @property
    def who(self) -> str:
        first, more = self.processes[0].name, len(self.processes) - 1
        return f"{first} and {more} more" if more else first

    @property
    def environment(self) -> Mapping[str, str]:
        return self.processes[0].environment


def uses(rdma: RdmaFacts, needs: LaunchNeeds) -> list[Use]:
    """The launch's RDMA processes, those alike together."""
    release = release_of(needs.mooncake_version)
    groups: dict[str, list[ProcessNeeds]] = {}
    found: dict[str, DevicesInUse] = {}
    for process in needs.rdma_processes:
        devices = devices_in_use(rdma, process, release)
        given = {k: v for k, v in process.environment.items() if k in _VARIABLES}
        key = repr((devices, sorted(given.items())))
        groups.setdefault(key, []).append(process)
        found[key] = devices
    return [Use(tuple(group), found[key]) for key, group in groups.items()]


# What else of a process's environment decides how a device in use behaves.
_VARIABLES = (
    "MC_IB_PORT",
    "MC_GID_INDEX",
    "NCCL_IB_GID_INDEX",
    "MC_MTU",
    "MC_PKEY_INDEX",
    "MC_MAX_MR_SIZE",
    "MC_NUM_QP_PER_EP",
    "MC_NUM_CQ_PER_CTX",
    "MC_ENABLE_DEST_DEVICE_AFFINITY",
    "MC_ENABLE_HCA_PEER_AFFINITY",
    "RDMAV_HUGEPAGES_SAFE",
)


def devices_in_use(
    rdma: RdmaFacts, process: ProcessNeeds, release: MooncakeRelease | None = None
) -> DevicesInUse:
    """The devices of ``process``; ``release`` of Mooncake, None: as the newest known."""
    if process.rdma is None:
        return DevicesInUse((), (), (), Transport.NOT_ASKED, "does not use RDMA")
    named, environment = process.rdma.devices, process.environment
    for unknown in (named, rdma.nics):
        if isinstance(unknown, Unknown):
            return _unknown(unknown)
    if "MC_USE_TENT" in environment:
        return _unknown(Unknown("MC_USE_TENT: that engine chooses its devices by itself"))
    assert not isinstance(named, Unknown)
    wanted, chosen, how = _wanted(rdma, named, environment, process.rdma.origin)
    if isinstance(wanted, Unknown):
        return _unknown(wanted)
    automatic = chosen is not ChosenBy.LAUNCH
    if not automatic and not named:
        return DevicesInUse((), (), (), Transport.NONE, how, chosen=chosen)
    there = {nic.name: nic for nic in rdma.present}
    candidates = tuple(there) if wanted is None else wanted
    listed = _listed(environment, release)
    lost: list[Lost] = []
    reached: list[Nic] = []
    doubts: list[Unknown] = []
    for name in candidates:
        problem: Lost | Unknown | None
        if listed is not None and name not in listed:
            problem = Lost(name, Cause.FILTERED, "MC_TE_FILTERS leaves it out")
        elif name not in there:
            problem = Lost(name, Cause.MISSING, "this host has no such RDMA device")
        else:
            problem = reach_problem(there[name])
        if isinstance(problem, Lost):
            lost.append(problem)
        elif isinstance(problem, Unknown):
            doubts.append(problem)
        else:
            reached.append(there[name])
    names = []
    for nic in reached:
        problem = open_problem(nic, environment, release)
        if isinstance(problem, Lost):
            lost.append(problem)
        elif isinstance(problem, Unknown):
            doubts.append(problem)
        else:
            names.append(nic.name)
    if automatic and "MC_FORCE_TCP" in environment:
        return DevicesInUse(
            (), candidates, (), Transport.TCP, "MC_FORCE_TCP", chosen=ChosenBy.FORCED_TCP
        )
    silent = automatic and "MC_FORCE_HCA" not in environment
    without = Transport.TCP if silent else Transport.NONE
    if doubts:
        return DevicesInUse(doubts[0], candidates, tuple(lost), doubts[0], how, without, chosen)
    transport = Transport.RDMA if names else Transport.NONE
    if not reached:
        transport = without
    return DevicesInUse(tuple(names), candidates, tuple(lost), transport, how, without, chosen)


def _unknown(reason: Unknown) -> DevicesInUse:
    return DevicesInUse(reason, (), (), reason, "")


def _wanted(
    rdma: RdmaFacts, named: tuple[str, ...], environment: Mapping[str, str], origin: str
) -> tuple[tuple[str, ...] | Unknown | None, ChosenBy, str]:
    """Return the names to look for (None: all), who chose them, and where that is written.

    Source: client_service.cpp, get_auto_discover and get_auto_discover_filters.
    """
    automatic = not named
    switch = leading_integer(environment.get("MC_MS_AUTO_DISC", ""))
    if switch in (0, 1):
        automatic = switch == 1
    if not automatic:
        return tuple(dict.fromkeys(named)), ChosenBy.LAUNCH, origin
    path = environment.get("MC_CUSTOM_TOPO_JSON")
    if path is not None:
        content = rdma.topologies.get(path, Unknown(f"{path}: not an absolute path", absent=True))
        if isinstance(content, str):
            return _of_topology(content), ChosenBy.TOPOLOGY, f"MC_CUSTOM_TOPO_JSON={path}"
        if not content.absent:
            return content, ChosenBy.TOPOLOGY, path
    if "MC_MS_FILTERS" in environment:
        text = environment["MC_MS_FILTERS"]
        names = [name.strip() for name in text.split(",")]
        return (
            tuple(dict.fromkeys(filter(None, names))),
            ChosenBy.FILTERS,
            f"MC_MS_FILTERS={text!r}",
        )
    return None, ChosenBy.DISCOVERY, ChosenBy.DISCOVERY.value


def _of_topology(content: str) -> tuple[str, ...]:
    """The devices of ``{"cpu:0": [[preferred], [available]]}``; none where it is not that."""
    import json

    try:
        rows = json.loads(content)
        return tuple(
            dict.fromkeys(str(name) for row in rows.values() for half in row for name in half)
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()


def _listed(environment: Mapping[str, str], release: MooncakeRelease | None) -> set[str] | None:
    """MC_TE_FILTERS: what the engine may take at all; None where it says nothing."""
    if release is not None and not release.reads_te_filters:
        return None
    names = {name.strip() for name in environment.get("MC_TE_FILTERS", "").split(",")} - {""}
    return names or None
