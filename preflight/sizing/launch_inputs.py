"""The inputs of a sizing, from a launch as it was written instead of from flags.

Each process of the source becomes processes with memory; what L2 comes to is exact where the model
is known, and two bounds otherwise, so there are two launches to judge.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from checks.base.root import Root
from checks.base.units import MIB
from checks.base.unknown import Unknown, known, or_unknown
from checks.releases.sglang import SglangRelease
from preflight.base.usage_error import NoLaunchError
from preflight.mooncake.placement import ClientNics
from preflight.processes.processes import LaunchOptions, LaunchProcess, ProcessKind, SglangServer
from preflight.programs.memory_records import Launch, MappedProcess
from preflight.programs.store_environment import Note
from preflight.rules.launch_rules import findings
from preflight.rules.memory import with_refusals
from preflight.rules.programs import refused_by_release
from preflight.rules.rules import RuleFinding, Severity, Versions
from preflight.sglang.admission_gate import FreeMemory, within
from preflight.sglang.launch import configured_segment
from preflight.sglang.model import Models
from preflight.sglang.model_geometry import ModelGeometry
from preflight.sglang.pools import ServerMemory
from preflight.sizing.chosen_releases import choose_mooncake, choose_sglang, doubts
from preflight.sizing.process_shares import Share, SizedHost, hardware_of, host_memory, share_of
from preflight.sizing.sizing_inputs import Input, RuleTerms, SizingInputs

# Programs that alone make no launch of what is judged here.
_APART = tuple(ProcessKind[name] for name in "OTHER BENCHMARK ETCD REDIS NATS".split())


class LaunchInputs(NamedTuple):
    """A source's processes, the rules' findings, and the launch at both bounds of L2.

    memory, geometry, free: process number -> host pools of a rank, model, and the free memory that
    SGLang would read (the host's, or the container's limit). releases: mooncake_version and
    sglang_version, with release_notes. model_stated: the model's shape is given beside the launch.
    A bound is Unknown, with the variable's name, if a number cannot be known.
    """

    processes: tuple[LaunchProcess, ...]
    findings: tuple[RuleFinding, ...]
    least: SizingInputs | Unknown
    most: SizingInputs | Unknown
    memory: Mapping[int, ServerMemory]
    sglang: SglangRelease
    free: Mapping[int, FreeMemory | Unknown]
    geometry: Mapping[int, ModelGeometry | Unknown]
    releases: Mapping[str, Input]
    release_notes: tuple[Note, ...]
    model_stated: bool = False


def gather_launch(
    processes: tuple[LaunchProcess, ...],
    source: str,
    options: LaunchOptions,
    root: Root,
    default_page_bytes: int | Unknown,
) -> LaunchInputs:
    """Return both bounds of the mappings of ``processes``. Raises UsageError as flags do."""
    mooncake, version, notes = choose_mooncake(
        options.mooncake_version, options.installed, options.origins.get("mooncake_version")
    )
    default = 2 * MIB if isinstance(default_page_bytes, Unknown) else default_page_bytes
    sglang, sglang_version, sglang_notes = choose_sglang(
        options.sglang_version, options.installed, options.origins.get("sglang_version")
    )
    nics, models = ClientNics(root, options.nic_nodes), Models(root, options.model_config)
    host = SizedHost(options, root, mooncake, sglang, nics, models)
    on_host = host_memory(options, root)
    servers = {process.number: process.server for process in processes if process.server}
    releases = {"mooncake_version": version, "sglang_version": sglang_version}
    notes = (*notes, *(sglang_notes if servers else ()))
    free = dict.fromkeys(servers, on_host)
    for number, server in servers.items():
        if server.command.container is not None and not isinstance(on_host, Unknown):
            free[number] = within(on_host, server.command.container.memory_bytes)
    hardware = {n: hardware_of(server, host, free[n]) for n, server in servers.items()}
    geometry = {number: server.geometry for number, server in hardware.items()} | {
        process.number: models.target(process.consumer.model).geometry
        for process in processes
        if process.consumer is not None
    }
    unsure = doubts(sglang_version, version)
    versions = [
        (server, Versions(hardware[number].geometry, sglang, mooncake, *unsure))
        for number, server in servers.items()
    ]
    findings_so_far = findings(processes, versions, mooncake)
    if not version.assumed:
        findings_so_far = (*refused_by_release(processes, str(version.value)), *findings_so_far)
    memory: dict[int, ServerMemory] = {}
    shares: list[Share] = []
    lost: Unknown | None = None
    for process in processes:
        share = share_of(process, hardware.get(process.number), host, memory)
        if isinstance(share, Unknown):
            lost = share
            break
        shares.append(share)
    findings_so_far = with_refusals(findings_so_far, processes, memory)

    facts = memory, sglang, free, geometry, releases, notes, options.model_config is not None
    if lost is not None:
        return LaunchInputs(processes, findings_so_far, lost, lost, *facts)
    if all(process.kind in _APART for process in processes):
        hint = "mooncake-preflight read shows what was understood of it, and what was not"
        raise NoLaunchError(f"{source} starts no program that is known here: {hint}")
    nodes = nics.first.nodes
    placed_notes = (note for placed in nics.every for note in placed.notes)
    every_note = (*notes, *placed_notes, *(note for share in shares for note in share.notes))
    shown = {
        "source": Input(source, "command line"),
        **releases,
        "nic_numa_nodes": Input(nics.first.listed, nics.first.origin),
    }
    shown |= _shown_memory(processes, memory)
    shown |= _shown_settings(servers.values())

    @or_unknown
    def inputs(bounds: list[tuple[MappedProcess, ...] | Unknown]) -> SizingInputs:
        """Return the inputs of one or both bounds, as one launch."""
        members = tuple(process for bound in bounds for process in known(bound))
        return SizingInputs(
            _terms(processes, members),
            Launch(members, mooncake, () if isinstance(nodes, Unknown) else nodes, default),
            nics.unknown,
            shown | _shown_nics(members),
            tuple(dict.fromkeys(every_note)),
            source,
            available_bytes=options.available_bytes,
            nic_nodes=options.nic_nodes,
        )

    least, most = inputs([share.least for share in shares]), inputs([s.most for s in shares])
    return LaunchInputs(processes, findings_so_far, least, most, *facts)


def _shown_nics(members: tuple[MappedProcess, ...]) -> dict[str, Input]:
    """Return the clients whose NICs are not the launch's, to be shown."""
    return {
        f"nic_numa_nodes, {process.name}": Input(list(client.nic_nodes), "its own devices")
        for process in members
        for client in process.clients
        if client.nic_nodes is not None
    }


