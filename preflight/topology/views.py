"""Mooncake's view, process by process: foretold, and by the installed library's own word."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.placement.mooncake_topology import (
    ANY_PROCESS,
    VARIABLES,
    Location,
    View,
    differences,
    measured,
    predicted,
)
from checks.rdma.use import ChosenBy, DevicesInUse, Transport, devices_in_use
from checks.releases.mooncake import release_of
from checks.run.facts import Facts
from checks.software.facts import Environment

WITHOUT_CUDA = "mooncake-transfer-engine-non-cuda"


class Engine(NamedTuple):
    """The installed Mooncake: its wheel's name and version, "" where no wheel says so."""

    interpreter: str
    wheel: str
    version: str

    @property
    def knows_gpus(self) -> bool:
        return self.wheel != WITHOUT_CUDA


class MooncakeView(NamedTuple):
    """Processes that see the same.

    processes: names. release: whose rule it is, "" for the newest known. found: what the installed
    library answers; None where it was not asked. differs: (location, foretold, found).
    """

    processes: tuple[str, ...]
    release: str
    devices: DevicesInUse
    view: View | Unknown
    found: tuple[Location, ...] | Unknown | None
    differs: tuple[tuple[str, str, str], ...]


def engine_of_host(facts: Facts) -> Engine | Unknown:
    """The Mooncake that a launch would load here."""
    software = facts.topic("software")
    found = software if isinstance(software, Unknown) else software.engine
    if isinstance(found, Unknown):
        return found
    if not isinstance(found, Environment) or (found.package is None and not found.mooncake):
        return Unknown("no Mooncake is installed for this interpreter or the python3 on PATH")
    wheel = found.mooncake[0] if found.mooncake else None
    name, version = ("", "") if wheel is None else (wheel.name, wheel.version)
    return Engine(found.interpreter, name, version)


def views_of(
    facts: Facts, needs: LaunchNeeds | None, engine: Engine | Unknown, root: Root | None
) -> tuple[MooncakeView, ...]:
    """``root``: where to ask the library itself; None: it is not asked."""
    processes = (ANY_PROCESS,) if needs is None else needs.rdma_processes
    version = "" if needs is None else needs.mooncake_version
    if not version and isinstance(engine, Engine):
        version = engine.version
    release = release_of(version)
    knows_gpus = isinstance(engine, Unknown) or engine.knows_gpus
    groups: dict[str, tuple[list[ProcessNeeds], DevicesInUse, View | Unknown]] = {}
    for process in processes:
        devices = devices_in_use(facts.rdma, process, release)
        view = predicted(
            facts.numa, facts.pci, facts.gpus, facts.rdma, process, release, knows_gpus
        )
        given = [process.environment.get(name) for name in VARIABLES]
        key = repr((devices, view, given))
        groups.setdefault(key, ([], devices, view))[0].append(process)
    return tuple(
        _asked(tuple(group), version, devices, view, engine, root)
        for group, devices, view in groups.values()
    )


def _asked(
    group: tuple[ProcessNeeds, ...],
    version: str,
    devices: DevicesInUse,
    view: View | Unknown,
    engine: Engine | Unknown,
    root: Root | None,
) -> MooncakeView:
    names = tuple(process.name for process in group)
    found = None if root is None else _found(group[0], devices, engine, root)
    differs: tuple[tuple[str, str, str], ...] = ()
    if isinstance(found, tuple) and isinstance(view, View):
        differs = differences(view.locations, found)
    return MooncakeView(names, version, devices, view, found, differs)


def _found(
    process: ProcessNeeds, devices: DevicesInUse, engine: Engine | Unknown, root: Root
) -> tuple[Location, ...] | Unknown:
    if isinstance(engine, Unknown):
        return engine
    if "MC_FORCE_TCP" in process.environment and devices.transport is Transport.TCP:
        return Unknown("not asked: the process is told to use TCP")
    if "MC_USE_TENT" in process.environment:
        return Unknown("not asked: MC_USE_TENT is another engine, whose answer is of another form")
    named = devices.chosen not in (ChosenBy.DISCOVERY, ChosenBy.TOPOLOGY)
    return measured(root, engine.interpreter, process, devices.candidates if named else ())
