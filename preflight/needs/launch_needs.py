"""A launch's needs as checks see them, from the replay of its allocations and from its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from checks.framework.finding import Subject
from checks.framework.needs import GpuShare, LaunchNeeds, ProcessNeeds, Storage
from checks.framework.pages import MemoryKind, ProcessId, Region
from checks.framework.unknown import Unknown, require
from checks.memlock.demand import pinned_unseen
from preflight.engines.consumers.consumer import Consumer
from preflight.engines.mooncake.allocations import Allocation, Backing, all_regions_of
from preflight.engines.mooncake.replay import ProcessReplay, hugetlb_usages
from preflight.engines.programs.memory_records import Protocol
from preflight.engines.sglang.admission_gate import least_free_bytes
from preflight.engines.sglang.launch import least_shm_bytes, plain_environment, server_ranks
from preflight.engines.sglang.model import well_known_model
from preflight.engines.sglang.pools import ServerMemory
from preflight.needs.launch_sizing import LaunchInputs, LaunchSizing
from preflight.needs.process_shares import named_nodes
from preflight.needs.sizing_inputs import MOST_RANKS
from preflight.processes.containers import container_limits, limits_set_by
from preflight.processes.mooncake_users import (
    engine_devices,
    other_transport,
    store_devices,
    variables_of_auto,
)
from preflight.processes.ports import all_ports, ports
from preflight.processes.processes import LaunchProcess, ProcessKind
from preflight.processes.services import services
from preflight.processes.storage import offload_of, storage

_PROGRAMS = {
    ProcessKind.SGLANG: "sglang",
    ProcessKind.STORE_SERVICE: "store_service",
    ProcessKind.CLIENT: "mooncake_client",
    ProcessKind.MASTER: "mooncake_master",
    ProcessKind.METADATA: "metadata_server",
    ProcessKind.ROUTER: "router",
    ProcessKind.DYNAMO_SGLANG: "sglang",
    ProcessKind.VLLM: "vllm",
    ProcessKind.DYNAMO_VLLM: "vllm",
    ProcessKind.LMCACHE: "lmcache",
}

# The first release that refuses more workers than the host has GPUs, where nothing says how they
# are started; 0.11.0 takes Ray where it is installed (vllm/config/parallel.py, __post_init__).
VLLM_REFUSES = (0, 11, 1)
# SGLang's devices that are no GPU: of Ascend's, one PCI function may be two.
_ACCELERATORS = ("npu",)
# Variables that choose among what is no GPU of CUDA or ROCm: Ascend's, and Intel's.
_SHOWS_OTHERS = ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_HIDES_GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def launch_needs(sizing: LaunchSizing) -> LaunchNeeds:
    """Return the needs of a sized launch, as checks see them.

    If L2 lies between two bounds, the upper one is taken.
    """
    source, shown, written = sizing.inputs, sizing.shown, sizing.reading.files
    replays = {} if shown is None else shown.asked_by_process
    members: list[ProcessNeeds] = []
    files: list[Storage] = []
    for process in source.processes:
        if process.kind not in _PROGRAMS:
            continue
        mine = replays.get(process.number, [])
        unplaced = None if shown is None else shown.inputs.nic_nodes_unknown
        looks_up = source.sglang.looks_up_devices
        made = _members(process, mine, source.memory.get(process.number), looks_up)
        limit_bytes = _admitting_limit_bytes(process, source)
        for process_needs in made:
            process_needs = process_needs._replace(limit_bytes=limit_bytes)
            # Where nobody knows on which nodes its NICs sit.
            lost = unplaced if process_needs.rdma is not None else None
            members.append(
                process_needs if lost is None else process_needs._replace(segment_nodes=lost)
            )
        own_folders = process.server is not None and source.sglang.rank_offload_folders
        files += [
            file
            for file in storage(process, max(1, len(mine)), own_folders)
            # As a model's name on a hub, one that cannot be seen is told by its shape.
            if not (source.model_stated and file.kind == "model" and isinstance(file.path, Unknown))
        ]
    for number, more in _regions_for_ranks(source, replays).items():
        members = [
            member._replace(regions=more if isinstance(more, Unknown) else (*member.regions, *more))
            if member.id.command == number and not isinstance(member.regions, Unknown)
            else member
            for member in members
        ]
    launch = shown.inputs.launch if shown is not None else None
    # A file that the launch itself writes need not exist yet.
    found_files = [f for f in files if isinstance(f.path, Unknown) or f.path not in written]
    hosts = [process.server.number("nnodes") for process in source.processes if process.server]
    hosts += [process.consumer.hosts for process in source.processes if process.consumer]
    return LaunchNeeds(
        source_name(sizing),
        tuple(members),
        source.most if isinstance(source.most, Unknown) else hugetlb_usages(source.most.launch),
        services(source.processes),
        tuple(all_ports(source.processes, sizing.reading.published)),
        tuple(dict.fromkeys(found_files)),
        max((number for number in hosts if isinstance(number, int)), default=1),
        launch.default_page_bytes if launch is not None else 0,
        str(source.releases["mooncake_version"].value),
        str(source.releases["sglang_version"].value),
        None if shown is None else shown.inputs.nic_nodes,
    )


def _regions_for_ranks(
    source: LaunchInputs, replays: Mapping[int, Sequence[ProcessReplay]]
) -> dict[int, tuple[Region, ...] | Unknown]:
    """Return the regions that each ``mooncake_client`` registers for ranks, by the client's process
    number.

    Returns:
        Unknown for a client if the pools of one of its ranks are not known.
    """
    regions: dict[int, tuple[Region, ...] | Unknown] = {}
    for number, client in registering_clients(source.processes, replays).items():
        memory = source.memory.get(number)
        sizes = () if memory is None else memory.most_pools_bytes
        before = regions.get(client, ())
        if isinstance(sizes, Unknown) or isinstance(before, Unknown):
            regions[client] = sizes if isinstance(sizes, Unknown) else before
            continue
        theirs = (handed for each in replays.get(number, ()) for handed in handed_over(each))
        more = all_regions_of(handed._replace(registered=True) for handed in theirs)
        regions[client] = (*before, *more)
    return regions


def _admitting_limit_bytes(process: LaunchProcess, source: LaunchInputs) -> int:
    """Return how much memory has to be free within the cgroup's limit for SGLang's admission gate
    to pass.

    Returns:
        0 if the gate does not read the cgroup or checks no pool, if SGLang sizes the pools itself,
        and if the pools are not known.
    """
    memory, server = source.memory.get(process.number), process.server
    ranks = None if server is None else server_ranks(server)
    if memory is None or ranks is None or isinstance(ranks, Unknown):
        return 0
    if memory.budget_bytes is not None or not source.sglang.cgroup_headroom:
        return 0
    asked = least_free_bytes(memory.pools, ranks.sharing, source.sglang)
    return 0 if asked is None else asked[0]


def source_name(sizing: LaunchSizing) -> str:
    """Return the name of a launch: as the sizing has it, else its only file, else ``launch``."""
    shown = sizing.shown
    if shown is not None and shown.inputs.source:
        return shown.inputs.source
    files = {process.command.origin.source for process in sizing.inputs.processes}
    return files.pop() if len(files) == 1 else "launch"


def _members(
    process: LaunchProcess,
    replays: list[ProcessReplay],
    memory: ServerMemory | None,
    looks_up_devices: bool,
) -> Iterator[ProcessNeeds]:
    """Yield the needs of each rank of a process, or one record if no rank was replayed.

    Args:
        memory: The pools of a rank, None if they are not known or there are none.
        looks_up_devices: This SGLang looks up the devices of Mooncake's transfer engine when it
            starts.
    """
    environment = plain_environment(process.command.environment)
    environment = {**environment, **variables_of_auto(process.server)}
    offload = offload_of(process)
    device = None if process.server is None else process.server.value("device")
    base = ProcessNeeds(
        Subject(process.name, "process"),
        _PROGRAMS[process.kind],
        environment,
        uses_uring=False if offload is None else offload.uring,
        container=container_limits(process.command),
        limits=limits_set_by(process.command),
        accelerator=str(device) if device in _ACCELERATORS else "",
        transport=other_transport(process),
        run_as=process.command.run_as,
        named_nodes=tuple(named_nodes(process.command)),
        id=ProcessId(process.number),
        role=process.kind.value,
        waited=process.command.waited,
        turn=process.command.turn,
        gpu_share=_gpu_share(process, None),
    )
    sized = process.server is not None or process.store is not None
    ranked = process.server is not None or process.consumer is not None
    unknown = memory.most_pools_bytes if memory is not None else ()
    if not replays and sized and not isinstance(unknown, Unknown):
        unknown = Unknown(f"{process.name}: what it maps is not known")
    if isinstance(unknown, Unknown):
        base = base._replace(
            regions=unknown, regular_bytes=unknown, hugetlb_bytes=unknown, segment_nodes=unknown
        )
    if not replays:
        yield base._replace(rdma=store_devices(process, 0) if sized else None)
        return
    for replay in replays:
        rank = replay.process.id.rank
        member = base._replace(
            id=replay.process.id,
            name=Subject(replay.process.name, "process", (rank,) if ranked else ()),
            role=f"rank {rank}" if ranked else base.role,
            node=replay.process.node,
            among=replay.process.among,
            gpu=_gpu(process, rank),
            gpu_share=_gpu_share(process, rank),
            rdma=store_devices(process, rank),
            looked_up=engine_devices(process.server, rank) if looks_up_devices else None,
            gpu_registered_bytes=_gpu_registered(process),
            segment_nodes=_segment_nodes(replay),
            shm_bytes=_shm(process, rank, environment)
            + sum(each.bytes for each in replay.process.own_pools if each.shared_memory),
        )
        mapped = (*replay.allocations, *replay.heap)
        handed = handed_over(replay)
        regions = tuple(all_regions_of(a for a in mapped if a not in handed))
        if base.transport:
            member = member._replace(regions=pinned_unseen(base.transport) if regions else ())
        elif handed or not isinstance(unknown, Unknown):
            member = member._replace(regions=regions)
        if not isinstance(unknown, Unknown):
            ring = sum(a.bytes for a in mapped if a.what is MemoryKind.OFFLOAD_BUFFER)
            member = member._replace(
                ring_bytes=ring if base.uses_uring is True else 0,
                regular_bytes=sum(a.mapped_bytes for a in mapped if a.backing is Backing.REGULAR),
                hugetlb_bytes=sum(a.mapped_bytes for a in mapped if a.on_huge_pages),
                memfd_bytes=tuple(
                    a.mapped_bytes for a in mapped if a.backing is Backing.MEMFD_HUGETLB
                ),
                bound_bytes=_bound_bytes(replay),
            )
        yield member


def _shm(process: LaunchProcess, rank: int, environment: Mapping[str, str]) -> int:
    """Return the least bytes that a server writes to /dev/shm, all for its first rank.

    Returns:
        0 for other ranks and programs, and if the ranks are not known.
    """
    ranks = None if process.server is None else server_ranks(process.server)
    if rank or ranks is None or isinstance(ranks, Unknown):
        return 0
    return least_shm_bytes(ranks, environment)


def _segment_nodes(replay: ProcessReplay) -> tuple[int, ...]:
    """Return the NUMA node of each share of a segment; () if the segment is one mapping."""
    shares = [a for a in replay.allocations if a.what is MemoryKind.SEGMENT]
    nodes = tuple(share.node for share in shares if share.node is not None)
    return nodes if len(shares) > 1 else ()


def _bound_bytes(replay: ProcessReplay) -> dict[int, int]:
    """Return, by NUMA node, the bytes on regular pages of a segment that is split over nodes."""
    bytes_by_node: dict[int, int] = {}
    nodes = _segment_nodes(replay)
    for share in replay.allocations:
        regular = share.what is MemoryKind.SEGMENT and share.backing is Backing.REGULAR
        if regular and nodes and share.node is not None:
            bytes_by_node[share.node] = bytes_by_node.get(share.node, 0) + share.mapped_bytes
    return bytes_by_node


def _gpu(process: LaunchProcess, rank: int) -> int | None:
    """Return the number of an SGLang rank's GPU; None if not known, or if the rank uses no GPU."""
    if process.server is None or process.server.value("device") in ("cpu", *_ACCELERATORS):
        return None
    first, step = process.server.value("base_gpu_id"), process.server.value("gpu_id_step")
    if not isinstance(first, int) or not isinstance(step, int):
        return None
    return first + rank * step


