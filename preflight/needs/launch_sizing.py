"""A sizing of a launch as it was written: the verdict at both bounds, and SGLang's own check of
host memory, held against every server.

Each process of the source becomes processes with memory; what L2 comes to is exact where the model
is known, and two bounds otherwise, so there are two launches to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from checks.framework.finding import Consequence
from checks.framework.pages import MemoryKind
from checks.framework.problem import Match
from checks.framework.root import Root
from checks.framework.units import MIB
from checks.framework.unknown import Unknown, UnknownFactError, or_unknown, require
from checks.hugetlb.fit import Fit
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SglangRelease
from preflight.base.usage_error import NoLaunchError
from preflight.engines.mooncake.allocations import OnShortage
from preflight.engines.programs.memory_records import Launch, MappedProcess
from preflight.engines.programs.store_environment import Note
from preflight.engines.sglang.admission_gate import (
    FeasiblePages,
    FreeMemory,
    GateAnswer,
    feasible_hugepages,
    gate,
    gate_booked,
    in_container,
)
from preflight.engines.sglang.forced_page import with_forced_page
from preflight.engines.sglang.host_pool_records import HostPool, PoolKind
from preflight.engines.sglang.launch import Ranks, configured_segment, l2_gigabytes, server_ranks
from preflight.engines.sglang.model import Models
from preflight.engines.sglang.model_geometry import ModelGeometry, config_helps
from preflight.engines.sglang.pools import ServerMemory
from preflight.engines.sglang.server import SglangServer
from preflight.launches.source import ReadFile, Reading
from preflight.needs.chosen_releases import (
    choose_mooncake,
    choose_sglang,
    engines_of,
    known_sglang,
    with_image,
)
from preflight.needs.placement import ClientNics
from preflight.needs.process_shares import Share, SizedHost, hardware_of, host_memory, share_of
from preflight.needs.sizing import EXIT_CODES, Sizing, judge_inputs, read_host
from preflight.needs.sizing_inputs import Input, RuleTerms, SizingInputs
from preflight.processes.host_groups import GroupChoice, choose_group
from preflight.processes.processes import LaunchOptions, LaunchProcess, ProcessKind, understand
from preflight.processes.unread import (
    NotRead,
    undecided,
    unread,
    with_written_versions,
    written_too_old,
)

# Programs that alone make no launch of what is judged here.
_APART = tuple(ProcessKind[name] for name in "OTHER BENCHMARK ETCD REDIS NATS".split())


class LaunchInputs(NamedTuple):
    """A source's processes, and the launch at both bounds of L2.

    Attributes:
        least, most: Unknown, with the variable's name, if a number cannot be known.
        memory, free, geometry: By process number, the host pools of a rank, the free memory that
            SGLang would read (the host's, or the container's limit), and the model.
        releases: mooncake_version and sglang_version.
        model_stated: The model's shape is given beside the launch.
    """

    processes: tuple[LaunchProcess, ...]
    least: SizingInputs | Unknown
    most: SizingInputs | Unknown
    memory: Mapping[int, ServerMemory]
    sglang: SglangRelease
    mooncake: MooncakeRelease
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
    """Return all inputs by which a launch is judged: mappings at both bounds of L2, and releases.

    Raises UsageError; NoLaunchError if the launch starts no program that is judged here.

    Args:
        source: The launch's name.
        default_page_bytes: 2 MiB if Unknown.
    """
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
            free[number] = in_container(on_host, server.command.container.memory_bytes)
    hardware = {n: hardware_of(server, host, free[n]) for n, server in servers.items()}
    servers = {n: with_forced_page(each, hardware[n], sglang) for n, each in servers.items()}
    processes = tuple(process._replace(server=servers.get(process.number)) for process in processes)
    geometry = {number: server.geometry for number, server in hardware.items()} | {
        process.number: models.target(process.consumer.model).geometry
        for process in processes
        if process.consumer is not None
    }
    memory: dict[int, ServerMemory] = {}
    shares: list[Share] = []
    lost: Unknown | None = None
    for process in processes:
        share = share_of(process, hardware.get(process.number), host, memory)
        if isinstance(share, Unknown):
            lost = share
            break
        shares.append(share)
    stated = options.model_config is not None
    facts = memory, sglang, mooncake, free, geometry, releases, notes, stated
    if lost is not None:
        return LaunchInputs(processes, lost, lost, *facts)
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
    def inputs_at_bound(shares_at_bound: list[tuple[MappedProcess, ...] | Unknown]) -> SizingInputs:
        """Put the ranks of all processes, taken at one bound (all least or all most), into the
        inputs of one sizing.

        Returns:
            Unknown if the share of any process is unknown.
        """
        members = tuple(process for share in shares_at_bound for process in require(share))
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

    least = inputs_at_bound([share.least for share in shares])
    most = inputs_at_bound([share.most for share in shares])
    return LaunchInputs(processes, least, most, *facts)


def _shown_nics(members: tuple[MappedProcess, ...]) -> dict[str, Input]:
    """List, for the shown inputs, the NUMA nodes of the NICs of each client with separate devices,
    by ``nic_numa_nodes, <process>``.
    """
    return {
        f"nic_numa_nodes, {process.name}": Input(list(client.nic_nodes), "its own devices")
        for process in members
        for client in process.clients
        if client.nic_nodes is not None
    }


def _terms(processes: tuple[LaunchProcess, ...], members: tuple[MappedProcess, ...]) -> RuleTerms:
    """Return the launch in the documented rule's terms.

    tp_size: the ranks with host pools, or all ``members`` if none has. Sizes are the largest; one
    SGLang server's segment is undivided.
    """
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
    """Return the settings on which each server's memory depends, with their origins."""
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