def _terms(processes: tuple[LaunchProcess, ...], members: tuple[MappedProcess, ...]) -> RuleTerms:
    """Return the launch in the documented rule's terms: ranks and largest sizes."""
    hicache = max((sum(process.host_pools_bytes) for process in members), default=0)
    segments = [client.segment_bytes for process in members for client in process.clients]
    # A store's own process beside the ranks is none of them.
    ranks = sum(bool(process.host_pools_bytes) for process in members) or len(members)
    servers = [process for process in processes if process.kind is ProcessKind.SGLANG]
    if len(servers) == 1 and servers[0].server and servers[0].server.store:
        # As a user would tell the helper: the whole instance's.
        segments = [max(0, configured_segment(servers[0].server) or 0)]
    return RuleTerms(
        tp_size=max(1, ranks),
        hicache_bytes=hicache,
        segment_bytes=max(segments, default=0),
        arena_bytes=max((p.settings.arena_bytes or 0 for p in members), default=0) or None,
        segment_scope="instance" if servers and hicache else "process",
    )


def _shown_memory(
    processes: tuple[LaunchProcess, ...], memory: Mapping[int, ServerMemory]
) -> dict[str, Input]:
    """Return the L2 size of each server, to be shown beside the inputs."""
    return {
        f"L2 of a rank, {process.command.origin}": Input(_bounds(pools), pools.why)
        for process in processes
        if (pools := memory.get(process.number)) is not None
    }


# The arguments and store settings that memory follows from.
_DECIDING = (
    "model_path tp_size pp_size dp_size nnodes page_size hicache_size hicache_ratio "
    "max_total_tokens kv_cache_dtype"
).split()
_STORE_DECIDING = ("global_segment_size", "protocol", "device_name", "enable_ssd_offload")


def _shown_settings(servers: Iterable[SglangServer]) -> dict[str, Input]:
    """Return the settings that each server's memory follows from, with their origins."""
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


def worst(findings: tuple[RuleFinding, ...]) -> RuleFinding | None:
    """Return the first finding that keeps a process from starting."""
    return next((finding for finding in findings if finding.rule.severity is Severity.FAIL), None)
