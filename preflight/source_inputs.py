"""The inputs of a sizing, from a launch as it was written instead of from flags.

Each process of the source becomes processes with memory; what L2 comes to is exact where the model
is known, and two bounds otherwise, so there are two launches to judge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from checks.installed import installed_sglang
from checks.root import Root
from checks.units import MIB
from checks.unknown import Unknown
from preflight.device_pool import checkpoint_bytes
from preflight.launch import Launch, Process, Protocol, StoreClient
from preflight.launch_processes import Kind, LaunchProcess, SglangServer
from preflight.launch_rules import findings
from preflight.model_geometry import ModelGeometry, geometry_from_config
from preflight.mooncake_versions import Release
from preflight.placement import RankPlacement, binds_ranks, place_nics, place_ranks, unbound
from preflight.rules import Finding, Severity, Versions
from preflight.server_launch import (
    Hardware,
    Ranks,
    ServerMemory,
    configured_segment,
    plain_environment,
    server_client,
    server_memory,
    server_processes,
    server_ranks,
)
from preflight.sglang_versions import SglangRelease, sglang_release
from preflight.sizing_inputs import (
    MOST_RANKS,
    Flags,
    Input,
    SizingInputs,
    UsageError,
    choose_mooncake,
    given_ranks,
)
from preflight.store_environment import Note, read_store_settings
from preflight.well_known_models import well_known_model

# The SGLang whose arguments are known, and that is sized for when none is named.
SGLANG_VERSION = "0.5.23"


class SourceOptions(NamedTuple):
    """What the command line says beside the launch."""

    available_bytes: int | None = None
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None
    model_config: str | None = None  # the text of a config.json
    gpu_bytes: int | None = None  # the memory of the smallest GPU


class SourceInputs(NamedTuple):
    """A source's processes, what the rules find, and its launch at both bounds of L2.

    Where a number cannot be known the bounds are Unknown, with the variable's name.
    """

    processes: tuple[LaunchProcess, ...]
    findings: tuple[Finding, ...]
    least: SizingInputs | Unknown
    most: SizingInputs | Unknown
    memory: tuple[tuple[str, ServerMemory], ...]
    sglang: SglangRelease


class _Host(NamedTuple):
    """What of the command line and the host every process shares."""

    options: SourceOptions
    root: Root
    mooncake: Release
    sglang: SglangRelease
    default_page_bytes: int


class _Part(NamedTuple):
    """One source process's share: its ranks at either bound, and what was assumed."""

    least: tuple[Process, ...]
    most: tuple[Process, ...] | Unknown
    notes: tuple[Note, ...]


def gather_source(
    processes: tuple[LaunchProcess, ...],
    source: str,
    options: SourceOptions,
    root: Root,
    default_page_bytes: int | Unknown,
) -> SourceInputs:
    """Both bounds of what ``processes`` map on this host. Raises UsageError as flags do."""
    mooncake, version, notes = choose_mooncake(options.mooncake_version)
    default = 2 * MIB if isinstance(default_page_bytes, Unknown) else default_page_bytes
    sglang, sglang_version = _sglang(options)
    host = _Host(options, root, mooncake, sglang, default)
    servers = [process.server for process in processes if process.server]
    versions = [
        (server, Versions(_hardware(server, host).geometry, host.sglang, mooncake))
        for server in servers
    ]
    found = findings(processes, versions)
    memory: list[tuple[str, ServerMemory]] = []
    parts: list[_Part] = []
    nics, nic_origin, nic_notes = _nics(processes, host)
    known_nics = () if isinstance(nics, Unknown) else nics
    for process in processes:
        part = _part(process, host, known_nics, memory)
        if isinstance(part, Unknown):
            return SourceInputs(processes, found, part, part, tuple(memory), host.sglang)
        parts.append(part)
    if not any(part.least for part in parts):
        raise UsageError(
            f"{source} starts no SGLang server, store service or mooncake_client: nothing to size"
        )
    every_note = (*notes, *nic_notes, *(note for part in parts for note in part.notes))
    shown = {
        "source": Input(source, "command line"),
        "mooncake_version": version,
        "sglang_version": sglang_version,
        "nic_numa_nodes": Input(None if isinstance(nics, Unknown) else list(nics), nic_origin),
    }
    shown |= _shown_memory(memory)
    shown |= _shown_settings(servers)

    def inputs(bounds: list[tuple[Process, ...]]) -> SizingInputs:
        members = tuple(process for bound in bounds for process in bound)
        launch = Launch(members, mooncake, known_nics, default)
        unknown = nics if isinstance(nics, Unknown) else None
        flags = _as_flags(processes, members, host)
        distinct = tuple(dict.fromkeys(every_note))
        return SizingInputs(flags, launch, unknown, shown, distinct, source)

    least = inputs([part.least for part in parts])
    missing = next((part.most for part in parts if isinstance(part.most, Unknown)), None)
    most: SizingInputs | Unknown
    if missing is not None:
        most = missing
    else:
        most = inputs([part.most for part in parts if not isinstance(part.most, Unknown)])
    return SourceInputs(processes, found, least, most, tuple(memory), host.sglang)


