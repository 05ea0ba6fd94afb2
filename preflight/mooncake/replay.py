"""Mooncake's allocations, replayed: what each process maps, in the order in which it does.

This is the one model of memory that the project has. It walks through the library's own steps
(``preflight.mooncake.process_run``) against pools that may run short, so that what falls through
there falls through here too, process by process until one fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from preflight.mooncake.allocations import Allocation, Outcome, Pools
from preflight.mooncake.process_run import ProcessRun, heap
from preflight.programs.memory_records import Launch, Process


class ProcessReplay(NamedTuple):
    """What one process mapped, in order. ``arena_used_bytes``: how far its arena was filled.

    ``heap``: plain memory beside the mappings, which no setting puts on huge pages.
    """

    process: Process
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
    return tuple(
        ProcessReplay(
            run.process,
            tuple(run.done),
            run.arena.cursor_bytes if run.arena else 0,
            heap(run.process),
        )
        for run in runs
    )


def _run_to_the_end(runs: list[ProcessRun], steps: list[Iterator[Allocation]]) -> None:
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
