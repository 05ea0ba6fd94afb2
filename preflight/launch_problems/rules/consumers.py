"""Rules about engines beside SGLang: what each refuses, takes for something else, or ignores."""

from __future__ import annotations

from collections.abc import Iterator

from checks.framework.problem import Match, Problems
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from preflight.engines.programs.store_config import Source
from preflight.engines.sglang.launch import configured_segment
from preflight.processes.mooncake_users import place
from preflight.processes.processes import LaunchProcess
from preflight.processes.services import master_address

RULES = Problems("consumers.md")


@RULES("consumer-misread")
def consumer_misread(process: LaunchProcess) -> Iterator[Match]:
    return map(Match, process.consumer.misread if process.consumer else ())


@RULES("consumer-ignored")
def consumer_ignored(process: LaunchProcess) -> Iterator[Match]:
    return map(Match, process.consumer.ignored if process.consumer else ())


@RULES("consumer-refused")
def consumer_refused(process: LaunchProcess) -> Iterator[Match]:
    if (consumer := process.consumer) is not None:
        by = (refusal.says for refusal in consumer.refused_by if consumer.doubt_of(refusal) == "")
        for text in (*consumer.refused, *by):
            yield Match(f"{process.kind.value}: {text}")


@RULES("consumer-refused-by-assumed")
def consumer_refused_by_assumed(process: LaunchProcess) -> Iterator[Match]:
    if (consumer := process.consumer) is not None:
        for refusal in consumer.refused_by:
            if doubt := consumer.doubt_of(refusal):
                yield Match(f"{process.kind.value}: {refusal.says} ({doubt})")


@RULES("consumer-release")
def consumer_release(process: LaunchProcess) -> Iterator[Match]:
    for named, release in process.consumer.other_releases() if process.consumer else ():
        yield Match(f"{process.kind.value}: {named}: read as {release}")


@RULES("lookup-socket-shared")
def lookup_socket_shared(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each engine whose key look-up socket an earlier engine at the same place
    has too.

    An earlier engine for whose end the script waits is passed over.
    """
    first: dict[tuple[object, str], LaunchProcess] = {}
    for process in processes:
        where = place(process)
        for path in process.consumer.sockets if process.consumer and where is not None else ():
            other = first.setdefault((where, path), process)
            if other is not process and not other.command.waited:
                text = f"{path} of {other.name} is {process.name}'s too"
                yield Match(text, process.command.origin)


@RULES("metadata-mixed")
def metadata_mixed(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each store client whose metadata server differs from that of the first
    client of the same master.
    """
    first: dict[str, tuple[str, LaunchProcess]] = {}
    for process in processes:
        for master, metadata in dict.fromkeys(_store_addresses(process)):
            known, other = first.setdefault(master, (metadata, process))
            if known != metadata:
                text = f"{other.name} has {known!r}, {process.name} has {metadata!r}"
                yield Match(f"metadata servers of the store of {master}: {text}")


def _store_addresses(process: LaunchProcess) -> Iterator[tuple[str, str]]:
    """Yield master and metadata server of each store client of a process, if both are known and not
    empty.

    A server with standalone storage is left out.
    """
    store = None if process.server is None else process.server.store
    pairs: list[tuple[object, object]] = [(each.master, each.metadata) for each in process.stores]
    if store is not None and not store.error and store.value("standalone_storage") is False:
        pairs.append((store.value("master_server_address"), store.value("metadata_server")))
    for master, metadata in pairs:
        if isinstance(master, str) and isinstance(metadata, str) and master and metadata:
            yield master_address(master), metadata


@RULES("store-file-read-differently")
def store_file_read_differently(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each store settings file from which processes get different sizes."""
    readers: dict[tuple[str, object], dict[str, LaunchProcess]] = {}
    for process in processes:
        where = place(process)
        for path, becomes in _segment_texts(process) if where is not None else ():
            readers.setdefault((path, where), {}).setdefault(becomes, process)
    for (path, _), sizes in readers.items():
        if len(sizes) > 1:
            text = "; ".join(f"{becomes} to {each.name}" for becomes, each in sizes.items())
            yield Match(f"global_segment_size of {path}: {text}")


def _segment_texts(process: LaunchProcess) -> Iterator[tuple[str, str]]:
    """Yield (path, segment size) for each store settings file that a process reads.

    The size is in words: "refused" if the file ends the process.
    """
    server = process.server
    store = None if server is None else server.store
    if server is not None and store is not None and store.source is Source.FILE:
        size = configured_segment(server)
        word = process.command.environment.get("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH")
        if word is not None and word.text and not word.unresolved:
            refused = store.error or size is None
            yield word.text, "refused" if refused else format_bytes(max(0, size or 0))
    consumer = process.consumer
    ends = () if consumer is None else (*consumer.refused, *consumer.refused_by)
    for client in process.stores:
        unknown = isinstance(client.client, Unknown)
        if client.file and (client.refused or (unknown and ends)):
            yield client.file, "refused"
        elif client.file and not isinstance(client.client, Unknown):
            yield client.file, format_bytes(client.client.segment_bytes)
