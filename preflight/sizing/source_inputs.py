"""The inputs of a sizing, from a launch as it was written instead of from flags.

Each process of the source becomes processes with memory; what L2 comes to is exact where the model
is known, and two bounds otherwise, so there are two launches to judge.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.cgroup_memory import memory_headroom
from checks.installed import Installed, installed_sglang
from checks.meminfo import read_meminfo
from checks.root import Root
from checks.units import MIB
from checks.unknown import Unknown
from preflight.launches.launch_processes import Kind, LaunchProcess, SglangServer
from preflight.mooncake.client_nics import ClientNics
from preflight.mooncake.launch import Launch, Process, StoreClient
from preflight.mooncake.mooncake_versions import Release
from preflight.mooncake.mooncake_versions import newer_than_known as newer_mooncake
from preflight.mooncake.offload_client import offloading
from preflight.mooncake.placement import RankPlacement, binds_ranks, place_ranks, unbound
from preflight.mooncake.store_environment import Note, read_store_settings
from preflight.rules.launch_rules import findings
from preflight.rules.rules import Finding, Severity, Versions
from preflight.rules.rules_memory import with_refusals
from preflight.sglang.admission_gate import HostMemory
from preflight.sglang.pd_metadata import pd_metadata
from preflight.sglang.server_launch import (
    configured_segment,
    own_allocator,
    plain_environment,
    server_client,
    server_processes,
)
from preflight.sglang.server_model import Models
from preflight.sglang.server_pools import Hardware, ServerMemory, server_memory
from preflight.sglang.server_ranks import Ranks, server_ranks
from preflight.sglang.sglang_versions import SglangRelease, sglang_release
from preflight.sglang.sglang_versions import newer_than_known as newer_sglang
from preflight.sizing.server_hardware import follows_gpu, gpu_memory, server_hardware
from preflight.sizing.sizing_inputs import (
    ASSUMED,
    MOST_RANKS,
    Flags,
    Input,
    SizingInputs,
    UsageError,
    choose_mooncake,
    given_ranks,
    installed_where,
)
from preflight.usage_error import NoLaunchError

# The SGLang that is sized for when none is named.
SGLANG_VERSION = "0.5.23"


class SourceOptions(NamedTuple):
    """What the command line says beside the launch.

    installed: of the machine of a capture; None for this one, beside this program.
    """

    available_bytes: int | None = None
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None
    model_config: str | None = None  # the text of a config.json
    gpu_bytes: int | None = None  # the memory of the smallest GPU
    installed: Installed | None = None


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
    nics: ClientNics
    models: Models


class _Part(NamedTuple):
    """One source process's share: its ranks at either bound, and what was assumed."""

    least: tuple[Process, ...]
    most: tuple[Process, ...] | Unknown
    notes: tuple[Note, ...]


class _Given(NamedTuple):
    """A server, and what its pools depend on beside its command line; read once."""

    server: SglangServer
    hardware: Hardware


