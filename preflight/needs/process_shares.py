"""One process of a launch: what its ranks map, at either bound of L2, and what that depends on, as
the host's memory and its GPUs.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from checks.framework.needs import NamedNodes
from checks.framework.pages import ProcessId
from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown, UnknownFactError, or_unknown, require
from checks.memory.facts import memory_headroom
from checks.numa.nodes import memory_nodes, numa_nodes, parse_node_list, read_whole_meminfo
from checks.pci.facts import ACCELERATOR_VENDORS, read_accelerators
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import SglangRelease
from preflight.base.usage_error import UsageError
from preflight.engines.consumers.consumer import Consumer
from preflight.engines.programs.memory_records import MappedProcess, StoreClient
from preflight.engines.programs.store_environment import Note, read_store_settings
from preflight.engines.sglang.admission_gate import FreeMemory
from preflight.engines.sglang.launch import (
    Ranks,
    own_allocator,
    pd_metadata,
    plain_environment,
    server_client,
    server_processes,
    server_ranks,
)
from preflight.engines.sglang.model import Models, server_drafts
from preflight.engines.sglang.model_geometry import AttentionKind
from preflight.engines.sglang.pool_request import GpuKind, Hardware
from preflight.engines.sglang.pools import ServerMemory, server_memory
from preflight.engines.sglang.server import SglangServer
from preflight.launches.source import Command
from preflight.needs.placement import (
    ClientNics,
    RankPlacement,
    binds_ranks,
    given_ranks,
    place_ranks,
    unbound,
)
from preflight.needs.sizing_inputs import MOST_RANKS
from preflight.processes.processes import LaunchOptions, LaunchProcess, keep_last
from preflight.processes.storage import with_offload

# numactl(8); other spellings of nodes (all, +0, !0, netdev:eth0) are the host's to resolve.
_NODES = regex(
    r"(?:^| )(?P<option>--(?:membind|cpunodebind|cpubind|interleave|preferred|preferred-many)[= ]"
    r"|-[mNipP] ?)(?P<nodes>[0-9,-]+)(?= |$)"
)
_CPU_OPTIONS = ("--cpunodebind", "--cpubind", "-N")


class SizedHost(NamedTuple):
    """The facts of the command line and the host that all processes share."""

    options: LaunchOptions
    root: Root
    mooncake: MooncakeRelease
    sglang: SglangRelease
    nics: ClientNics
    models: Models


def hardware_of(server: SglangServer, host: SizedHost, memory: FreeMemory | Unknown) -> Hardware:
    """Return the model, its drafts, the GPU and ``memory`` (free to SGLang), as far as known."""
    elsewhere = host.options.available_bytes is not None
    gpu = gpu_memory(host.options.gpu_bytes, host.root, follows_gpu(server), elsewhere)
    root = None if elsewhere else host.root
    return server_hardware(server, host.models, host.sglang, gpu, memory, root)


# The upper half of an NVIDIA device's number stands for its architecture (pci.ids): from Maxwell to
# Hopper; and GB100 (B200), GB110 (B300). Cards for workstations have kernels of their own.
_BEFORE_BLACKWELL, _BLACKWELL = range(0x13, 0x29), (0x29, 0x31)


@or_unknown
def _gpu_kind(root: Root) -> GpuKind | None:
    """Return the kind of the GPUs; None if several, not listed, or no GPU; Unknown if not read."""
    kinds: set[GpuKind | None] = set()
    for gpu in require(read_accelerators(root)):
        maker = ACCELERATOR_VENDORS.get(require(gpu.vendor))
        number = int(require(gpu.device), 16) >> 8
        if maker == "NVIDIA" and number in _BEFORE_BLACKWELL:
            kinds.add(GpuKind.BEFORE_BLACKWELL)
        elif maker == "NVIDIA" and number in _BLACKWELL:
            kinds.add(GpuKind.BLACKWELL)
        else:
            kinds.add(GpuKind.AMD if maker == "AMD" else None)
    return kinds.pop() if len(kinds) == 1 else None


@or_unknown
def host_memory(options: LaunchOptions, root: Root) -> FreeMemory:
    """Return the memory that SGLang reads of this host; Unknown if another host is sized."""
    if options.available_bytes is not None:
        why = "another host is sized, whose memory is not known"
        raise UnknownFactError(Unknown(why))
    available = require(require(read_whole_meminfo(root)).value("MemAvailable"))
    headroom = memory_headroom(root)
    left = headroom if isinstance(headroom, Unknown | None) else headroom.left_bytes
    return FreeMemory(available, left)


ASK = "give --gpu-memory"
_NOT_READ = Unknown("the host's memory is not read")


def server_hardware(
    server: SglangServer,
    models: Models,
    release: SglangRelease,
    gpu_bytes: int | Unknown,
    memory: FreeMemory | Unknown = _NOT_READ,
    root: Root | None = None,
) -> Hardware:
    """Return the hardware that a server is sized for.

    Args:
        gpu_bytes: The memory of the smallest GPU.
        memory: The host's, by which SGLang may size a pool.
        root: The host whose GPUs are asked for their kind (only for a model with an index); None
            asks none.
    """
    model = models.target(server.value("model_path"))
    geometry = model.geometry
    drafts = server_drafts(server, model, release, models)
    weights, least = model.weights_bytes, model.least_weights_bytes
    hardware = Hardware(geometry, gpu_bytes, weights, drafts, model.context_tokens, memory)
    hardware = hardware._replace(
        least_weights_bytes=least, most_weights_bytes=model.most_weights_bytes
    )
    if root is None or isinstance(geometry, Unknown) or not geometry.index_layers:
        return hardware
    gpu_kind = _gpu_kind(root)
    return hardware._replace(gpu=gpu_kind) if isinstance(gpu_kind, GpuKind) else hardware


def follows_gpu(server: SglangServer) -> bool:
    """Tell whether NVML is worth asking: an L2 pool follows the GPU's memory, or L1's."""
    return server.hicache or server.mode == "decode"


@keep_last
def gpu_memory(
    given_bytes: int | None, root: Root, ask_nvml: bool, elsewhere: bool
) -> int | Unknown:
    """Return the bytes of each GPU's memory: ``given_bytes``, else what NVML tells of every GPU.

    Args:
        elsewhere: Another host is sized, so NVML is not asked.

    Returns:
        Unknown if GPUs differ, or with MIG.
    """
    if given_bytes is not None:
        return given_bytes
    sizes: set[int | None] = set()
    why = ""
    if not elsewhere and ask_nvml:
        from checks.gpu.facts import read_gpus

        nvml = read_gpus(root, None).nvml
        if isinstance(nvml, Unknown):
            why = nvml.reason
        elif nvml.error:
            why = nvml.error
        elif not nvml.gpus:
            why = "NVML shows no GPU"
        elif any(gpu.mig for gpu in nvml.gpus):
            why = "MIG divides it"
        else:
            sizes = {gpu.memory_bytes for gpu in nvml.gpus}
            why = "this host's GPUs differ"
    size = sizes.pop() if len(sizes) == 1 else None
    unknown = Unknown(f"the GPU's memory is not known: {f'{why}: ' if why else ''}{ASK}")
    return unknown if size is None else size


class Share(NamedTuple):
    """What one process of the launch maps: its ranks at the lower and at the upper bound of L2, and
    notes on what was assumed.
    """

    least: tuple[MappedProcess, ...] = ()
    most: tuple[MappedProcess, ...] | Unknown = ()
    notes: tuple[Note, ...] = ()


@or_unknown
def share_of(
    process: LaunchProcess,
    hardware: Hardware | None,
    host: SizedHost,
    memory: dict[int, ServerMemory],
) -> Share:
    """Return the mappings of the ranks of ``process``, bound to the NUMA nodes that numactl or its
    container names.

    Add a server's pools to ``memory``.

    Args:
        hardware: None if no SGLang server.

    Returns:
        Unknown if a number that a size depends on is unknown.

    Raises:
        UsageError: For too many ranks.
    """
    share = _unbound_share(process, hardware, host, memory)
    nodes = bound_nodes(process.command)
    if nodes is None or len(numa_nodes(host.root)) < 2:
        return share
    if len(nodes) > 1 and nodes.issuperset(memory_nodes(host.root)):
        return share
    numa_node = min(nodes) if len(nodes) == 1 else None
    among = tuple(sorted(nodes)) if len(nodes) > 1 else ()

    def bound(members: tuple[MappedProcess, ...]) -> tuple[MappedProcess, ...]:
        # SGLang's own numactl replaces the one in front of it.
        return tuple(
            member if member.node is not None else member._replace(node=numa_node, among=among)
            for member in members
        )

    most = share.most if isinstance(share.most, Unknown) else bound(share.most)
    return share._replace(least=bound(share.least), most=most)


def named_nodes(command: Command) -> Iterator[NamedNodes]:
    """Yield the NUMA nodes that numactl, or the container's cpuset, names for a command."""
    if command.container is not None and (mems := command.container.cpuset_mems):
        with suppress(ValueError):
            yield NamedNodes(f"--cpuset-mems={mems}", frozenset(parse_node_list(mems)), True)
    for option, nodes, text in _numactl_nodes(command):
        yield NamedNodes(f"numactl {text}", nodes, option in ("--membind", "-m"))


