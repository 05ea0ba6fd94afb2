"""Mooncake's allocations, replayed: what each process maps, in the order in which it does.

This is the one model of memory that the project has. It walks through the library's own steps
(``preflight.mooncake.process_run``) against pools that may run short, so that what falls through
there falls through here too, process by process until one fails.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from checks.base.pages import MemoryKind, Spot, Usage, own_allocator
from checks.base.unknown import Unknown
from checks.hugetlb.fit import Stock
from preflight.mooncake.allocations import (
    Allocation,
    Backing,
    EndlessPools,
    OnShortage,
    Outcome,
    Pools,
    StockedPools,
)
from preflight.mooncake.process_run import ProcessRun, heap
from preflight.programs.memory_records import Launch, MappedProcess


class ProcessReplay(NamedTuple):
    """What one process mapped, in order. ``arena_used_bytes``: how far its arena was filled.
    ``heap``: plain memory beside the mappings, which no setting puts on huge pages."""

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

    ``turns``: whose turn it is, as indexes into ``launch.processes``; after them, and by default,
    every process maps its host pools, in order, and then each sets up its clients. Nothing in
    SGLang enforces that order; ``checks.hugetlb.fit`` judges over all of them.
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
    """Return one step of one process; False when it failed, which ends the launch."""
    allocation = next(steps, None)
    if allocation is None:
        return True
    run.done.append(allocation)
    return allocation.outcome is not Outcome.FAILED


@lru_cache(maxsize=4)  # a sizing, its needs and its checks ask of the same launch
def asked_for(launch: Launch) -> tuple[ProcessReplay, ...]:
    """Return every allocation of ``launch`` when no pool runs short."""
    return replay(launch, EndlessPools())


def taken_from(
    launch: Launch, stock: Mapping[Spot, Stock | Unknown]
) -> tuple[ProcessReplay, ...] | None:
    """Return every process's allocations from the least ``stock``. None if a pool is not known."""
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
    """Return the pages of each process, with its arena and without, for ``checks.hugetlb.fit``.

    Host pools of SGLang's own allocator are a usage of their own: like an arena they take their
    pages from others, and nothing fails without them.
    """
    with_arenas = asked_for(launch)
    without_arenas = asked_for(launch.without_arenas())
    usages: list[Usage] = []
    for mapped, dropped in zip(with_arenas, without_arenas, strict=True):
        must, may = _split(mapped.allocations)
        among = mapped.process.among
        least = _without_last_cache(_split(dropped.allocations)[0])
        arenas = [each for each in must if each.what is MemoryKind.ARENA]
        most, least_pages, of_arena = (pages_by_spot(a, among) for a in (must, least, arenas))
        # Whether nothing that the arena could hold is mapped beside it.
        lasting = [each for each in must if each.on_shortage is not OnShortage.BUS_ERROR]
        beside = [each for each in lasting if each.what is not MemoryKind.ARENA]
        serves = all(each.backing is not Backing.HUGETLB for each in beside)
        touched = _touched(must, mapped.arena_used_bytes, among)
        usage = most, least_pages, serves, _headroom(mapped), of_arena, touched
        usages.append(Usage(mapped.process.name, *usage))
        if may:
            name = own_allocator(mapped.process.name)
            usages.append(Usage(name, pages_by_spot(may, among), {}, True, {}))
    return tuple(usages)


def _touched(
    allocations: tuple[Allocation, ...], used_bytes: int, among: tuple[int, ...]
) -> dict[Spot, int]:
    """Return the pages before an arena and the arena's used ones; none if more follows.
    MAP_POPULATE stops at a cgroup's limit without an error (seen, 0.3.13.post1)."""
    huge = [allocation for allocation in allocations if allocation.on_huge_pages]
    if not huge or huge[-1].what is not MemoryKind.ARENA:
        return {}
    touched, arena = pages_by_spot(huge[:-1], among), huge[-1]
    spot = spot_of(arena, among)
    touched[spot] = touched.get(spot, 0) - -used_bytes // arena.page_size_bytes
    return touched


def _split(
    allocations: Iterable[Allocation],
) -> tuple[tuple[Allocation, ...], tuple[Allocation, ...]]:
    """Return the allocations that need huge pages (or are the arena), and those that do not. The
    second are host pools."""
    replaceable = MemoryKind.HOST_POOL, Backing.HUGETLB, OnShortage.FALLS_BACK
    every = [(each, (each.what, each.backing, each.on_shortage)) for each in allocations]
    must = tuple(each for each, kinds in every if kinds != replaceable)
    return must, tuple(each for each, kinds in every if kinds == replaceable)


def _without_last_cache(allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """Return the allocations without a last hot cache, which may do without huge pages. Where
    nothing follows, the client goes on without one."""
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
    """Return the huge pages of allocations by page size and NUMA node. among: the nodes to which
    the process is bound, if they are several and not all."""
    pages: dict[Spot, int] = {}
    for allocation in allocations:
        if allocation.on_huge_pages:
            spot = spot_of(allocation, among)
            pages[spot] = pages.get(spot, 0) + allocation.pages
    return pages


def _headroom(process: ProcessReplay) -> dict[Spot, int]:
    """Return the pages on other nodes that a bound process must also see free on its own.

    It maps a split segment, and must see all of it free on its own node first. The kernel grants a
    mapping on the pages of the nodes that the process's policy allows (mm/hugetlb.c,
    allowed_mems_nr), although each share is then bound, and taken, elsewhere.
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