def _part(
    process: LaunchProcess,
    host: _Host,
    nics: tuple[int, ...],
    memory: list[tuple[str, ServerMemory]],
) -> _Part | Unknown:
    if process.server is not None:
        return _server_part(process.server, host, nics, memory)
    if process.store is None:
        return _Part((), (), ())
    client = process.store.client
    if isinstance(client, Unknown):
        return client
    environment = plain_environment(process.command.environment)
    settings, notes = read_store_settings(environment, host.mooncake)
    name = f"{process.command.origin} {process.kind.value}"
    alone = (Process(name, settings, (), (client,)),)
    return _Part(alone, alone, notes)


def _server_part(
    server: SglangServer,
    host: _Host,
    nics: tuple[int, ...],
    memory: list[tuple[str, ServerMemory]],
) -> _Part | Unknown:
    ranks = server_ranks(server)
    if isinstance(ranks, Unknown):
        return ranks
    if ranks.here > MOST_RANKS:
        raise UsageError(f"{ranks.here} ranks on one host: {MOST_RANKS} at most")
    pools = server_memory(server, ranks, _hardware(server, host), host.sglang)
    memory.append((str(server.command.origin), pools))
    client = server_client(server, ranks, host.sglang)
    if isinstance(client, Unknown):
        return client
    placed = _placed(server, ranks, host, nics)

    def members(bound: tuple[int, ...]) -> tuple[tuple[Process, ...], tuple[Note, ...]]:
        return server_processes(server, ranks, bound, client, host.mooncake, placed.nodes)

    least, notes = members(pools.least_pools_bytes)
    most = pools.most_pools_bytes
    most_members = most if isinstance(most, Unknown) else members(most)[0]
    return _Part(least, most_members, (*notes, *placed.notes))


def _placed(
    server: SglangServer, ranks: Ranks, host: _Host, nics: tuple[int, ...]
) -> RankPlacement:
    given = host.options.rank_nodes
    if given is not None:
        return given_ranks(ranks.here, given)
    named = server.value("numa_node")
    if isinstance(named, list) and len(named) >= ranks.here:
        return RankPlacement(tuple(named[: ranks.here]), "--numa-node")
    if not host.sglang.binds_numa or not binds_ranks(plain_environment(server.environment)):
        return unbound(ranks.here, "SGLang's automatic binding is off")
    first = server.value("base_gpu_id")
    return place_ranks(ranks.here, nics, host.root, first if isinstance(first, int) else 0)


def _hardware(server: SglangServer, host: _Host) -> Hardware:
    """The model, from --model-config, its own folder, or the table of well-known models."""
    gpu = host.options.gpu_bytes
    gpu_bytes = Unknown("the GPU's memory is not known: give --gpu-memory") if gpu is None else gpu
    path = server.value("model_path")
    if host.options.model_config is not None:
        geometry = _config_geometry(host.options.model_config, "--model-config")
        return Hardware(geometry, gpu_bytes, None)
    if not isinstance(path, str):
        unknown = path if isinstance(path, Unknown) else Unknown("no --model-path")
        return Hardware(unknown, gpu_bytes, None)
    folder = path.rstrip("/")
    own = host.root.text(f"{folder}/config.json") if path.startswith("/") else None
    if isinstance(own, str):
        weights = checkpoint_bytes(host.root.locate(folder))
        return Hardware(_config_geometry(own, path), gpu_bytes, weights)
    known = well_known_model(path)
    if isinstance(known, Unknown):
        return Hardware(known, gpu_bytes, None)
    weights_bytes = None if known.parameters is None else 2 * known.parameters
    return Hardware(known.geometry, gpu_bytes, weights_bytes)


def _config_geometry(text: str, name: str) -> ModelGeometry | Unknown:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unknown(f"{name}: config.json: {error}")
    if not isinstance(config, Mapping):
        return Unknown(f"{name}: config.json: not a JSON object")
    return geometry_from_config(config, name)