def _gpu_share(process: LaunchProcess, rank: int | None) -> GpuShare | None:
    """Return the share of GPU memory that a rank takes; None if its GPU is not known, or an engine
    other than SGLang names no share.

    Args:
        rank: None asks for all ranks together; for SGLang the answer is then None.
    """
    environment = process.command.environment
    selections = [environment.get(name) for name in _HIDES_GPUS]
    if any(word is not None and word.unresolved for word in selections):
        return None
    if not environment.keys().isdisjoint(_SHOWS_OTHERS):
        return None
    consumer, server = process.consumer, process.server
    sure = not process.command.doubts  # else it may be another's alternative
    if server is not None:
        gpu = None if rank is None else _gpu(process, rank)
        fraction = server.value("mem_fraction_static")
        known = fraction if isinstance(fraction, float) else None
        return None if gpu is None else GpuShare((gpu,), known, fills=sure)
    if consumer is None or consumer.gpu_fraction is None or isinstance(consumer.ranks, Unknown):
        return None
    indices = range(min(consumer.ranks, MOST_RANKS)) if rank is None else (rank,)
    model = well_known_model(str(consumer.model))  # of others it may be one that only embeds
    fills = sure and consumer.gpu_fills and not isinstance(model, Unknown)
    below = _ray_below_gpus(consumer)
    return GpuShare(tuple(indices), consumer.gpu_fraction, True, fills, below)