class LaunchSizing(NamedTuple):
    """The answer about a launch: the sizing at both bounds, the upper (``most``) is shown.

    A bound is None if a number that decides it is unknown.

    Attributes:
        unread: Parts without a number, so that nothing fits for certain.
        whole: The processes of all hosts.
        group: Those that are sized, None if all are.
        regular_bytes: The least and the most on regular pages, or None.
        consequence: What follows if ``status`` is "fails".
        problems: What the rules find, once they have judged the launch.
    """

    reading: Reading
    inputs: LaunchInputs
    least: Sizing | None
    most: Sizing | None
    admissions: tuple[Admission | Unknown, ...]
    status: str
    reason: str
    unread: tuple[NotRead, ...] = ()
    group: GroupChoice | None = None
    whole: tuple[LaunchProcess, ...] = ()
    regular_bytes: tuple[int, int] | None = None
    consequence: Consequence = Consequence.WILL_NOT_START
    problems: tuple[Match, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def not_whole(self) -> tuple[str, ...]:
        """Return a line on each part that an answer about this launch leaves out."""
        lines = [] if self.group is None else [self.group.text]
        if self.reading.left_out:
            lines.append(f"in no number here: {'; '.join(self.reading.left_out)}")
        if self.unread:
            shown = ", ".join(f"{each.what} ({each.origin})" for each in self.unread[:4])
            more = f", and {len(self.unread) - 4} more" if len(self.unread) > 4 else ""
            lines.append(f"not read, and in no number here: {shown}{more}")
        return tuple(lines)

    def exit_code_by(self, rule: str) -> int:
        """Return the exit code by ``rule``: "documented" (if something is sized) or "exact"."""
        if rule == "documented" and self.shown is not None:
            return self.shown.documented.exit_code
        return self.exit_code

    @property
    def shown(self) -> Sizing | None:
        return self.most or self.least


def size_launch(
    reading: Reading, source: str, options: LaunchOptions, root: Root, read_file: ReadFile
) -> LaunchSizing:
    """Size a launch: understand its commands, and judge the processes of one host against the host
    below ``root``.

    Raises UsageError.

    Args:
        source: The launch's name.
        read_file: Reads the files that its commands name.
    """
    host = read_host(root)
    older = written_too_old(options, reading)
    options = with_image(with_written_versions(options, reading), reading, root)
    sglang = known_sglang(options.sglang_version, options.installed)
    sglang_version = None if sglang is None else str(sglang[1].value)
    whole = understand(reading.commands, read_file, sglang_version, engines_of(options.installed))
    group = choose_group(whole, options.host_group, root)
    taken = range(len(whole)) if group is None else group.group.numbers
    processes = tuple(process for process in whole if process.number in taken)
    default_page = host.hugetlb.default_page_size_bytes
    inputs = gather_launch(processes, source, options, root, default_page)
    least = None if isinstance(inputs.least, Unknown) else judge_inputs(inputs.least, host, root)
    most: Sizing | None = least
    if inputs.most != inputs.least:
        most = None if isinstance(inputs.most, Unknown) else judge_inputs(inputs.most, host, root)
    admissions = _admissions(inputs, most, options)
    stated = options.model_config is not None
    missed = (*older, *unread(reading, processes), *undecided(processes, stated))
    status, reason = _status(inputs, least, most, admissions)
    if missed and status != "fails":
        others = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        status, reason = "unknown", f"{missed[0].text}{others}"
    return LaunchSizing(
        reading, inputs, least, most, admissions, status, reason, missed, group, whole
    )


def _admissions(
    inputs: LaunchInputs, sizing: Sizing | None, options: LaunchOptions
) -> tuple[Admission | Unknown, ...]:
    """Return the answers of SGLang's own check, one for each server with a host pool or HiCache.

    An answer is Unknown if the pools are not known.

    Returns:
        () if another host is sized.
    """
    if options.available_bytes is not None:
        return ()
    admissions: list[Admission | Unknown] = []
    for process in inputs.processes:
        server, pools = process.server, inputs.memory.get(process.number)
        if server is None:
            continue
        if sizing is None or pools is None:
            if server.hicache:
                unread = Unknown(f"the pools of {server.command.origin} are not known")
                bounds = (inputs.most, inputs.least)
                admissions.append(next((b for b in bounds if isinstance(b, Unknown)), unread))
        # A decode server has a host pool without HiCache: it keeps retracted requests.
        elif server.hicache or pools.pools:
            admissions.append(admit(process.number, server, pools, inputs, sizing))
    return tuple(admissions)


def _status(
    inputs: LaunchInputs,
    least: Sizing | None,
    most: Sizing | None,
    admissions: tuple[Admission | Unknown, ...],
) -> tuple[str, str]:
    """Return the status of both bounds together, and the reason; "" if the status says all."""
    for admission in admissions:
        if isinstance(admission, Admission) and admission.refused:
            return "fails", f"{admission.origin}: ValueError: {admission.refused}"
    if isinstance(inputs.least, Unknown) or least is None:
        return "unknown", inputs.least.reason if isinstance(inputs.least, Unknown) else ""
    if least.status == "fails":
        return "fails", least.reason
    if most is None:
        bound = inputs.most if isinstance(inputs.most, Unknown) else Unknown("")
        give = f"; {bound.advice}" if bound.advice else ""
        return "unknown", f"the size of the L2 pool is not known: {bound.reason}{give}"
    if most.status == least.status:
        return _unknown_if_more(inputs, most.status, most.reason)
    bounds = f"{least.status} at the lower, {most.status} at the upper"
    return "unknown", f"the L2 pool is known between two bounds: {bounds}"


def _unknown_if_more(inputs: LaunchInputs, status: str, reason: str) -> tuple[str, str]:
    """Return status and reason.

    The status is "unknown" if an index or draft pool may come on top of ``--hicache-size``, for a
    server of an unknown model. "fails" is never replaced.
    """
    for process in inputs.processes if status != "fails" else ():
        server, memory = process.server, inputs.memory.get(process.number)
        size = l2_gigabytes(server) if server is not None and server.hicache else 0
        if memory is not None and memory.missing is not None and size:
            give = ": give the model's config.json with --model-config"
            what = "whether an index or draft pool comes on top of --hicache-size is not known"
            give = give if config_helps(memory.missing) else ""
            return "unknown", f"{what}: {memory.missing.reason}{give}"
    return status, reason


class Admission(NamedTuple):
    """One server's answer.

    Attributes:
        refused: The message that it would print, for certain.
        late: What the slowest rank would print if the other ranks have taken their pools by then.
        pages: The numbers of huge pages with which the server starts; None without pools on huge
            pages.
    """

    origin: str
    refused: str | None
    late: str | None
    pages: FeasiblePages | None


@or_unknown
def admit(
    number: int, server: SglangServer, memory: ServerMemory, inputs: LaunchInputs, sizing: Sizing
) -> Admission:
    """Tell whether SGLang admits the pools of ``server``, process ``number``, on this host; Unknown
    if that cannot be told.

    The gate asks for regular memory, whatever backs the pools.
    """
    origin, ranks, release = (
        str(server.command.origin),
        require(server_ranks(server)),
        inputs.sglang,
    )
    unsized = Unknown(memory.why) if memory.missing is None else memory.missing
    unsized = unsized.of("the size of each pool is not known: ")
    host = inputs.free[number]
    if not memory.pools and (memory.missing is not None or isinstance(host, Unknown)):
        raise UnknownFactError(unsized)
    host = require(host)
    if memory.budget_bytes is not None and memory.pools:
        # Sized to fit a budget, and booked against it: no rank reads the memory anew.
        booked = gate_booked(memory.pools, memory.budget_bytes, release)
        return Admission(origin, _message(booked), None, None)
    mine = sizing.asked_by_process.get(number, ())
    mapped = (allocation for process in mine for allocation in process.allocations)
    pools = [allocation for allocation in mapped if allocation.what is MemoryKind.HOST_POOL]
    huge = any(host_pool.on_huge_pages for host_pool in pools)
    if not memory.pools:
        if huge or not _fits_at_most(memory, host, ranks, release):
            raise UnknownFactError(unsized)
        return Admission(origin, None, None, None)
    # Pools that do without huge pages where there are too few may come to lie on regular ones.
    optional = any(host_pool.on_shortage is OnShortage.FALLS_BACK for host_pool in pools)
    may_grow = not huge or (optional and sizing.verdict.fit is not Fit.FITS)
    # On huge pages a pool takes nothing more from what is available: the fewest are refused.
    first = last = gate(memory.pools, host, ranks.sharing, release, on_hugepages=huge)
    if may_grow:
        others = sum(sum(memory.of_stage(ranks.stage(at), True)) for at in range(ranks.here))
        others -= sum(host_pool.taken_bytes for host_pool in memory.pools)
        last = gate(memory.pools, host, ranks.sharing, release, others)
    size = next((each.page_size_bytes for each in pools if each.on_huge_pages), None)
    pages = None if size is None else _feasible(memory, ranks, host, size, release, sizing)
    return Admission(origin, _message(first), _message(last), pages)


def _fits_at_most(
    memory: ServerMemory, host: FreeMemory, ranks: Ranks, release: SglangRelease
) -> bool:
    """Tell whether pools whose sizes are known together alone are admitted: even all of them as one
    pool, after those of the other ranks.
    """
    most = memory.most_pools_bytes
    if isinstance(most, Unknown):
        return False
    every = HostPool(PoolKind.KV, 0, 0, sum(most), most, sum(most))
    return not _message(gate((every,), host, ranks.sharing, release, sum(most) * (ranks.here - 1)))


def _message(answers: tuple[GateAnswer, ...]) -> str | None:
    return next((answer.message for answer in answers if answer.message), None)


def _feasible(
    memory: ServerMemory,
    ranks: Ranks,
    host: FreeMemory,
    size: int,
    release: SglangRelease,
    sizing: Sizing,
) -> FeasiblePages | None:
    """Return the numbers of huge pages of ``size`` bytes that suffice and that the gate admits.

    Returns:
        None if the pool is not known.
    """
    from preflight.needs.advice import pool_pages_needed

    hugepage_pool = sizing.host.hugetlb.pool(size)
    if isinstance(hugepage_pool, Unknown):
        return None
    return feasible_hugepages(
        [memory.pools] * ranks.here,
        host,
        ranks.sharing,
        release,
        page_size_bytes=size,
        current_pages=hugepage_pool.total_pages,
        least_pages=pool_pages_needed(sizing, size),
    )
