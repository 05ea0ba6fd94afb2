"""What a rehearsal is to do, what is predicted of it, and what came of it: plain records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.base.needs import Spot
from checks.base.unknown import Unknown
from checks.rdma.fork import Forking
from preflight.mooncake.allocations import Allocation
from preflight.mooncake.replay import ProcessReplay
from preflight.programs.memory_records import Launch, Process
from preflight.rehearsal.library import Library

# Pages by size and node; under node None those of the whole host.
Pages = Mapping[Spot, int]


class Member(NamedTuple):
    """One process that will run.

    program: sglang (a rank), store_service, mooncake_client. arguments: mooncake_client's own.
    pinned_bytes: what is predicted to be pinned for it in all, over its NICs. nics: how many it
    uses. more_bytes: what may be pinned on top, as the memory happens to lie. forking: how it
    registers memory where libibverbs asks for whole huge pages; None where it does not ask.
    """

    name: str
    program: str
    process: Process
    environment: Mapping[str, str]
    devices: str = ""
    arguments: tuple[str, ...] = ()
    nics: tuple[str, ...] | Unknown = ()
    pinned_bytes: int | Unknown = 0
    more_bytes: int = 0
    forking: Forking | None = None


class Step(NamedTuple):
    """One thing that one process does: ``order`` is for the process.

    member: index into the plan's members. asked: what it maps where pages never run short.
    taken: what it is predicted to map here; None where it is predicted not to come to that.
    refused: why a registration of it is predicted to fail, "" where none is.
    """

    member: int
    kind: str  # pool, setup, dummy, program, register
    what: str
    order: Mapping[str, Any]
    asked: tuple[Allocation, ...] = ()
    taken: tuple[Allocation, ...] | None = ()
    refused: str = ""

    @property
    def failure(self) -> Allocation | None:
        """The allocation that is predicted to end the process."""
        from preflight.mooncake.allocations import Outcome

        last = (self.taken or ())[-1:]
        return last[0] if last and last[0].outcome is Outcome.FAILED else None


class Plan(NamedTuple):
    """A rehearsal before it begins.

    launch: the one that is run, scaled. replayed: what it is predicted to map; None where a pool
    cannot be read. may_fail: why it fails in some order of its processes, "" where in none.
    full_size: the status of the launch as it was written, and why. refused: why the launch does
    not start, whatever its memory. notes: what is not rehearsed, or in another way.
    """

    library: Library
    scale: int
    launch: Launch
    members: tuple[Member, ...]
    steps: tuple[Step, ...]
    replayed: tuple[ProcessReplay, ...] | None
    may_fail: str
    full_size: tuple[str, str]
    refused: str
    notes: tuple[str, ...]


class StepResult(NamedTuple):
    """What one step came to.

    error: the call and what it said, or the signal; "" where it went well. pages: taken meanwhile.
    seconds: in all; populated, registered: until the last page was there, and from then until the
    last was pinned, None where none was. lines: the library's last, where it failed.
    resident_bytes: by how much the process's memory grew that is no huge page; None for one that
    is gone. pinned_bytes: of the launch's processes together, after the step.
    """

    step: Step
    error: str
    seconds: float
    pages: Pages
    populated_seconds: float | None = None
    registered_seconds: float | None = None
    lines: tuple[str, ...] = ()
    resident_bytes: int | None = None
    pinned_bytes: int = 0


class ProcessMemory(NamedTuple):
    """What one process held at the end, from /proc/PID/status."""

    name: str
    pinned_bytes: int | None
    locked_bytes: int | None
    resident_bytes: int | None


class Transfer(NamedTuple):
    """The value that was put and got. error: what failed; skipped: why none was tried."""

    put: str
    got: str
    bytes: int
    error: str = ""
    skipped: str = ""
    seconds: float = 0.0


class Run(NamedTuple):
    """A rehearsal that has run.

    stopped: what ended it before its end, "" for nothing: the memory that must be left, a time
    limit. pages: in use by it when all was there. left: pages that were not back after it.
    lowest_room_bytes: as ``MemoryWatch``.
    """

    done: tuple[StepResult, ...]
    held: tuple[ProcessMemory, ...]
    pages: Pages
    transfer: Transfer
    stopped: str
    left: Mapping[int, int]
    lowest_room_bytes: int | None = None