def _sglang(options: SourceOptions) -> tuple[SglangRelease, Input]:
    """The release to size for: the one given, else the one installed, else the newest known."""
    text, origin = options.sglang_version, "--sglang-version"
    if text is None:
        text, origin = installed_sglang(), "installed here"
        try:
            if text is not None:
                return sglang_release(text), Input(text, origin)
        except ValueError:
            origin = f"assumed: the installed {text} is not known here"
        else:
            origin = "assumed: no SGLang is installed beside this program"
        return sglang_release(SGLANG_VERSION), Input(SGLANG_VERSION, origin)
    try:
        return sglang_release(text), Input(text, origin)
    except ValueError as error:
        raise UsageError(f"--sglang-version {error}") from None


def _nics(
    processes: tuple[LaunchProcess, ...], host: _Host
) -> tuple[tuple[int, ...] | Unknown, str, tuple[Note, ...]]:
    """The NICs of the first store that uses RDMA; every process of a host has the same ones."""
    for process in processes:
        store = process.server.store if process.server else None
        protocol, names = Protocol.TCP, ""
        if store is not None and store.value("protocol") != "tcp":
            protocol = Protocol.RDMA
            device = store.value("device_name")
            names = device if isinstance(device, str) else ""
        elif process.store is not None and isinstance(process.store.client, StoreClient):
            protocol = process.store.client.protocol
            names = process.store.devices if isinstance(process.store.devices, str) else ""
        if protocol is Protocol.RDMA:
            placed = place_nics(protocol, host.options.nic_nodes, names, host.root)
            return placed.nodes, placed.origin, placed.notes
    return (), "no process uses RDMA", ()


def _as_flags(
    processes: tuple[LaunchProcess, ...], members: tuple[Process, ...], host: _Host
) -> Flags:
    """The launch in the documented rule's terms: ranks, and the sizes of the largest."""
    hicache = max((sum(process.host_pools_bytes) for process in members), default=0)
    segments = [client.segment_bytes for process in members for client in process.clients]
    servers = [process for process in processes if process.kind is Kind.SGLANG]
    if len(servers) == 1 and servers[0].server and servers[0].server.store:
        # As a user would tell the helper: the whole instance's.
        segments = [max(0, configured_segment(servers[0].server) or 0)]
    return Flags(
        tp_size=max(1, len(members)),
        hicache_bytes=hicache,
        segment_bytes=max(segments, default=0),
        arena_bytes=max((p.settings.arena_bytes or 0 for p in members), default=0) or None,
        available_bytes=host.options.available_bytes,
        segment_scope="instance" if servers and hicache else "process",
        nic_nodes=host.options.nic_nodes,
    )


def _shown_memory(memory: list[tuple[str, ServerMemory]]) -> dict[str, Input]:
    return {f"L2 of a rank, {origin}": Input(_bounds(pools), pools.why) for origin, pools in memory}


# The arguments and store settings that memory follows from.
_DECIDING = (
    "model_path",
    "tp_size",
    "pp_size",
    "dp_size",
    "nnodes",
    "page_size",
    "hicache_size",
    "hicache_ratio",
    "max_total_tokens",
    "kv_cache_dtype",
)
_STORE_DECIDING = ("global_segment_size", "protocol", "device_name", "enable_ssd_offload")


def _shown_settings(servers: list[SglangServer]) -> dict[str, Input]:
    """What each server's memory follows from, and where that was written."""
    shown: dict[str, Input] = {}
    for server in servers:
        settings = {name: server.arguments.settings[name] for name in _DECIDING}
        if server.store is not None:
            settings |= {name: server.store.settings[name] for name in _STORE_DECIDING}
        for name, setting in settings.items():
            value = setting.value
            text = value.reason if isinstance(value, Unknown) else str(value)
            shown[f"{name}, {server.command.origin}"] = Input(text, setting.origin)
    return shown


def _bounds(pools: ServerMemory) -> str:
    least = sum(pools.least_pools_bytes)
    if isinstance(pools.most_pools_bytes, Unknown):
        return f"{least} bytes or more"
    most = sum(pools.most_pools_bytes)
    return f"{least} bytes" if least == most else f"{least} to {most} bytes"


def worst(found: tuple[Finding, ...]) -> Finding | None:
    """The first finding that keeps a process from starting."""
    return next((finding for finding in found if finding.rule.severity is Severity.FAIL), None)
