"""The page of ``check --html``: what was found, and the pictures that go with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.base.unknown import Unknown, UnreadTopicError
from preflight.base.usage_error import UsageError
from preflight.check.judge_host import JudgedHost
from preflight.check.report import Report
from preflight.inputs.host_source import launch_of
from preflight.inputs.launch_words import LaunchWords
from preflight.pictures.html_report import Made, Section, report_page
from preflight.render.html_page import Html, element, join

if TYPE_CHECKING:
    from preflight.pictures.launch_takes import Take
    from preflight.pictures.memory_map import MemoryMap

# What the pictures are drawn from, whatever was checked.
MAP_TOPICS = ("memory", "hugetlb", "numa")
PAGE_TOPICS = (*MAP_TOPICS, "system", "limits", "pci", "gpus", "rdma", "storage")


def check_page(report: Report, seen: JudgedHost, words: LaunchWords, made: Made) -> str:
    """The whole document. A picture whose facts are missing says so in its place.

    words: the launch as it was given.
    """
    sections = [
        Section("Memory", lambda: _memory(seen)),
        Section("GPUs and NICs", lambda: _topology(seen)),
    ]
    if seen.launch is not None:
        sections.append(Section("What the cache holds", lambda: _capacity(seen, words)))
        sections.append(Section("The launch", lambda: _launch(seen)))
    sections.append(Section("The host", lambda: _host(seen)))
    return report_page(report, sections, made)


def memory_of(seen: JudgedHost) -> MemoryMap:
    """The host's memory, with the launch on it where one was given."""
    from preflight.pictures.launch_takes import launch_takes
    from preflight.pictures.memory_map import memory_map

    takes: tuple[Take, ...] | Unknown | None = None
    if seen.launch is not None:
        takes = seen.launch if isinstance(seen.launch, Unknown) else launch_takes(seen.launch)
    return memory_map(seen.facts, takes)


def _memory(seen: JudgedHost) -> Html:
    from preflight.pictures.memory_figure import memory_figure

    return memory_figure(memory_of(seen))


def _topology(seen: JudgedHost) -> Html | Unknown:
    from preflight.pictures.topology_figure import topology_figure
    from preflight.topology.build import topology_of

    try:
        found = topology_of(seen.facts, seen.needs)
    except UnreadTopicError as error:
        return Unknown(str(error))
    return topology_figure(found)


def _capacity(seen: JudgedHost, words: LaunchWords) -> Html | Unknown:
    """Every server's tiers, and the curve of the benchmark that the launch itself starts."""
    launch = launch_of(words, seen.host)
    if isinstance(seen.launch, Unknown):
        return seen.launch
    if seen.launch is None or launch is None:
        return Unknown("no launch was given")
    from preflight.capacity.answer import Asked, answer
    from preflight.capacity.conclusions import conclusions
    from preflight.pictures.capacity_figure import capacity_figure

    try:
        found = answer(
            seen.launch.sizing.inputs,
            launch[1],
            seen.host.root,
            Asked(),
            seen.facts.storage.folders,
        )
    except (UsageError, UnreadTopicError) as error:
        return Unknown(str(error))
    parts: list[Html] = []
    for server in found.servers:
        heading = f"{server.subject}, {server.model}" if server.model else server.subject
        parts += [element("h3", heading), capacity_figure(server.capacity)]
        said = (*conclusions(server, found.workload), *server.notes)
        if said:
            parts.append(element("ul", *(element("li", note) for note in said)))
    return join([*parts, *(element("p", note) for note in found.notes)], "\n")


def _launch(seen: JudgedHost) -> Html | Unknown:
    from preflight.pictures.input_tables import launch_tables

    if seen.launch is None:
        return Unknown("no launch was given")
    if isinstance(seen.launch, Unknown):
        return seen.launch
    return launch_tables(seen.launch.needs, seen.launch.sizing)


def _host(seen: JudgedHost) -> Html:
    from preflight.pictures.input_tables import host_table

    return host_table(seen.facts)