def _numactl_nodes(command: Command) -> Iterator[tuple[str, frozenset[int], str]]:
    """Yield each numactl option that names nodes by number: its name, the nodes, and its text."""
    for wrapper in command.wrappers:
        if wrapper and wrapper[0].rpartition("/")[2] == "numactl":
            for match in _NODES.finditer(" ".join(wrapper)):
                with suppress(ValueError):
                    nodes = frozenset(parse_node_list(match["nodes"]))
                    yield match["option"].strip("= "), nodes, match.group().strip()


def bound_nodes(command: Command) -> frozenset[int] | None:
    """Return the only NUMA nodes for a command's memory, or None for all.

    The nodes are those of ``numactl --membind`` and the container's ``--cpuset-mems``, or the nodes
    common to both. ``--interleave`` and ``--preferred`` take pages of other nodes too.
    """
    nodes: frozenset[int] | None = None
    for named in named_nodes(command):
        if named.memory_alone:
            nodes = named.nodes if nodes is None else nodes & named.nodes
    return nodes or None


def _unbound_share(
    process: LaunchProcess,
    hardware: Hardware | None,
    host: SizedHost,
    memory: dict[int, ServerMemory],
) -> Share:
    """Return the mappings of a server, a consumer or a store, bound to no node by numactl yet.

    Other programs have an empty share. Raises UnknownFactError, and UsageError for too many ranks.
    """
    if process.server is not None and hardware is not None:
        return _server_share(process, process.server, hardware, host, memory)
    if process.consumer is not None:
        return _consumer_share(process, process.consumer, host)
    if process.store is None:
        return Share()
    client = with_offload(require(process.store.client), process, host.mooncake)
    environment = plain_environment(process.command.environment)
    settings, notes = read_store_settings(environment, host.mooncake, process.store.arena)
    name = f"{process.command.origin} {process.kind.value}"
    process_id = ProcessId(process.number)
    alone = (MappedProcess(name, settings, (), (host.nics.place(process, client),), id=process_id),)
    return Share(alone, alone, notes)