def gather_source(
    processes: tuple[LaunchProcess, ...],
    source: str,
    options: SourceOptions,
    root: Root,
    default_page_bytes: int | Unknown,
) -> SourceInputs:
    """Both bounds of what ``processes`` map on this host. Raises UsageError as flags do."""
    mooncake, version, notes = choose_mooncake(options.mooncake_version, options.installed)
    default = 2 * MIB if isinstance(default_page_bytes, Unknown) else default_page_bytes
    sglang, sglang_version = _sglang(options)
    host = _Host(
        options,
        root,
        mooncake,
        sglang,
        default,
        ClientNics(root, options.nic_nodes),
        Models(root, options.model_config),
    )
    memory_of_host = _host_memory(options, root)
    given = {
        index: _Given(process.server, _hardware(process.server, host, memory_of_host))
        for index, process in enumerate(processes)
        if process.server
    }
    doubts = _doubts(sglang_version, version)
    versions = [
        (server, Versions(hardware.geometry, host.sglang, mooncake, *doubts))
        for server, hardware in given.values()
    ]
    found = findings(processes, versions)
    memory: list[tuple[str, ServerMemory]] = []
    parts: list[_Part] = []
    for index, process in enumerate(processes):
        part = _part(process, given.get(index), host, memory)
        if isinstance(part, Unknown):
            found = with_refusals(found, memory)
            return SourceInputs(processes, found, part, part, tuple(memory), host.sglang)
        parts.append(part)
    found = with_refusals(found, memory)
    if all(process.kind in (Kind.OTHER, Kind.BENCHMARK) for process in processes):
        raise NoLaunchError(f"{source} starts no program that is known here")
    nics, unknown = host.nics.first, host.nics.unknown
    placed_notes = (note for placed in host.nics.every for note in placed.notes)
    every_note = (*notes, *placed_notes, *(note for part in parts for note in part.notes))
    launch_nodes = () if isinstance(nics.nodes, Unknown) else nics.nodes
    shown = {
        "source": Input(source, "command line"),
        "mooncake_version": version,
        "sglang_version": sglang_version,
        "nic_numa_nodes": Input(
            None if isinstance(nics.nodes, Unknown) else list(nics.nodes), nics.origin
        ),
    }
    shown |= _shown_memory(memory)
    shown |= _shown_settings([server for server, _ in given.values()])

    def inputs(bounds: list[tuple[Process, ...]]) -> SizingInputs:
        members = tuple(process for bound in bounds for process in bound)
        launch = Launch(members, mooncake, launch_nodes, default)
        flags = _as_flags(processes, members, host)
        distinct = tuple(dict.fromkeys(every_note))
        own = _shown_nics(members)
        return SizingInputs(flags, launch, unknown, shown | own, distinct, source)

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
    given: _Given | None,
    host: _Host,
    memory: list[tuple[str, ServerMemory]],
) -> _Part | Unknown:
    if given is not None:
        return _server_part(process, given, host, memory)
    if process.store is None:
        return _Part((), (), ())
    client = process.store.client
    if isinstance(client, Unknown):
        return client
    client = offloading(client, process, host.mooncake)
    environment = plain_environment(process.command.environment)
    settings, notes = read_store_settings(environment, host.mooncake)
    name = f"{process.command.origin} {process.kind.value}"
    alone = (Process(name, settings, (), (host.nics.place(process, client),)),)
    return _Part(alone, alone, notes)


def _server_part(
    process: LaunchProcess,
    given: _Given,
    host: _Host,
    memory: list[tuple[str, ServerMemory]],
) -> _Part | Unknown:
    server, hardware = given
    if server.arguments.unread is not None:
        return server.arguments.unread
    ranks = server_ranks(server)
    if isinstance(ranks, Unknown):
        return ranks
    if ranks.here > MOST_RANKS:
        raise UsageError(f"{ranks.here} ranks on one host: {MOST_RANKS} at most")
    pools = server_memory(server, ranks, hardware, host.sglang)
    memory.append((str(server.command.origin), pools))
    client = server_client(server, ranks, host.sglang)
    if isinstance(client, Unknown):
        return client
    if pools.most_pools_bytes == ():
        client = None  # nothing to attach a storage backend to
    clients = [
        None
        if client is None
        else offloading(
            host.nics.place(process, client, ranks.store_rank(rank)),
            process,
            host.mooncake,
            f"rank {rank}" if host.sglang.rank_offload_folders else "",
        )
        for rank in range(ranks.here)
    ]
    placed = _placed(server, ranks, host, clients)
    allocator = own_allocator(server, host.sglang, host.mooncake)
    metadata = pd_metadata(server, ranks, hardware.drafts)

    split = tuple(pool.halves for pool in pools.pools for _ in pool.allocations_bytes)

    def members(bound: tuple[int, ...]) -> tuple[tuple[Process, ...], tuple[Note, ...]]:
        return server_processes(
            server,
            ranks,
            bound,
            clients,
            host.mooncake,
            placed.nodes,
            allocator,
            metadata,
            split,
        )

    least, notes = members(pools.least_pools_bytes)
    most = pools.most_pools_bytes
    most_members = most if isinstance(most, Unknown) else members(most)[0]
    return _Part(least, most_members, (*notes, *placed.notes))


