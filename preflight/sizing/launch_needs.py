"""A launch's needs as checks see them: from the replay of its allocations and from its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from checks.base.needs import LaunchNeeds, MemoryKind, ProcessId, ProcessNeeds, Storage, Usage
from checks.base.unknown import Unknown
from preflight.mooncake.allocations import Allocation, Backing, all_regions_of
from preflight.mooncake.replay import ProcessReplay
from preflight.processes.container_limits import container_limits
from preflight.processes.mooncake_users import store_devices
from preflight.processes.processes import Kind, LaunchProcess
from preflight.processes.services import ports, services
from preflight.processes.storage import offload_of, storage
from preflight.sglang.launch import plain_environment
from preflight.sglang.pools import ServerMemory
from preflight.sglang.ranks import least_shm_bytes, server_ranks
from preflight.sizing.launch_sizing import LaunchSizing
from preflight.sizing.page_usages import ON_HUGE_PAGES, hugetlb_usages

_PROGRAMS = {
    Kind.SGLANG: "sglang",
    Kind.STORE_SERVICE: "store_service",
    Kind.CLIENT: "mooncake_client",
    Kind.MASTER: "mooncake_master",
    Kind.METADATA: "metadata_server",
    Kind.ROUTER: "router",
}


def launch_needs(sizing: LaunchSizing) -> LaunchNeeds:
    """Return what ``sizing``'s launch needs.

    Where L2 is known between two bounds, the upper one.
    """
    source = sizing.inputs
    shown = sizing.shown
    replays: dict[int, list[ProcessReplay]] = {}
    for replay in () if shown is None else shown.asked:
        replays.setdefault(replay.process.id.command, []).append(replay)
    members: list[ProcessNeeds] = []
    files: list[Storage] = []
    for process in source.processes:
        if process.kind not in _PROGRAMS:
            continue
        mine = replays.get(process.number, [])
        unplaced = None if shown is None else shown.inputs.nic_nodes_unknown
        made = _members(process, mine, source.memory.get(process.number))
        members += [one if unplaced is None else _unplaced(one, unplaced) for one in made]
        own_folders = process.server is not None and source.sglang.rank_offload_folders
        files += storage(process, max(1, len(mine)), own_folders)
    launch = shown.inputs.launch if shown is not None else None
    versions = {} if shown is None else shown.inputs.shown
    return LaunchNeeds(
        _source_name(sizing),
        tuple(members),
        _usages(sizing),
        services(source.processes),
        tuple(port for process in source.processes for port in ports(process)),
        tuple(dict.fromkeys(files)),
        _hosts(source.processes),
        launch.default_page_bytes if launch is not None else 0,
        str(versions["mooncake_version"].value) if "mooncake_version" in versions else "",
        str(versions["sglang_version"].value) if "sglang_version" in versions else "",
        None if shown is None else shown.inputs.nic_nodes,
    )


def _usages(sizing: LaunchSizing) -> tuple[Usage, ...] | Unknown:
    """Return the launch's huge pages; Unknown where the upper bound of some pool is."""
    most = sizing.inputs.most
    if isinstance(most, Unknown):
        return most
    return hugetlb_usages(most.launch)


def _source_name(sizing: LaunchSizing) -> str:
    shown = sizing.shown
    if shown is not None and shown.inputs.source:
        return shown.inputs.source
    files = {process.command.origin.source for process in sizing.inputs.processes}
    return files.pop() if len(files) == 1 else "launch"


def _hosts(processes: Sequence[LaunchProcess]) -> int:
    numbers = [process.server.number("nnodes") for process in processes if process.server]
    return max([number for number in numbers if isinstance(number, int)], default=1)


def _members(
    process: LaunchProcess, replays: list[ProcessReplay], memory: ServerMemory | None
) -> Iterator[ProcessNeeds]:
    """Yield one record for each process; ``memory``: the host pools of a rank of a server."""
    environment = plain_environment(process.command.environment)
    offload = offload_of(process)
    base = ProcessNeeds(
        process.name,
        _PROGRAMS[process.kind],
        environment,
        uses_uring=offload is not None and offload.uring,
        container=container_limits(process.command),
        id=ProcessId(process.number),
        role=process.kind.value,
    )
    sized = process.server is not None or process.store is not None
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
            name=replay.process.name,
            role=base.role if process.server is None else f"rank {rank}",
            node=replay.process.node,
            gpu=_gpu(process, rank),
            rdma=store_devices(process, rank),
            gpu_registered_bytes=_gpu_registered(process),
            segment_nodes=_segment_nodes(replay),
            shm_bytes=_shm(process, rank, environment),
        )
        if not isinstance(unknown, Unknown):
            mapped = (*replay.allocations, *replay.heap)
            ring = sum(a.bytes for a in mapped if a.what is MemoryKind.OFFLOAD_BUFFER)
            member = member._replace(
                regions=tuple(all_regions_of(mapped)),
                ring_bytes=ring if base.uses_uring else 0,
                regular_bytes=sum(_mapped(a) for a in mapped if a.backing is Backing.REGULAR),
                hugetlb_bytes=sum(_mapped(a) for a in mapped if a.backing in ON_HUGE_PAGES),
                bound_bytes=_bound_bytes(replay),
            )
        yield member


def _shm(process: LaunchProcess, rank: int, environment: Mapping[str, str]) -> int:
    """Return what the process puts into /dev/shm at least; the server's first rank makes it."""
    ranks = None if process.server is None else server_ranks(process.server)
    if rank or ranks is None or isinstance(ranks, Unknown):
        return 0
    return least_shm_bytes(ranks, environment)


def _segment_nodes(replay: ProcessReplay) -> tuple[int, ...]:
    """Return where the shares of its segment are bound; () where it is one mapping."""
    shares = [a for a in replay.allocations if a.what is MemoryKind.SEGMENT]
    nodes = tuple(share.node for share in shares if share.node is not None)
    return nodes if len(shares) > 1 else ()


def _bound_bytes(replay: ProcessReplay) -> dict[int, int]:
    """Return the shares of its segment on regular pages: ``mbind`` puts them where it says."""
    found: dict[int, int] = {}
    nodes = _segment_nodes(replay)
    for share in replay.allocations:
        regular = share.what is MemoryKind.SEGMENT and share.backing is Backing.REGULAR
        if regular and nodes and share.node is not None:
            found[share.node] = found.get(share.node, 0) + _mapped(share)
    return found


def _unplaced(process: ProcessNeeds, why: Unknown) -> ProcessNeeds:
    """``process`` where nobody knows on which nodes its NICs sit."""
    return process if process.rdma is None else process._replace(segment_nodes=why)


def _mapped(allocation: Allocation) -> int:
    return allocation.pages * allocation.page_size_bytes


def _gpu(process: LaunchProcess, rank: int) -> int | None:
    if process.server is None or process.server.value("device") == "cpu":
        return None
    first, step = process.server.value("base_gpu_id"), process.server.value("gpu_id_step")
    if not isinstance(first, int) or not isinstance(step, int):
        return None
    return first + rank * step


def _gpu_registered(process: LaunchProcess) -> int | Unknown:
    """Prefill and decode register the KV cache on the GPU, which only a start tells."""
    server = process.server
    if server is None or server.mode not in ("prefill", "decode"):
        return 0
    if server.value("disaggregation_transfer_backend") != "mooncake":
        return 0
    return Unknown("the KV cache on the GPU, whose size only a start tells")