def _consumer_share(process: LaunchProcess, consumer: Consumer, host: SizedHost) -> Share:
    """Return the mappings of another engine's workers: their store clients and the engine's own
    pools.

    The share has no ranks if the engine has no client, pool or transfer. Raises UnknownFactError,
    and UsageError for too many ranks.
    """
    ranks = require(consumer.ranks)
    if ranks > MOST_RANKS:
        raise UsageError(f"{ranks} ranks on one host: {MOST_RANKS} at most")
    environment = plain_environment(process.command.environment)
    settings, notes = read_store_settings(environment, host.mooncake)
    if not consumer.clients:  # nothing of Mooncake's is mapped
        settings, notes = settings._replace(hugepages=False), ()
    geometry = host.models.target(consumer.model).geometry
    mla = geometry if isinstance(geometry, Unknown) else geometry.kind is AttentionKind.MLA

    def members(most: bool) -> Iterator[MappedProcess]:
        """Yield the ranks of a consumer, with the least or the most that they map."""
        # Of a model with MLA fewer workers may have a store client.
        latent = not most if isinstance(mla, Unknown) else mla
        for rank in range(ranks):
            stores = (require(store.client) for store in consumer.stores_of(rank, latent))
            clients = (with_offload(client, process, host.mooncake) for client in stores)
            name = f"{process.command.origin} {process.kind.value} rank {rank}"
            yield MappedProcess(
                name,
                settings,
                clients=tuple(host.nics.place(process, client) for client in clients),
                id=ProcessId(process.number, rank),
                own_pools=consumer.pools_of(rank, mla, most),
            )

    if not (consumer.clients or consumer.pools or consumer.transfer is not None):
        return Share(notes=notes)
    return Share(tuple(members(most=False)), tuple(members(most=True)), notes)


