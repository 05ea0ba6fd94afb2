"""What was understood of a launch: each process with its settings, and what was not read."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.unknown import Unknown
from preflight.launches.source import Origin, SourceNote
from preflight.processes.unread import NotRead


class Value(NamedTuple):
    """A setting as its program will understand it, and where it was written."""

    value: Any
    origin: str


class Understood(NamedTuple):
    """One process of a launch.

    program: as JSON names it; kind: for a person. number: how many are started, Unknown where that
    is not seen. group: the host, pod or container that it runs in. settings: those that were given
    (``given`` names them), and what follows from them. defaults: what a server takes for the rest.
    environment: what a program reads of it.
    """

    program: str
    kind: str
    number: int | Unknown
    group: str
    origin: Origin
    words: tuple[str, ...]
    settings: Mapping[str, Value]
    given: frozenset[str]
    defaults: Mapping[str, Value]
    environment: Mapping[str, Value]
    image: str | None
    release: Mapping[str, Value]
    model: Value | None
    model_config: str | None


class LaunchReading(NamedTuple):
    """A launch as it was understood."""

    name: str
    sentence: str
    processes: tuple[Understood, ...]
    unread: tuple[NotRead, ...]
    notes: tuple[SourceNote, ...]
