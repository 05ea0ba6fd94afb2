"""Rules about engines beside SGLang: what each refuses, takes for something else, or ignores."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.processes.mooncake_users import place
from preflight.processes.processes import LaunchProcess
from preflight.programs.store_config import Source
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


@RULES.process("consumer-release")
def consumer_release(process: LaunchProcess) -> Iterator[Seen]:
    consumer = process.consumer
    if consumer is not None and consumer.named not in ("", *consumer.release.split()):
        kind = process.kind.value
        yield Seen(f"{kind}: {consumer.named} by its image: read as {consumer.release}")


@RULES.launch("store-file-read-differently")
def store_file_read_differently(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Hold the segment that each reader of one file comes to against the others'."""
    readers: dict[tuple[str, object], dict[str, LaunchProcess]] = {}
    for process in processes:
        where = place(process)
        for path, becomes in _segment_of_file(process) if where is not None else ():
            readers.setdefault((path, where), {}).setdefault(becomes, process)
    for (path, _), found in readers.items():
        if len(found) > 1:
            said = "; ".join(f"{becomes} to {each.name}" for becomes, each in found.items())
            yield Seen(f"global_segment_size of {path}: {said}")


def _segment_of_file(process: LaunchProcess) -> Iterator[tuple[str, str]]:
    """Yield each file that a process has a store's settings from, and what its segment comes to."""
    server = process.server
    store = None if server is None else server.store
    if server is not None and store is not None and store.source is Source.FILE:
        size = configured_segment(server)
        word = process.command.environment.get("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH")
        if word is not None and word.text and not word.unresolved:
            refused = store.error or size is None
            yield word.text, "refused" if refused else format_bytes(max(0, size or 0))
    ends = () if process.consumer is None else process.consumer.refused
    for own in process.stores:
        unknown = isinstance(own.client, Unknown)
        if own.file and (own.refused or (unknown and ends)):
            yield own.file, "refused"
        elif own.file and not isinstance(own.client, Unknown):
            yield own.file, format_bytes(own.client.segment_bytes)
