"""Rules about engines beside SGLang: what each refuses, takes for something else, or ignores."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.processes.mooncake_users import place
from preflight.processes.processes import Kind, LaunchProcess
from preflight.programs.store_config import Source
from preflight.programs.store_service_config import service_arguments
from preflight.rules.rules import RuleSet, Seen
from preflight.sglang.launch import configured_segment

RULES = RuleSet("consumers")


@RULES.process("consumer-refused")
def consumer_refused(process: LaunchProcess) -> Iterator[Seen]:
    for text in process.consumer.refused if process.consumer else ():
        yield Seen(f"{process.kind.value}: {text}")


@RULES.process("consumer-misread")
def consumer_misread(process: LaunchProcess) -> Iterator[Seen]:
    yield from map(Seen, process.consumer.misread if process.consumer else ())


@RULES.process("consumer-ignored")
def consumer_ignored(process: LaunchProcess) -> Iterator[Seen]:
    yield from map(Seen, process.consumer.ignored if process.consumer else ())


@RULES.launch("store-file-read-differently")
def store_file_read_differently(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Hold the segment that each reader of one file comes to against the others'."""
    readers: dict[tuple[str, object], dict[str, LaunchProcess]] = {}
    for process in processes:
        where = place(process)
        read = _segment_of_file(process)
        if read is not None and where is not None:
            path, becomes = read
            readers.setdefault((path, where), {}).setdefault(becomes, process)
    for (path, _), found in readers.items():
        if len(found) > 1:
            said = "; ".join(f"{becomes} to {each.name}" for becomes, each in found.items())
            yield Seen(f"global_segment_size of {path}: {said}")


def _segment_of_file(process: LaunchProcess) -> tuple[str, str] | None:
    """The file that a process has its store's settings from, and what its segment comes to."""
    server, own = process.server, process.store
    variable = "MOONCAKE_CONFIG_PATH"
    if server is not None:
        store = server.store
        if store is None or store.source is not Source.FILE:
            return None
        variable, size = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", configured_segment(server)
        becomes = "refused" if store.error or size is None else format_bytes(max(0, size))
    elif own is None:
        return None
    elif isinstance(own.client, Unknown):
        refused = process.consumer.refused if process.consumer else own.refused
        if not refused:
            return None
        becomes = "refused"
    else:
        becomes = "refused" if own.refused else format_bytes(own.client.segment_bytes)
    word = process.command.environment.get(variable)
    if process.kind is Kind.STORE_SERVICE:
        given = service_arguments(process.arguments).config
        word = given if given is not None and given.text else word
    return None if word is None or word.unresolved or not word.text else (word.text, becomes)
