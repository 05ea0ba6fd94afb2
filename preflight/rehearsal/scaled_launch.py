"""A launch made smaller, so that its allocations can be rehearsed in a fraction of its memory.

Every size is divided, and what it is in pages is kept: whole pages stay whole pages, and a size
that ends inside a page still does. What the smaller launch takes is for the replay to say, as of
any launch; nothing is computed from the larger one's result.
"""

from __future__ import annotations

from preflight.mooncake.allocations import REGULAR_PAGE_BYTES, EndlessPools
from preflight.mooncake.process_run import SLAB_BYTES
from preflight.mooncake.replay import replay
from preflight.programs.memory_records import HotCache, Launch, OwnAllocator, Process, StoreClient


def scaled(size_bytes: int, scale: int, page_bytes: int) -> int:
    """``size_bytes`` divided by ``scale``: in whole pages, and the same bytes beyond them."""
    whole, beyond = divmod(size_bytes, page_bytes)
    return -(-whole // scale) * page_bytes + beyond


def scaled_launch(launch: Launch, scale: int) -> Launch:
    """The same processes, 1/``scale`` of the memory each."""
    if scale == 1:
        return launch
    processes = tuple(_process(process, launch, scale) for process in launch.processes)
    return launch._replace(processes=processes)


def changed_by_scale(launch: Launch, small: Launch) -> list[str]:
    """What is mapped in another way in the smaller launch, as an arena that now holds less."""
    changed = []
    for large, little in zip(
        replay(launch, EndlessPools()), replay(small, EndlessPools()), strict=True
    ):
        for one, other in zip(large.allocations, little.allocations, strict=False):
            if (one.what, one.backing) != (other.what, other.backing):
                changed.append(
                    f"{large.process.name}, {one.what}: {one.backing.value} at full size, "
                    f"{other.backing.value} when scaled"
                )
    return list(dict.fromkeys(changed))


def _process(process: Process, launch: Launch, scale: int) -> Process:
    settings, own = process.settings, process.own_allocator
    huge = settings.hugepages and launch.release.hugepages
    page = settings.hugepage_bytes if huge else REGULAR_PAGE_BYTES
    cache = settings.hot_cache
    arena = settings.arena_bytes
    return process._replace(
        settings=settings._replace(
            arena_bytes=None if arena is None else scaled(arena, scale, page),
            hot_cache=None if cache is None else _hot_cache(cache, scale),
        ),
        host_pools_bytes=tuple(
            scaled(size, scale, _pool_page(own, page)) for size in process.host_pools_bytes
        ),
        clients=tuple(_client(client, scale, page, huge) for client in process.clients),
        metadata_bytes=scaled(process.metadata_bytes, scale, REGULAR_PAGE_BYTES),
    )


def _pool_page(own: OwnAllocator | None, page_bytes: int) -> int:
    if own is None:
        return page_bytes
    return own.hugepage_bytes or REGULAR_PAGE_BYTES


def _client(client: StoreClient, scale: int, page_bytes: int, huge: bool) -> StoreClient:
    segment = scaled(client.segment_bytes, scale, page_bytes)
    if not huge and client.segment_bytes >= SLAB_BYTES:
        segment = max(segment, SLAB_BYTES)  # a smaller one is refused
    offload = client.offload_buffer_bytes
    return client._replace(
        segment_bytes=segment,
        local_buffer_bytes=scaled(client.local_buffer_bytes, scale, page_bytes),
        offload_buffer_bytes=(
            None if offload is None else scaled(offload, scale, REGULAR_PAGE_BYTES)
        ),
    )


def _hot_cache(cache: HotCache, scale: int) -> HotCache:
    """As many blocks as before, each smaller."""
    blocks = cache.bytes // cache.block_bytes if cache.block_bytes else 0
    block = max(1, scaled(cache.block_bytes, scale, REGULAR_PAGE_BYTES))
    return cache._replace(bytes=blocks * block, block_bytes=block)


def scaled_environment(process: Process) -> dict[str, str]:
    """The variables that say the sizes of ``process``, a scaled one, in Mooncake's own spelling."""
    variables: dict[str, str] = {}
    settings = process.settings
    if settings.arena_bytes is not None:
        variables["MC_MMAP_ARENA_POOL_SIZE"] = str(settings.arena_bytes)
    cache = settings.hot_cache
    if cache is not None and cache.bytes:
        variables["MC_STORE_LOCAL_HOT_CACHE_SIZE"] = str(cache.bytes)
        variables["MC_STORE_LOCAL_HOT_BLOCK_SIZE"] = str(cache.block_bytes)
    for client in process.clients:
        if client.offload_buffer_bytes is not None:
            variables["MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES"] = str(client.offload_buffer_bytes)
    return variables
