"""What can be found wrong: a declaration per rule, and the findings that rules make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from checks.unknown import Unknown
from preflight.launch_processes import LaunchProcess, SglangServer
from preflight.launch_source import Origin
from preflight.model_geometry import ModelGeometry
from preflight.mooncake_versions import Release
from preflight.sglang_versions import SglangRelease


class Severity(Enum):
    """fail: the process refuses it. warn: it runs, not as written. note: worth knowing."""

    FAIL = "fail"
    WARN = "warn"
    NOTE = "note"


class Rule(NamedTuple):
    """A rule's stable id, what it finds, what follows from that, and what to do instead."""

    id: str
    severity: Severity
    finds: str
    consequence: str
    remedy: str
    source: str  # where the consumer's behaviour was read or seen


class Finding(NamedTuple):
    """One place where a rule holds: the sentence for this case, and where it was written."""

    rule: Rule
    text: str
    origin: Origin | None = None


class Seen(NamedTuple):
    """What a rule's check yields for each place where it holds."""

    text: str
    origin: Origin | None = None


class Versions(NamedTuple):
    """What a server runs on: its model, where that is known, and the two releases."""

    geometry: ModelGeometry | Unknown
    sglang: SglangRelease
    mooncake: Release


ServerCheck = Callable[[SglangServer], Iterable[Seen]]
MemoryCheck = Callable[[SglangServer, Versions], Iterable[Seen]]
LaunchCheck = Callable[[tuple[LaunchProcess, ...]], Iterable[Seen]]


class RuleSet:
    """Rules of one topic, each declared above the function that checks it."""

    def __init__(self) -> None:
        self.servers: list[tuple[Rule, ServerCheck]] = []
        self.launches: list[tuple[Rule, LaunchCheck]] = []
        self.memories: list[tuple[Rule, MemoryCheck]] = []

    @property
    def rules(self) -> list[Rule]:
        every = (self.servers, self.launches, self.memories)
        return [rule for declared in every for rule, _ in declared]

    def server(
        self, id_: str, severity: Severity, finds: str, consequence: str, remedy: str, source: str
    ) -> Callable[[ServerCheck], ServerCheck]:
        """Declare a rule about one SGLang server."""

        def add(check: ServerCheck) -> ServerCheck:
            self.servers.append((Rule(id_, severity, finds, consequence, remedy, source), check))
            return check

        return add

    def launch(
        self, id_: str, severity: Severity, finds: str, consequence: str, remedy: str, source: str
    ) -> Callable[[LaunchCheck], LaunchCheck]:
        """Declare a rule about all processes of a host together."""

        def add(check: LaunchCheck) -> LaunchCheck:
            self.launches.append((Rule(id_, severity, finds, consequence, remedy, source), check))
            return check

        return add

    def memory(
        self, id_: str, severity: Severity, finds: str, consequence: str, remedy: str, source: str
    ) -> Callable[[MemoryCheck], MemoryCheck]:
        """Declare a rule about one SGLang server with its model and versions."""

        def add(check: MemoryCheck) -> MemoryCheck:
            self.memories.append((Rule(id_, severity, finds, consequence, remedy, source), check))
            return check

        return add

    def memory_findings(self, server: SglangServer, versions: Versions) -> Iterator[Finding]:
        """What the rules about memory find in one server."""
        for rule, check in self.memories:
            for seen in check(server, versions):
                yield Finding(rule, seen.text, seen.origin or server.command.origin)

    def findings(self, processes: tuple[LaunchProcess, ...]) -> Iterator[Finding]:
        """What the rules find, rule by rule."""
        servers = [process.server for process in processes if process.server]
        for rule, server_check in self.servers:
            for server in servers:
                for seen in server_check(server):
                    yield Finding(rule, seen.text, seen.origin or server.command.origin)
        for rule, launch_check in self.launches:
            for seen in launch_check(processes):
                yield Finding(rule, seen.text, seen.origin)