def _placed(
    server: SglangServer, ranks: Ranks, host: _Host, clients: list[StoreClient | None]
) -> RankPlacement:
    stated = host.options.rank_nodes
    if stated is not None:
        return given_ranks(ranks.here, stated)
    named = server.value("numa_node")
    if isinstance(named, list) and len(named) >= ranks.here:
        return RankPlacement(tuple(named[: ranks.here]), "--numa-node")
    environment = plain_environment(server.environment)
    switch_is_read = host.sglang.numa_switch
    if not host.sglang.binds_numa or (switch_is_read and not binds_ranks(environment)):
        return unbound(ranks.here, "SGLang's automatic binding is off")
    first = server.value("base_gpu_id")
    launch_nodes = host.nics.first.nodes
    nodes = () if isinstance(launch_nodes, Unknown) else launch_nodes
    own = {node for client in clients if client for node in client.nic_nodes or nodes}
    nics = tuple(sorted(own)) if any(clients) else nodes
    return place_ranks(ranks.here, nics, host.root, first if isinstance(first, int) else 0)


def _hardware(server: SglangServer, host: _Host, memory: HostMemory | Unknown) -> Hardware:
    """The model and its drafts, the GPU, and what the host has, as far as each is known."""
    elsewhere = host.options.available_bytes is not None
    gpu = gpu_memory(host.options.gpu_bytes, host.root, follows_gpu(server), elsewhere)
    return server_hardware(server, host.models, host.sglang, gpu, memory)


def _host_memory(options: SourceOptions, root: Root) -> HostMemory | Unknown:
    """What SGLang would read of this host, where the launch is to run on it."""
    if options.available_bytes is not None:
        return Unknown("another host is sized, whose memory is not known")
    meminfo = read_meminfo(root)
    available = meminfo if isinstance(meminfo, Unknown) else meminfo.value("MemAvailable")
    if isinstance(available, Unknown):
        return available
    headroom = memory_headroom(root)
    left = headroom if isinstance(headroom, Unknown | None) else headroom.left_bytes
    return HostMemory(available, left)


def given_sglang(options: SourceOptions) -> str | None:
    """The SGLang whose arguments the launch has, for certain; None where one is assumed.

    Raises UsageError for a version that cannot be one.
    """
    if options.sglang_version is not None:
        _sglang(options)
        return options.sglang_version
    found = _installed_sglang(options)
    try:
        if found is not None:
            sglang_release(found)
    except ValueError:
        return None
    return found


def _installed_sglang(options: SourceOptions) -> str | None:
    return installed_sglang() if options.installed is None else options.installed.sglang


def _sglang(options: SourceOptions) -> tuple[SglangRelease, Input]:
    """The release to size for: the one given, else the one installed, else the newest known."""
    text, origin = options.sglang_version, "--sglang-version"
    if text is None:
        text, origin = _installed_sglang(options), installed_where(options.installed)
        try:
            if text is not None:
                return sglang_release(text), Input(text, origin)
        except ValueError:
            origin = f"{ASSUMED}: the installed {text} is not known here"
        else:
            origin = f"{ASSUMED}: no SGLang is {installed_where(options.installed, True)}"
        return sglang_release(SGLANG_VERSION), Input(SGLANG_VERSION, origin)
    try:
        return sglang_release(text), Input(text, origin)
    except ValueError as error:
        raise UsageError(f"--sglang-version {error}") from None


def _doubts(sglang: Input, mooncake: Input) -> tuple[str, str, str]:
    """Why the launch's SGLang and Mooncake may be others than these, as ``Versions`` has it."""
    ours, theirs = str(sglang.value), str(mooncake.value)
    unsure = newer = assumed = ""
    if sglang.origin.startswith(ASSUMED):
        unsure = f"SGLang {ours} is assumed"
    elif newer_sglang(ours):
        unsure = f"SGLang {ours} is newer than what is known here"
    if mooncake.origin.startswith(ASSUMED):
        assumed = f"Mooncake {theirs} is assumed"
    elif newer_mooncake(theirs):
        newer = f"Mooncake {theirs} is newer than what is known here"
    return unsure, assumed, newer


def _shown_nics(members: tuple[Process, ...]) -> dict[str, Input]:
    """The clients whose NICs are not the launch's."""
    return {
        f"nic_numa_nodes, {process.name}": Input(list(client.nic_nodes), "its own devices")
        for process in members
        for client in process.clients
        if client.nic_nodes is not None
    }


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
