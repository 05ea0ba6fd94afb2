"""Mooncake's allocations, replayed: what each process maps, in the order in which it does.

This is the one model of memory that the project has. It walks through the library's own steps
against pools that may run short, so that what falls through in the library falls through here too,
process by process until one fails. The steps of one process:

1. host pools (SGLang's L2): one memfd each, or one anonymous mapping where SGLang's own allocator
   takes them, which does without huge pages when there are none;
2. pools of other engines, which they map themselves;
3. per store client: hot cache, local buffer, global segment, SSD offload buffer. The first of
   local buffer and segment to be mapped directly creates the arena, once per process; both then
   come from it while they fit (a bump pointer), and are mapped on their own otherwise.

Source: Mooncake ``mooncake-store/src`` 0.3.8 to 0.3.14 (``shm_helper.cpp``, ``utils.cpp``,
``mmap_arena.cpp``, ``real_client.cpp``, ``client_buffer_allocation.cpp``, ``local_hot_cache.cpp``,
``aligned_client_buffer.cpp``), SGLang ``mem_cache/storage/mmap/mmap_allocator.py`` 0.5.23; held
against the real library by ``tests/real``.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from checks.framework.pages import MemoryKind, Spot, Usage, own_allocator
from checks.framework.units import GIB, MIB, TIB, kernel_size, round_up
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Stock
from checks.releases.mooncake import NumaSegments
from preflight.engines.mooncake.allocations import (
    REGULAR_PAGE_BYTES,
    Allocation,
    Backing,
    EndlessPools,
    OnShortage,
    Outcome,
    Pools,
    RegisteredPart,
    StockedPools,
)
from preflight.engines.programs.memory_records import (
    Launch,
    MappedProcess,
    OwnPool,
    Protocol,
    StoreClient,
)

# facebook::cachelib::Slab::kSize: the least size of a segment on regular pages.
SLAB_BYTES = 16 * MIB
# MmapArena::kMinAlignment, which is also the local buffer's alignment.
ARENA_ALIGNMENT_BYTES = 64
# What glibc's malloc aligns memory to: a mapping of its own begins with a header of as much.
MALLOC_ALIGNMENT_BYTES = 16
# The arena rounds its pool to 2 MiB whatever the page size, up to 0.3.13 (mmap_arena.cpp).
ARENA_ROUNDING_BYTES = 2 * MIB
# What a process can map at all: the lower half of 48 address bits.
ADDRESS_SPACE_BYTES = 128 * TIB
# The hot cache's table of blocks, a pointer each: more than this no host has.
_BLOCK_POINTER_BYTES, _MOST_TABLE_BYTES = 8, TIB
# SGLang's words where its own allocator finds no huge pages (mmap_allocator.py, alloc_mmap).
_NO_OWN_PAGES = (
    "Hugepage mmap via libc failed ([Errno 12] Cannot allocate memory); falling back to plain "
    "mmap. SGLANG_HUGEPAGE_SIZE={size} will be ignored."
)
_SGLANG_SPELLING = {2 * MIB: "2MB", GIB: "1GB"}

_OVER_THE_LIMIT = (
    "SIGBUS (exit code 135) when its pages are touched: the hugetlb cgroup allows no more"
)


class _Arena:
    """Mooncake's bump allocator over one mapping."""

    def __init__(self, pool_bytes: int) -> None:
        self._pool_bytes = pool_bytes
        self.cursor_bytes = 0

    def place(self, size: int, alignment: int) -> bool:
        """Reserve ``size`` bytes of the arena; False if they do not fit.

        Start and size are both rounded up to ``alignment``, as in Mooncake, and the padding counts
        as used.
        """
        # The offset is aligned as well as the size, and the padding counts.
        end = round_up(self.cursor_bytes, alignment) + round_up(size, alignment)
        if end > self._pool_bytes:
            return False
        self.cursor_bytes = end
        return True


