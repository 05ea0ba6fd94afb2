"""Rules about what the processes of a launch share in one store: segments and keys."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.unknown import Unknown
from preflight.processes.processes import Kind, LaunchProcess, SglangServer
from preflight.programs.consumer_grammar import sglang_segment_bytes
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_STORE = "SGLang 0.5.23 mooncake_store.py"


@RULES.launch(
    "segment-nowhere",
    Severity.WARN,
    "no process of the launch contributes a segment",
    "each rank tries ten times to store its first object, then ends with a RuntimeError",
    "start a store service or mooncake_client first, or give the servers a segment",
    f"{_STORE} warmup",
)
def segment_nowhere(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    servers = [process.server for process in processes if process.server]
    stores = [server for server in servers if server.store is not None]
    owners = {Kind.CLIENT, Kind.STORE_SERVICE} & {process.kind for process in processes}
    if not stores or owners:
        return
    if all(_size(server) == 0 for server in stores):
        yield Seen(
            "global_segment_size is 0 in every server, and no store service or mooncake_client "
            "is in this source: one must run elsewhere",
            stores[0].command.origin,
        )


@RULES.launch(
    "keys-collide",
    Severity.WARN,
    "servers that share a master and a model name, and differ in tensor parallelism or KV type",
    "their keys are the same and their pages are not: short reads count as hits",
    "give each its own extra_backend_tag, or the same --tp-size and --kv-cache-dtype",
    f"{_STORE} keys; a short read that counts as success was seen by running it",
)
def keys_collide(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    seen: dict[tuple[object, ...], SglangServer] = {}
    for process in processes:
        server = process.server
        if server is None or server.store is None:
            continue
        served = server.value("served_model_name")
        name = server.value("model_path") if served is None else served
        master = server.store.value("master_server_address")
        tag = server.store.extra.get("extra_backend_tag")
        if isinstance(name, Unknown) or isinstance(master, Unknown):
            continue
        first = seen.setdefault((name, master, tag), server)
        layout = [(s.value("tp_size"), s.value("kv_cache_dtype")) for s in (first, server)]
        known = not any(isinstance(value, Unknown) for pair in layout for value in pair)
        if known and layout[0] != layout[1]:
            yield Seen(
                f"{first.command.origin} and {server.command.origin} share the master {master} and "
                f"the name {name!r}, with (tp, KV type) {layout[0]} and {layout[1]}",
                server.command.origin,
            )


@RULES.launch(
    "model-name-shared",
    Severity.WARN,
    "servers of different models under one served name and one master",
    "they read each other's KV cache as their own",
    "give each its own --served-model-name",
    "SGLang 0.5.23 hybrid_pool_assembler.py; before 0.5.17 no model is in the key at all",
)
def model_name_shared(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    seen: dict[tuple[object, object], SglangServer] = {}
    for process in processes:
        server = process.server
        if server is None or server.store is None or server.value("served_model_name") is None:
            continue
        name, master = (
            server.value("served_model_name"),
            server.store.value("master_server_address"),
        )
        paths = server.value("model_path")
        if any(isinstance(value, Unknown) for value in (name, master, paths)):
            continue
        first = seen.setdefault((name, master), server)
        if first.value("model_path") != paths:
            text = f"{first.value('model_path')} and {paths} are both served as {name!r}"
            yield Seen(text, server.command.origin)


def _size(server: SglangServer) -> int | None:
    try:
        value = server.store.value("global_segment_size") if server.store else None
        unknown = value is None or isinstance(value, Unknown)
        return None if unknown else sglang_segment_bytes(value)
    except ValueError:
        return None