def _server_share(
    process: LaunchProcess,
    server: SglangServer,
    hardware: Hardware,
    host: SizedHost,
    memory: dict[int, ServerMemory],
) -> Share:
    """Return the mappings of a server's ranks at both bounds of L2, and put its pools into
    ``memory``.

    Raises UnknownFactError, and UsageError for too many ranks.
    """
    if server.arguments.unread is not None:
        raise UnknownFactError(server.arguments.unread)
    ranks = require(server_ranks(server))
    if ranks.here > MOST_RANKS:
        raise UsageError(f"{ranks.here} ranks on one host: {MOST_RANKS} at most")
    pools = memory[process.number] = server_memory(server, ranks, hardware, host.sglang)
    client = require(server_client(server, ranks, host.sglang))
    if pools.most_pools_bytes == () and not server.links:
        client = None  # nothing to attach a storage backend to
    clients: list[StoreClient | None] = []
    for rank in range(ranks.here):
        own_folders = host.sglang.rank_offload_folders
        rank_folder = ranks.offload_folder(rank, server.links) if own_folders else ""
        placed_client = client and host.nics.place(process, client, ranks.store_rank(rank))
        clients.append(
            placed_client and with_offload(placed_client, process, host.mooncake, rank_folder)
        )
    placed = _rank_placement(process.command, server, ranks, host, clients)
    members, notes = server_processes(
        process.number,
        server,
        clients,
        placed.nodes,
        host.mooncake,
        own_allocator(server, host.sglang, host.mooncake),
        pd_metadata(server, ranks, hardware.drafts),
    )
    split = tuple(each.halves for each in pools.pools for _ in each.allocations_bytes)

    def with_pools(most: bool) -> tuple[MappedProcess, ...]:
        """Return the ranks with their host pools at one bound."""
        sizes = (pools.of_stage(ranks.stage(index), most) for index in range(len(members)))
        pairs = zip(members, sizes, strict=True)
        return tuple(m._replace(host_pools_bytes=each, split_pools=split) for m, each in pairs)

    most = pools.most_pools_bytes
    return Share(
        with_pools(most=False),
        most if isinstance(most, Unknown) else with_pools(most=True),
        (*notes, *placed.notes),
    )


def _rank_placement(
    command: Command,
    server: SglangServer,
    ranks: Ranks,
    host: SizedHost,
    clients: list[StoreClient | None],
) -> RankPlacement:
    """Return the NUMA node of each rank: as --rank-numa-nodes states, else as SGLang binds it
    within the CPUs that numactl leaves.

    Args:
        clients: The store client of each rank.
    """
    stated = host.options.rank_nodes
    if stated is not None:
        return given_ranks(ranks.here, stated)
    wanted = _wanted_nodes(server, ranks, host, clients)
    for option, nodes, text in _numactl_nodes(command):
        barred = option in _CPU_OPTIONS and not nodes.issuperset(numa_nodes(host.root))
        if barred and host.sglang.binds_within_cpus:
            # utils/numa_utils.py, _numactl_cpu_mem_args: without a CPU of the node no binding.
            left = tuple(numa_node if numa_node in nodes else None for numa_node in wanted.nodes)
            wanted = RankPlacement(left, f"{wanted.origin}, on CPUs of numactl {text}")
        elif barred and server.value("numa_node") is None:
            # _is_numa_available: the CPUs of the process are not all of the host.
            wanted = unbound(ranks.here, f"numactl {text} turns SGLang's automatic binding off")
    return wanted


def _wanted_nodes(
    server: SglangServer, ranks: Ranks, host: SizedHost, clients: list[StoreClient | None]
) -> RankPlacement:
    """Return the nodes to which SGLang binds its ranks if it may run on all CPUs."""
    named = server.value("numa_node")
    if isinstance(named, list) and len(named) >= ranks.here:
        return RankPlacement(tuple(named[: ranks.here]), "--numa-node")
    environment = plain_environment(server.environment)
    switch_is_read = host.sglang.numa_switch
    if not host.sglang.binds_numa or (switch_is_read and not binds_ranks(environment)):
        return unbound(ranks.here, "SGLang's automatic binding is off")
    first, launch_nodes = server.value("base_gpu_id"), host.nics.first.nodes
    nodes = () if isinstance(launch_nodes, Unknown) else launch_nodes
    own_nodes = [client.nic_nodes or nodes for client in clients if client]
    nics = tuple(sorted({each for every in own_nodes for each in every})) if own_nodes else nodes
    first = first if isinstance(first, int) else 0
    return place_ranks(ranks.here, nics, host.root, first, host.sglang.probes_numactl)