def _ray_below_gpus(consumer: Consumer) -> int:
    """Return the GPU count below which vLLM turns to Ray and other hosts.

    Returns:
        0 if it never does: with worker processes (mp, --nnodes), or in a release that is known to
        refuse too few GPUs.
    """
    if consumer.executor in ("mp", "uni") or consumer.hosts > 1:
        return 0
    named = consumer.named.get("vllm")
    numbers = [] if named is None else named.release.split(".")[:3]
    exact = len(numbers) == 3 and all(number.isdecimal() for number in numbers)
    if not consumer.executor and exact and tuple(map(int, numbers)) >= VLLM_REFUSES:
        return 0
    return require(consumer.workers)


def _gpu_registered(process: LaunchProcess) -> int | Unknown:
    """Return the bytes on the GPU that a process registers with the NICs: 0, or Unknown for the KV
    cache, whose size only a start tells.

    Prefill and decode servers register the KV cache. A server that links it to a store does too
    (mooncake_direct_linker.py, register_buffers).
    """
    server = process.server
    if process.consumer is not None and process.consumer.registers_gpu:
        return Unknown(process.consumer.registers_gpu)
    if server is not None and server.links and server.store is not None:
        return 0 if server.store.value("protocol") == "tcp" else _GPU_CACHE
    if server is None or server.mode not in ("prefill", "decode"):
        return 0
    if server.value("disaggregation_transfer_backend") != "mooncake":
        return 0
    return _GPU_CACHE


