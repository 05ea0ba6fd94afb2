"""What can be found wrong: a declaration per rule, and the findings that rules make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from checks.base.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SglangRelease
from preflight.launches.source import Origin
from preflight.processes.processes import LaunchProcess, SglangServer
from preflight.sglang.model_geometry import ModelGeometry


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
    """What a server runs on: its model, where that is known, and the two releases.

    sglang_unsure, mooncake_assumed, mooncake_newer: why a release may be another one, or behave as
    none that is known; "" where not.
    """

    geometry: ModelGeometry | Unknown
    sglang: SglangRelease
    mooncake: MooncakeRelease
    sglang_unsure: str = ""
    mooncake_assumed: str = ""
    mooncake_newer: str = ""


ServerCheck = Callable[[SglangServer], Iterable[Seen]]
MemoryCheck = Callable[[SglangServer, Versions], Iterable[Seen]]
LaunchCheck = Callable[[tuple[LaunchProcess, ...]], Iterable[Seen]]
Check = TypeVar("Check", ServerCheck, MemoryCheck, LaunchCheck)


class Declared(Generic[Check]):
    """Rules whose checks look at the same thing; calling it declares the next one."""

    def __init__(self) -> None:
        self.checks: list[tuple[Rule, Check]] = []

    def __call__(
        self, id_: str, severity: Severity, finds: str, consequence: str, remedy: str, source: str
    ) -> Callable[[Check], Check]:
        """Declare a rule above the function that checks it."""

        def add(check: Check) -> Check:
            self.checks.append((Rule(id_, severity, finds, consequence, remedy, source), check))
            return check

        return add


class RuleSet:
    """Rules of one topic, each declared above the function that checks it.

    server: about one SGLang server. launch: about all processes of a host together. memory: about
    one SGLang server with its model and versions.
    """

    def __init__(self) -> None:
        self.server: Declared[ServerCheck] = Declared()
        self.launch: Declared[LaunchCheck] = Declared()
        self.memory: Declared[MemoryCheck] = Declared()

    @property
    def rules(self) -> list[Rule]:
        checks = (*self.server.checks, *self.launch.checks, *self.memory.checks)
        return [rule for rule, _ in checks]

    def memory_findings(self, server: SglangServer, versions: Versions) -> Iterator[Finding]:
        """What the rules about memory find in one server."""
        for rule, check in self.memory.checks:
            for seen in check(server, versions):
                yield Finding(rule, seen.text, seen.origin or server.command.origin)

    def findings(self, processes: tuple[LaunchProcess, ...]) -> Iterator[Finding]:
        """What the rules find, rule by rule."""
        servers = [process.server for process in processes if process.server]
        for rule, server_check in self.server.checks:
            for server in servers:
                for seen in server_check(server):
                    yield Finding(rule, seen.text, seen.origin or server.command.origin)
        for rule, launch_check in self.launch.checks:
            for seen in launch_check(processes):
                yield Finding(rule, seen.text, seen.origin)