class ProcessRun:
    """One process of a replay, which maps its memory step by step."""

    def __init__(
        self, process: MappedProcess, launch: Launch, pools: Pools, offload_folders: set[str]
    ) -> None:
        """Begin a process that has mapped nothing yet.

        Args:
            offload_folders: Those that clients hold so far, shared by all processes of a replay.
        """
        self.process = process
        self.arena: _Arena | None = None
        self.done: list[Allocation] = []
        self.host_pools_left = len(process.host_pools_bytes) + len(process.own_pools)
        self._launch = launch
        self._pools = pools
        self._offload_folders = offload_folders  # those that a client of the launch holds
        self._hugepages = process.settings.hugepages and launch.release.hugepages
        self._page_bytes = process.settings.hugepage_bytes
        self._arena_tried = False
        self._splits = 0  # segments in shares, so far

    def steps(self) -> Iterator[Allocation]:
        """Make the process's allocations in the library's order; yield each, failed ones too."""
        registered = any(client.protocol is Protocol.RDMA for client in self.process.clients)
        # A rank without a segment hands whole shared memories to the process that has it.
        whole = any(client.dummy for client in self.process.clients)
        whole = whole or self._launch.release.registers_whole_pool
        split = self.process.split_pools
        for number, size in enumerate(self.process.host_pools_bytes):
            for mapped in self._host_pool(size, registered):
                if number < len(split) and split[number]:
                    mapped = mapped._replace(registered_part=RegisteredPart.HALVES)
                elif whole and mapped.backing is Backing.MEMFD_HUGETLB:
                    mapped = mapped._replace(registered_part=RegisteredPart.WHOLE_PAGES)
                yield mapped._replace(owner=number)
        for own_pool in self.process.own_pools:
            self.host_pools_left -= 1
            yield self._engine_pool(own_pool)
        for number, client in enumerate(self.process.clients):
            for mapped in self._dummy_client(client) if client.dummy else self._client(client):
                yield mapped._replace(owner=number)

    def _host_pool(self, size: int, registered: bool) -> Iterator[Allocation]:
        """Map one host pool with SGLang's own allocator, or Mooncake's.

        If SGLang's finds no huge pages, yield that attempt first, and then the pool on regular
        pages.
        """
        what, allocator = MemoryKind.HOST_POOL, self.process.own_allocator
        if allocator is not None and allocator.hugepage_bytes is not None:
            page = allocator.hugepage_bytes
            error = _NO_OWN_PAGES.format(size=_SGLANG_SPELLING.get(page, page))
            backing, falls_back = Backing.HUGETLB, OnShortage.FALLS_BACK
            mapped = self._map(what, size, backing, registered, falls_back, error, page)
            self.host_pools_left -= mapped.outcome is Outcome.TAKEN
            yield mapped
            if mapped.outcome is Outcome.TAKEN:
                return
        self.host_pools_left -= 1
        if allocator is not None:
            yield _regular(what, size, registered)
        else:
            yield self._shared_memory(what, size, registered)

    def _engine_pool(self, engine_pool: OwnPool) -> Allocation:
        """Map the pool of another engine, on huge pages or on regular ones."""
        what, registered = MemoryKind.CPU_POOL, engine_pool.registered
        if engine_pool.hugepage_bytes is None:
            return _regular(what, engine_pool.bytes, registered)
        fails, page, error = OnShortage.FAILS, engine_pool.hugepage_bytes, engine_pool.error
        size, backing = engine_pool.bytes, Backing.HUGETLB
        return self._map(what, size, backing, registered, fails, error, page)

    def _dummy_client(self, client: StoreClient) -> Iterator[Allocation]:
        """Yield the buffer, if any, of a client whose segment another process has."""
        # The process that owns the segment registers this buffer, on its own NICs.
        if client.local_buffer_bytes:
            registered, size = client.protocol is Protocol.RDMA, client.local_buffer_bytes
            mapped = self._shared_memory(MemoryKind.LOCAL_BUFFER, size, registered)
            yield mapped._replace(registered_part=RegisteredPart.WHOLE_PAGES)

    def _client(self, client: StoreClient) -> Iterator[Allocation]:
        """Yield the hot cache, local buffer, segment and offload buffer of a client, in order."""
        registered = client.protocol is Protocol.RDMA
        yield from self._hot_cache(registered)
        yield from self._local_buffer(client.local_buffer_bytes, registered)
        for mapped in self._mapped_segment(client):
            if mapped.backing is not Backing.REGULAR:
                mapped = mapped._replace(registered_part=RegisteredPart.WHOLE_PAGES)
            yield mapped
        if client.offload_buffer_bytes is not None:
            yield self._offload_buffer(client, client.offload_buffer_bytes, registered)

    def _offload_buffer(self, client: StoreClient, size: int, registered: bool) -> Allocation:
        """Return the SSD offload buffer; failed if empty or too large, or if its folder is
        taken.
        """
        mapped = _regular(MemoryKind.OFFLOAD_BUFFER, size, registered)
        if not 0 < size < ADDRESS_SPACE_BYTES:
            why = "SIGSEGV (exit code 139): Mooncake goes on without the memory that it asked for"
            return _failed(mapped._replace(bytes=max(0, size)), why)
        folder = client.offload_folder
        if folder and folder in self._offload_folders and self._launch.release.locks_offload_folder:
            return _failed(mapped, f"setup returns -1101: another client offloads to {folder}")
        self._offload_folders.add(folder)
        return mapped

    def _shared_memory(self, what: MemoryKind, size: int, registered: bool) -> Allocation:
        """Map a host pool, or the buffer of a client without a segment, as shared memory: on huge
        pages if they are switched on, else on regular ones.

        Fails for size 0 or too few huge pages.
        """
        if not size:
            error = "RuntimeError: Failed to map shared memory: Invalid argument"
            return _failed(_regular(what, size, registered), error)
        if not self._hugepages:
            return _regular(what, size, registered)
        page = self._page_bytes
        mapped = round_up(size, page)
        error = self._launch.release.no_host_pool.format(
            page=f"{kernel_size(page)}B", size=mapped, pages=mapped // page
        )
        return self._map(what, size, Backing.MEMFD_HUGETLB, registered, OnShortage.FAILS, error)

    def _hot_cache(self, registered: bool) -> Iterator[Allocation]:
        """Yield the local hot cache, in whole blocks; nothing if it is off.

        If huge pages for the cache are missing, the client goes on without a cache.
        """
        cache = self.process.settings.hot_cache
        size = cache.bytes // cache.block_bytes * cache.block_bytes if cache else 0
        if cache is None or not size:
            return
        registered = registered and self._launch.release.registers_hot_cache
        what, memfd, falls_back = MemoryKind.HOT_CACHE, Backing.MEMFD_HUGETLB, OnShortage.FALLS_BACK
        if size // cache.block_bytes * _BLOCK_POINTER_BYTES > _MOST_TABLE_BYTES:
            error = "setup raises MemoryError: std::bad_alloc"
            yield _failed(_onheap(what, size, registered, MALLOC_ALIGNMENT_BYTES), error)
        elif cache.shared_memory and self._hugepages:
            error = "Local hot cache creation failed: no blocks allocated"
            yield self._map(what, size, memfd, registered, falls_back, error)
        else:
            alignment = REGULAR_PAGE_BYTES if cache.shared_memory else MALLOC_ALIGNMENT_BYTES
            yield _onheap(what, size, registered, alignment)

    def _local_buffer(self, size: int, registered: bool) -> Iterator[Allocation]:
        """Yield the local buffer of a client, if any; the arena may come before it."""
        if not size:
            return
        if not self._hugepages:
            yield _onheap(MemoryKind.LOCAL_BUFFER, size, registered, ARENA_ALIGNMENT_BYTES)
            return
        what, error = MemoryKind.LOCAL_BUFFER, self._launch.release.no_local_buffer
        yield from self._map_directly(what, size, ARENA_ALIGNMENT_BYTES, registered, error)

    def _mapped_segment(self, client: StoreClient) -> Iterator[Allocation]:
        """Yield the segment of a client: one mapping, or a share on each NUMA node.

        The arena may come before it. Nothing for a size of 0.
        """
        what, size = MemoryKind.SEGMENT, client.segment_bytes
        registered = client.protocol is Protocol.RDMA
        nodes = self._segment_nodes(client)
        if not size:
            return
        if len(nodes) > 1:
            yield from self._split_segment(what, size, nodes)
        elif self._hugepages:
            error = "setup returns -600: Failed to allocate segment memory"
            if registered:
                # Over RDMA the pages are touched after the mapping is granted: seen with two ranks
                # that start together on one short node.
                error += " (or a bus error, where another rank takes the pages meanwhile)"
            for mapped in self._map_directly(what, size, self._page_bytes, registered, error):
                yield mapped._replace(may_die=registered and mapped.what is what)
        elif size >= SLAB_BYTES:
            yield _regular(what, size, registered)
        else:
            error = "setup returns -600: a segment on regular pages is at least 16 MiB"
            yield _failed(_regular(what, size, registered), error)

    def _segment_nodes(self, client: StoreClient) -> tuple[int, ...]:
        """Return the NUMA nodes over which the segment of a client is split.

        With fewer than two nodes the segment is one mapping.
        """
        release = self._launch.release
        if client.protocol is not Protocol.RDMA or release.numa_segments is NumaSegments.NONE:
            return ()
        nodes = self._launch.nic_nodes if client.nic_nodes is None else client.nic_nodes
        if release.numa_segments_stay_bound and self.process.node is not None:
            return tuple(numa_node for numa_node in nodes if numa_node == self.process.node)
        return nodes

    def _split_segment(
        self, what: MemoryKind, size: int, nodes: tuple[int, ...]
    ) -> Iterator[Allocation]:
        """Yield the share of a split segment on each of ``nodes``, up to the first that fails.

        Args:
            size: Bytes of the whole segment. With ``hca_segments`` each share is a mapping of whole
                slabs; otherwise equal shares are parts of one mapping.
        """
        self._splits += 1
        if not self._hugepages or self._launch.release.numa_segments is NumaSegments.REGULAR:
            share = round_up(size, REGULAR_PAGE_BYTES * len(nodes)) // len(nodes)
            for numa_node in nodes:
                yield _regular(what, share, True, numa_node)._replace(split=self._splits)
            return
        page = self._page_bytes
        by_hca = self.process.settings.hca_segments and self._launch.release.hca_segments
        if by_hca:
            slabs, rest = divmod(round_up(size, SLAB_BYTES) // SLAB_BYTES, len(nodes))
            shares = [(slabs + (at < rest)) * SLAB_BYTES for at in range(len(nodes))]
        else:
            shares = [round_up(size, page * len(nodes)) // len(nodes)] * len(nodes)
        every = [round_up(share, page) // page for share in shares]
        # The kernel grants the mapping on what the process may use in all, before any share is
        # bound: a node that is short shows only when a page is touched there, as a bus error.
        granted = self._pools.grants(self._at(page), sum(every))
        for numa_node, share, pages in zip(nodes, shares, every, strict=True):
            if not share:
                continue
            shortage = OnShortage.BUS_ERROR if granted else OnShortage.FAILS
            asked = Allocation(what, share, Backing.HUGETLB, page, pages, numa_node, True, shortage)
            asked = asked._replace(split=0 if by_hca else self._splits)
            if granted and self._pools.take(Spot(page, numa_node), pages):
                yield asked
                continue
            bus_error = "SIGBUS (exit code 135) while the segment is touched"
            yield _failed(asked, bus_error if granted else "setup returns -600: mmap failed")
            return

    def _at(self, page_size_bytes: int) -> Spot:
        return Spot(page_size_bytes, self.process.node, self.process.among)

    def _map_directly(
        self, what: MemoryKind, size: int, alignment: int, registered: bool, error: str
    ) -> Iterator[Allocation]:
        """Yield memory as ``allocate_buffer_mmap_memory`` takes it: from the arena if it fits, else
        a mapping.

        The first call maps the arena, and yields that mapping first.

        Args:
            error: The message if the last mapping fails.
        """
        yield from self._create_arena()
        if self.arena and self.arena.place(size, alignment):
            page, numa_node = self._page_bytes, self.process.node
            falls_back = OnShortage.FALLS_BACK
            yield Allocation(what, size, Backing.ARENA, page, 0, numa_node, registered, falls_back)
        else:
            yield self._map(what, size, Backing.HUGETLB, registered, OnShortage.FAILS, error)

    def _create_arena(self) -> Iterator[Allocation]:
        """Map the arena of the process and yield the mapping, failed or not.

        Only the first call tries; nothing is yielded if the arena is off.
        """
        settings, release = self.process.settings, self._launch.release
        size = settings.arena_bytes
        if self._arena_tried or size is None or settings.arena_disabled or not release.arena:
            return
        self._arena_tried = True  # once per process, whether it succeeds or not
        in_store_pages = release.arena_in_store_pages
        page = self._page_bytes if in_store_pages else self._launch.default_page_bytes
        pool_bytes = round_up(size, page if in_store_pages else ARENA_ROUNDING_BYTES)
        error = "Arena hugepage mmap failed; falling back to traditional mmap()"
        what, falls_back = MemoryKind.ARENA, OnShortage.FALLS_BACK
        mapped = self._map(what, pool_bytes, Backing.HUGETLB, False, falls_back, error, page)
        if mapped.outcome is Outcome.TAKEN:
            self.arena = _Arena(pool_bytes)
        yield mapped

    def _map(
        self,
        what: MemoryKind,
        size: int,
        backing: Backing,
        registered: bool,
        on_shortage: OnShortage,
        error: str,
        page_size_bytes: int = 0,
    ) -> Allocation:
        """Take huge pages for a mapping, on the NUMA nodes to which the process is bound.

        If pages are missing, the returned allocation has failed or fallen back, with ``error``.

        Args:
            page_size_bytes: 0 for the store's page size.
        """
        page = page_size_bytes or self._page_bytes
        pages, numa_node = round_up(size, page) // page, self.process.node
        asked = Allocation(what, size, backing, page, pages, numa_node, registered, on_shortage)
        if self._pools.take(self._at(page), pages):
            return asked
        if self._pools.kills(page):
            return _failed(asked._replace(on_shortage=OnShortage.BUS_ERROR), _OVER_THE_LIMIT)
        return _failed(asked, error)


# What the hot cache keeps of each block beside its bytes: 93 to 118 were measured on 0.3.11 to
# 0.3.14. Below a mebibyte in all it is not worth a line.
_BLOCK_RECORD_BYTES, _LEAST_RECORDS_BYTES = 118, MIB


def heap(process: MappedProcess) -> tuple[Allocation, ...]:
    """Return the heap of a process as allocations: the metadata of PD disaggregation, and the hot
    cache's records of its blocks if these take 1 MiB or more.
    """
    allocations = []
    if process.metadata_bytes:
        registered = process.metadata_registered
        allocations.append(_regular(MemoryKind.PD_METADATA, process.metadata_bytes, registered))
    cache = process.settings.hot_cache
    if cache is not None and any(not client.dummy for client in process.clients):
        records = cache.bytes // cache.block_bytes * _BLOCK_RECORD_BYTES
        if records >= _LEAST_RECORDS_BYTES:
            allocations.append(_regular(MemoryKind.HOT_CACHE, records, False))
    return tuple(allocations)


def _regular(
    what: MemoryKind, size: int, registered: bool, numa_node: int | None = None
) -> Allocation:
    page = REGULAR_PAGE_BYTES
    pages, fails = round_up(size, page) // page, OnShortage.FAILS
    return Allocation(what, size, Backing.REGULAR, page, pages, numa_node, registered, fails)


def _onheap(what: MemoryKind, size: int, registered: bool, alignment_bytes: int) -> Allocation:
    """Return memory of malloc, which begins inside a page, at a multiple of ``alignment_bytes``."""
    offset = REGULAR_PAGE_BYTES - alignment_bytes
    return _regular(what, size, registered)._replace(offset_bytes=offset)


def _failed(asked: Allocation, error: str) -> Allocation:
    """Return ``asked`` without pages: fallen back if it can do without them, else failed."""
    fell_back = asked.on_shortage is OnShortage.FALLS_BACK
    outcome = Outcome.FELL_BACK if fell_back else Outcome.FAILED
    return asked._replace(backing=Backing.NONE, pages=0, outcome=outcome, error=error)


class ProcessReplay(NamedTuple):
    """What one process mapped, in order.

    Attributes:
        arena_used_bytes: How far its arena was filled.
        heap: Plain memory beside the mappings, which no setting puts on huge pages.
    """

    process: MappedProcess
    allocations: tuple[Allocation, ...]
    arena_used_bytes: int
    heap: tuple[Allocation, ...] = ()

    @property
    def failure(self) -> Allocation | None:
        last = self.allocations[-1:]
        return last[0] if last and last[0].outcome is Outcome.FAILED else None


def replay(launch: Launch, pools: Pools, turns: Iterable[int] = ()) -> tuple[ProcessReplay, ...]:
    """Run every process of ``launch`` against ``pools``, until one fails or all are done.

    Return the allocations of each process, in the order of the launch.

    Args:
        turns: Indexes into ``launch.processes``, each for one allocation. After them, and by
            default, every process maps its host pools, in order, and then each sets up its clients.
            Nothing in SGLang enforces that order; ``checks.hugetlb.fit`` judges over every order.
    """
    folders: set[str] = set()
    runs = [ProcessRun(process, launch, pools, folders) for process in launch.processes]
    steps = [run.steps() for run in runs]
    if all(_advance(runs[turn], steps[turn]) for turn in turns):
        _run_to_the_end(runs, steps)
    used = (run.arena.cursor_bytes if run.arena else 0 for run in runs)
    return tuple(
        ProcessReplay(run.process, tuple(run.done), arena_bytes, heap(run.process))
        for run, arena_bytes in zip(runs, used, strict=True)
    )


def _run_to_the_end(runs: list[ProcessRun], steps: list[Iterator[Allocation]]) -> None:
    """Carry out all processes, their host pools first, until one fails."""
    for run, step in zip(runs, steps, strict=True):
        while run.host_pools_left:
            if not _advance(run, step):
                return
    for run, step in zip(runs, steps, strict=True):
        for allocation in step:
            run.done.append(allocation)
            if allocation.outcome is Outcome.FAILED:
                return


def _advance(run: ProcessRun, steps: Iterator[Allocation]) -> bool:
    """Carry out the next allocation of a process, and add it to ``run.done``.

    Return False if it failed, which ends the launch; True otherwise, also if no allocation was
    left.
    """
    allocation = next(steps, None)
    if allocation is None:
        return True
    run.done.append(allocation)
    return allocation.outcome is not Outcome.FAILED


@lru_cache(maxsize=4)  # a sizing, its needs and its checks ask of the same launch
def replay_endless(launch: Launch) -> tuple[ProcessReplay, ...]:
    """Replay a launch against pools that never run short; return all that it asks for."""
    return replay(launch, EndlessPools())


def replay_stock(
    launch: Launch, stock: Mapping[Spot, Stock | Unknown]
) -> tuple[ProcessReplay, ...] | None:
    """Replay a launch against the pools of a host, each with the fewest pages it may have.

    Returns:
        None if one pool is Unknown.
    """
    pages: dict[Spot, int] = {}
    killing = set()
    for spot, have in stock.items():
        if isinstance(have, Unknown):
            return None
        pages[spot] = have.least_pages
        if have.kills:
            killing.add(spot.page_size_bytes)
    return replay(launch, StockedPools(pages, killing))


@lru_cache(maxsize=2)
def hugetlb_usages(launch: Launch) -> tuple[Usage, ...]:
    """Return the HugeTLB pages of each process, for ``checks.hugetlb.fit``.

    A ``Usage`` has two counts: if the process's arena is mapped, and if it cannot be mapped.

    Host pools of SGLang's own allocator are a ``Usage`` of their own: they take free huge pages,
    but fall back to regular pages, so nothing fails.
    """
    with_arenas = replay_endless(launch)
    without_arenas = replay_endless(launch.without_arenas())
    usages: list[Usage] = []
    for mapped, dropped in zip(with_arenas, without_arenas, strict=True):
        must, replaceable = _split_replaceable(mapped.allocations)
        among = mapped.process.among
        least = _without_last_cache(_split_replaceable(dropped.allocations)[0])
        arenas = [each for each in must if each.what is MemoryKind.ARENA]
        most, least_pages, of_arena = (pages_by_spot(a, among) for a in (must, least, arenas))
        # Whether nothing that the arena could hold is mapped beside it.
        lasting = [each for each in must if each.on_shortage is not OnShortage.BUS_ERROR]
        beside = [each for each in lasting if each.what is not MemoryKind.ARENA]
        serves = all(each.backing is not Backing.HUGETLB for each in beside)
        touched = _touched_if_arena_is_last(must, mapped.arena_used_bytes, among)
        usage = most, least_pages, serves, _headroom(mapped), of_arena, touched
        usages.append(Usage(mapped.process.name, *usage))
        if replaceable:
            name = own_allocator(mapped.process.name)
            usages.append(Usage(name, pages_by_spot(replaceable, among), {}, True, {}))
    return tuple(usages)


def _touched_if_arena_is_last(
    allocations: tuple[Allocation, ...], used_bytes: int, among: tuple[int, ...]
) -> dict[Spot, int]:
    """Return the huge pages that are touched if the arena is mapped last: all of earlier mappings,
    and the used ones of the arena.

    MAP_POPULATE stops at a cgroup's limit without an error (seen, 0.3.13.post1).

    Returns:
        {} if the arena is not last.
    """
    huge = [allocation for allocation in allocations if allocation.on_huge_pages]
    if not huge or huge[-1].what is not MemoryKind.ARENA:
        return {}
    touched, arena = pages_by_spot(huge[:-1], among), huge[-1]
    spot = spot_of(arena, among)
    touched[spot] = touched.get(spot, 0) - -used_bytes // arena.page_size_bytes
    return touched


def _split_replaceable(
    allocations: Iterable[Allocation],
) -> tuple[tuple[Allocation, ...], tuple[Allocation, ...]]:
    """Return all allocations in two groups.

    The second are host pools that SGLang's own allocator maps on huge pages, and can map on regular
    ones. The first are all other allocations.
    """
    replaceable = MemoryKind.HOST_POOL, Backing.HUGETLB, OnShortage.FALLS_BACK
    every = [(each, (each.what, each.backing, each.on_shortage)) for each in allocations]
    must = tuple(each for each, kinds in every if kinds != replaceable)
    return must, tuple(each for each, kinds in every if kinds == replaceable)


def _without_last_cache(allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """Leave out a hot cache after which no huge pages are mapped: the client can do without it."""
    others = [n for n, each in enumerate(allocations) if each.what is not MemoryKind.HOT_CACHE]
    last = max((number for number in others if allocations[number].on_huge_pages), default=-1)
    return tuple(a for number, a in enumerate(allocations) if number < last or number in others)


def spot_of(allocation: Allocation, among: tuple[int, ...]) -> Spot:
    """Return the spot from which an allocation takes its pages."""
    numa_node = allocation.node
    return Spot(allocation.page_size_bytes, numa_node, among if numa_node is None else ())


def pages_by_spot(
    allocations: Iterable[Allocation], among: tuple[int, ...] = ()
) -> dict[Spot, int]:
    """Return the huge pages of allocations by page size and NUMA node.

    Args:
        among: The nodes to which the process is bound, if they are several and not all.
    """
    pages: dict[Spot, int] = {}
    for allocation in allocations:
        if allocation.on_huge_pages:
            spot = spot_of(allocation, among)
            pages[spot] = pages.get(spot, 0) + allocation.pages
    return pages


def _headroom(process: ProcessReplay) -> dict[Spot, int]:
    """Return the pages on other nodes that a bound process must also see free on the node of its
    binding.

    The process must see the whole segment free on that node first: the kernel grants a mapping on
    the pages of the nodes that the process's policy allows (mm/hugetlb.c, allowed_mems_nr). Each
    share is then bound, and taken, elsewhere.

    Returns:
        {} for an unbound process, and without a split segment.
    """
    numa_node = process.process.node
    headroom: dict[Spot, int] = {}
    shares = [share for share in process.allocations if share.on_shortage is OnShortage.BUS_ERROR]
    if numa_node is not None and shares:
        spot = Spot(shares[0].page_size_bytes, numa_node)
        clients = sum(1 for share in shares if share.node == shares[0].node)
        pages = sum(share.pages for share in shares if share.node != numa_node)
        headroom[spot] = -(-pages // clients)
    return headroom