_GPU_CACHE = Unknown("the KV cache on the GPU, whose size is known only once it runs")
_HANDED = (MemoryKind.HOST_POOL, MemoryKind.LOCAL_BUFFER)


def handed_over(replay: ProcessReplay) -> tuple[Allocation, ...]:
    """Return the host pools and buffers that a process with a dummy client maps, for a
    ``mooncake_client`` to register.

    Returns:
        () for other processes.
    """
    if not any(client.dummy for client in replay.process.clients):
        return ()
    return tuple(allocation for allocation in replay.allocations if allocation.what in _HANDED)


def registering_clients(
    processes: Sequence[LaunchProcess], replays: Mapping[int, Sequence[ProcessReplay]]
) -> dict[int, int]:
    """Map the number of each process that hands memory over to the number of the
    ``mooncake_client`` that registers it.

    That client listens at the port which the process names, or is the only one. A process is left
    out if its client has no RDMA, or if the launch starts no such client.
    """
    clients = {
        port.port: process
        for process in processes
        if process.kind is ProcessKind.CLIENT
        for port in ports(process)
        if port.what == "service port"
    }
    only = next(iter(clients.values())) if len(clients) == 1 else None
    clients_by_process: dict[int, int] = {}
    for process in processes:
        service_named = next(
            (service for service in services((process,)) if service.kind == "client"), None
        )
        client = None if service_named is None else clients.get(service_named.port or 0, only)
        stores = () if client is None else replays.get(client.number, ())
        if client is not None and any(
            client.protocol is Protocol.RDMA for each in stores for client in each.process.clients
        ):
            clients_by_process[process.number] = client.number
    return clients_by_process
