"""Runs a plan: every process for real, step by step, and everything given back at the end."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.hugetlb.pools import Pool, read_hugetlb
from checks.memory.facts import MemoryHeadroom, memory_headroom
from checks.numa.nodes import Meminfo, read_meminfo, read_node_meminfo, read_process_sizes
from preflight.benchmark.rehearsal.programs import LOOK_SECONDS, Programs, Running, StoppedError
from preflight.benchmark.rehearsal.records import (
    ProcessMemory,
    RehearsalPlan,
    RehearsalRun,
    RehearsalStep,
    StepResult,
    Transfer,
)
from preflight.engines.mooncake.allocations import Backing

Progress = Callable[[str], None]
# The kernel gives a dead process's pages back within this time, or somebody else has them.
_BACK_SECONDS = 10
# Nobody gives pages back any more if the counts of the pools stay the same for so long.
_QUIET_SECONDS = 0.5
_VALUE_BYTES = 1 << 20
_PUT_SECONDS = 10


def run(plan: RehearsalPlan, root: Root, limit_seconds: float, tell: Progress) -> RehearsalRun:
    """Run the plan and return the results; all memory is given back, whatever error ends it.

    Raises RehearsalError, OSError.

    Args:
        limit_seconds: Of each step.
        tell: Gets the name of each step.
    """
    folder = Path(tempfile.mkdtemp(prefix="mooncake-preflight-"))
    programs = Programs(plan, folder, limit_seconds)
    stage = _Stage(plan, root, programs, tell)
    try:
        with programs.ended_at_exit():
            stage.play()
    finally:
        left = _pages_left(root, stage.before)
        shutil.rmtree(folder, ignore_errors=True)
    return stage.result(left)


def _pages_left(root: Root, before: Mapping[Spot, int]) -> dict[int, int]:
    """Return how many huge pages are not given back within 10 s, by page size in bytes."""
    until = time.monotonic() + _BACK_SECONDS
    while True:
        taken = taken_since(root, before).items()
        more = {s.page_size_bytes: pages for s, pages in taken if s.node is None and pages > 0}
        if not more or time.monotonic() > until:
            return more
        time.sleep(0.05)


def _regular_bytes(steps: Sequence[RehearsalStep]) -> dict[int | None, int]:
    """Return the regular memory of the steps by the NUMA node that binds it; under None the sum."""
    need: dict[int | None, int] = {None: 0}
    for each in (each for step in steps for each in step.asked if each.backing is Backing.REGULAR):
        size = each.pages * each.page_size_bytes
        for numa in {None, each.node}:
            need[numa] = need.get(numa, 0) + size
    return need


class _Stage:
    """Runs the steps of a plan, and collects their results."""

    def __init__(self, plan: RehearsalPlan, root: Root, programs: Programs, tell: Progress) -> None:
        """Note which huge pages are in use before anything is started."""
        self._plan, self._root, self._programs = plan, root, programs
        self._limit_seconds, self._tell = programs.limit_seconds, tell
        self.before = pages_in_use(root)
        nodes = {m.process.node for m in plan.members if m.process.node is not None}
        nodes |= {s.node for step in plan.steps for s in step.asked if s.node is not None}
        self._watch = MemoryWatch(root, nodes)
        self._done: list[StepResult] = []
        self._held: list[ProcessMemory] = []
        self._pages: Mapping[Spot, int] = {}
        self._transfer = Transfer("", "", 0, skipped="it ended before")
        self._stopped = ""

    def result(self, left: Mapping[int, int]) -> RehearsalRun:
        """Return the results so far.

        Args:
            left: Pages not given back, by page size in bytes.
        """
        done, kept, lowest = tuple(self._done), tuple(self._held), self._watch.lowest_bytes
        return RehearsalRun(done, kept, self._pages, self._transfer, self._stopped, left, lowest)

    def play(self) -> None:
        """Do the steps until one fails or is stopped, and record the memory of the processes.

        If all steps succeed, a value is put and got, too.
        """
        try:
            self._refuse_too_large(self._plan.steps, "the launch")
            self._tell("starting")
            self._programs.begin()
            for step in self._plan.steps:
                self._done.append(self._step(step))
                if self._done[-1].error:
                    break
            self._record_memory()
            if not (self._done and self._done[-1].error):
                self._transfer = self._put_and_get()
        except StoppedError as stopped:
            self._stopped = str(stopped)
            self._record_memory()

    def _record_memory(self) -> None:
        """Record the pages taken so far, and the memory of each process."""
        self._pages = taken_since(self._root, self.before)
        for member in self._plan.members:
            player = self._programs.players.get(member.number)
            sizes = {} if player is None else status_bytes(player.pid)
            kept = [sizes.get(name) for name in ("VmPin", "VmLck", "VmRSS")]
            self._held.append(ProcessMemory(member, *kept))

    def _step(self, step: RehearsalStep) -> StepResult:
        """Do one step and measure it.

        A step that fails is returned with its error.

        Raises:
            StoppedError: At a limit of memory or time.
        """
        member, players = step.member, self._programs.players
        self._tell(f"{member.name}: {step.what}")
        self._refuse_too_large((step,), f"{member.name}, {step.what}")
        player = None if step.action == "program" else self._programs.player(member)
        if step.action in ("setup", "dummy", "program"):
            self._programs.await_master()
        if step.action == "dummy":
            self._programs.ensure_client(member)
        before = pages_in_use(self._root)
        began = time.monotonic()
        rises = StepTimes(self._root, before, began)
        rises.look(player)
        resident = 0 if player is None else status_bytes(player.pid).get("VmRSS", 0)
        huge = self._sum("HugetlbPages")

        def look() -> None:
            rises.look(players.get(member.number))
            if (room := self._watch.room()).bytes < 0:
                raise StoppedError(f"stopped, because the host reached its limit ({room.source})")

        try:
            if player is None:
                answer = self._programs.start_client(member, look)
            else:
                order = self._programs.with_addresses(step.order, member)
                answer = player.ask(order, self._limit_seconds, look)
        except StoppedError as stopped:
            raise StoppedError(f"{member.name}, {step.what}: {stopped}") from None
        rises.look(players.get(member.number))
        lines = players[member.number].last_lines() if answer.error else ()
        # The pages are read once two reads of the counts agree.
        until, last = time.monotonic() + _BACK_SECONDS, None
        while (taken := taken_since(self._root, before)) != last and time.monotonic() < until:
            last = taken
            time.sleep(LOOK_SECONDS)
        now = status_bytes(players[member.number].pid).get("VmRSS")
        grown = None if now is None else max(0, now - resident)
        result = StepResult(step, answer.error, answer.seconds, taken, *rises.times, lines, grown)
        pinned, huge_bytes = self._sum("VmPin"), self._sum("HugetlbPages") - huge
        return result._replace(pinned_bytes=pinned, ended=answer.ended, huge_bytes=huge_bytes)

    def _sum(self, name: str) -> int:
        """Add up a size of /proc/PID/status, such as ``VmPin``, over the launch's processes."""
        return sum(status_bytes(each.pid).get(name, 0) for each in self._programs.players.values())

    def _refuse_too_large(self, steps: Sequence[RehearsalStep], what: str) -> None:
        """Raise StoppedError if the steps, which have not begun, need more regular memory than is
        free. what: the name of these steps, for the message.
        """
        short = self._watch.first_shortage(_regular_bytes(steps))
        if short is None:
            return
        need, room = short
        text = (
            f"{what}: takes {format_bytes(need)} of regular memory, and "
            f"{format_bytes(max(0, room.bytes))} may be taken ({room.source}): it was not tried"
        )
        if room.bytes > 0:
            text += f"; --scale {-(-need * self._plan.scale // room.bytes)} is small enough"
        raise StoppedError(text)

    def _put_and_get(self) -> Transfer:
        """Put a value by the first process with a local buffer, and get it by the last one."""
        members = self._plan.members
        clients = [(member, each) for member in members for each in member.process.clients]
        able = [
            (member, each)
            for member, each in clients
            if member.program != "mooncake_client" and each.local_buffer_bytes
        ]
        largest = max((each.segment_bytes for _, each in clients), default=0)
        if not able:
            why = "no process of the launch can be asked to put a value: none has a local buffer"
            return Transfer("", "", 0, skipped=why)
        if not largest:
            return Transfer("", "", 0, skipped="no process of the launch has a segment")
        (first, local), (last, _) = able[0], able[-1]
        size = min(_VALUE_BYTES, largest // 4, local.local_buffer_bytes // 4)
        put, got = first.name, last.name
        order = {"key": f"mooncake-preflight-{os.getpid()}", "bytes": size}
        self._tell(f"a put of {format_bytes(size)}")
        seconds = 0.0
        limit = min(_PUT_SECONDS, self._limit_seconds)
        for member, what in ((first, "put"), (last, "get")):
            player = self._programs.players[member.number]
            try:
                answer = player.ask({"do": what, **order}, limit)
            except StoppedError as stopped:
                return Transfer(put, got, size, f"{what}: {stopped}")
            seconds += answer.seconds
            if answer.error:
                lines = "; ".join(player.last_lines()[-1:])
                return Transfer(put, got, size, f"{answer.error}: {lines}")
        return Transfer(put, got, size, seconds=seconds)


class StepTimes:
    """Records when the last huge page of a step was mapped, and when the last memory was pinned."""

    def __init__(self, root: Root, before: Mapping[Spot, int], began: float) -> None:
        """Begin at ``began``, in monotonic seconds.

        Args:
            before: The pages in use at that time.
        """
        self._root, self._before, self._began = root, before, began
        self._last: tuple[int, int] | None = None  # pages and pinned bytes of the last look
        self._populated: list[float] = []
        self._pinned: list[float] = []

    def look(self, process: Running | None) -> None:
        """Note the time of new pages and pins since the last call.

        Args:
            process: None if not started.
        """
        now = time.monotonic()
        taken = taken_since(self._root, self._before)
        pages = sum(count for spot, count in taken.items() if spot.node is None)
        pinned = 0 if process is None else status_bytes(process.pid).get("VmPin", 0)
        if self._last is not None and pages != self._last[0]:
            self._populated.append(now)
        if self._last is not None and pinned > self._last[1]:
            self._pinned.append(now)
        self._last = pages, pinned

    @property
    def times(self) -> tuple[float | None, float | None]:
        """Two spans in seconds: until the last huge page was mapped, and from then to the last pin;
        from the first pin if that came earlier.

        Returns:
            None without a page, or without a pin.
        """
        since = self._populated[-1] if self._populated else self._began
        populated = since - self._began if self._populated else None
        if not self._pinned:
            return populated, None
        return populated, max(0.0, self._pinned[-1] - min(since, self._pinned[0]))


# Of the memory that is not set aside as huge pages, one part in so many is left alone.
LEFT_SHARE = 10


class Room(NamedTuple):
    """The bytes that may still be taken; below 0 a limit is passed.

    Attributes:
        source: What sets the limit.
        numa_node: The node, None for the host or the cgroup.
    """

    bytes: int
    source: str
    numa_node: int | None = None


class MemoryWatch:
    """Tells how much regular memory may still be taken: of the host, of some nodes, and of the
    cgroup.

    lowest_bytes: the least that ``room`` has returned; None before the first call.
    """

    def __init__(self, root: Root, nodes: Iterable[int], unread_bytes: int = -1) -> None:
        """Watch the host, its ``nodes`` and this process's cgroup.

        Args:
            unread_bytes: What may be taken if the cgroup cannot be read; nothing unless given.
        """
        self._root, self._nodes, self._unread_bytes = root, frozenset(nodes), unread_bytes
        self._limited = memory_headroom(root) is not None
        self.lowest_bytes: int | None = None

    def room(self) -> Room:
        """Return the room that is smallest now; below 0 if the host or cgroup cannot be read."""
        tightest = min(self._rooms(), key=lambda room: room.bytes)
        if self.lowest_bytes is None or tightest.bytes < self.lowest_bytes:
            self.lowest_bytes = tightest.bytes
        return tightest

    def first_shortage(self, need_bytes: Mapping[int | None, int]) -> tuple[int, Room] | None:
        """Return the first need that exceeds its room, and that room; None if all fit.

        Args:
            need_bytes: By NUMA node; under None those of the host and the cgroup.
        """
        rooms = ((need_bytes.get(room.numa_node, 0), room) for room in self._rooms())
        return next((row for row in rooms if row[0] > row[1].bytes), None)

    def _rooms(self) -> Iterator[Room]:
        """Yield the room of the host, of each watched node and, if limited, of the cgroup."""
        yield _host_room(read_meminfo(self._root))
        if self._nodes:
            tables, pools = read_node_meminfo(self._root), _pools(self._root)
            for numa_node in sorted(self._nodes):
                table = tables.get(numa_node)
                if table is not None and not isinstance(table, Unknown):
                    yield _node_room(numa_node, table, pools)
        if self._limited and (headroom := memory_headroom(self._root)) is not None:
            room = _cgroup_room(self._root, headroom)
            read = not isinstance(headroom, Unknown)
            yield room if read else room._replace(bytes=self._unread_bytes)


def _host_room(meminfo: Meminfo | Unknown) -> Room:
    """Return the host's available memory, less a tenth that is never taken; -1 if unreadable."""
    if isinstance(meminfo, Unknown):
        return Room(-1, f"memory cannot be read: {meminfo.reason}")
    sizes = meminfo.values
    if not {"MemAvailable", "MemTotal"} <= sizes.keys():
        return Room(-1, "/proc/meminfo: no MemAvailable")
    left = (sizes["MemTotal"] - sizes.get("Hugetlb", 0)) // LEFT_SHARE  # Hugetlb: Linux 4.20
    source = f"{format_bytes(left)} of the host's memory is left alone"
    return Room(sizes["MemAvailable"] - left, source)


def _node_room(numa: int, table: Meminfo, pools: Mapping[int, Pool]) -> Room:
    """Return the room on a node: free memory and page cache, less a tenth that is never taken."""
    names = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    free = sum(table.values.get(name, 0) for name in names)
    here = ((size, counts.nodes[numa]) for size, counts in pools.items() if numa in counts.nodes)
    huge_bytes = sum(size * share.total_pages for size, share in here)
    left = max(0, table.values.get("MemTotal", 0) - huge_bytes) // LEFT_SHARE
    return Room(free - left, f"{format_bytes(left)} of node {numa}'s memory is left alone", numa)


def _cgroup_room(root: Root, headroom: MemoryHeadroom | Unknown) -> Room:
    """Return the room below the cgroup's limit, less a tenth of the limit; -1 if unreadable."""
    if isinstance(headroom, Unknown):
        return Room(-1, f"the cgroup's memory cannot be read: {headroom.reason}")
    limit = root.integer(headroom.source)
    left = 0 if isinstance(limit, Unknown) else limit // LEFT_SHARE
    source = f"{format_bytes(left)} of {headroom.source} is left alone"
    return Room(headroom.left_bytes - left, source)


def _pools(root: Root) -> dict[int, Pool]:
    """Return the huge page pools by page size in bytes; those that cannot be read are left out."""
    pools = read_hugetlb(root, Unknown("not asked")).pools
    read = {} if isinstance(pools, Unknown) else pools
    return {size: counts for size, counts in read.items() if not isinstance(counts, Unknown)}


def pages_in_use(root: Root) -> dict[Spot, int]:
    """Return the huge pages that are not free, by page size and node; node None: the whole host."""
    used: dict[Spot, int] = {}
    for size, counts in _pools(root).items():
        used[Spot(size, None)] = counts.total_pages - counts.free_pages
        for numa_node, share in counts.nodes.items():
            used[Spot(size, numa_node)] = share.total_pages - share.free_pages
    return used


def wait_for_pools(root: Root) -> dict[int, Pool]:
    """Wait until the counts of huge pages stay the same for 0.5 s (10 s at most); return the pools
    by page size in bytes.

    Does not wait if nobody holds pages.
    """
    since, pools = time.monotonic(), _pools(root)
    until = since + _BACK_SECONDS
    while any(counts.held_pages for counts in pools.values()):
        if time.monotonic() > min(since + _QUIET_SECONDS, until):
            break
        time.sleep(LOOK_SECONDS)
        now = _pools(root)
        if now != pools:
            since, pools = time.monotonic(), now
    return pools


def pages_of_others(root: Root) -> list[str]:
    """Return a warning for each page size of which other programs have pages, or are promised some:
    pages that they take or give back would be counted as the rehearsal's.
    """
    return [
        f"others use {counts.total_pages - counts.free_pages} pages of {format_bytes(size)} and "
        f"{counts.reserved_pages} more are promised to them: pages that they take or give back "
        "meanwhile are counted here too"
        for size, counts in wait_for_pools(root).items()
        if counts.held_pages
    ]


def taken_since(root: Root, before: Mapping[Spot, int]) -> dict[Spot, int]:
    """Return how many huge pages are in use more than ``before``, by size and node; below 0 if
    fewer.

    Counts that did not change are left out.
    """
    more = {spot: pages - before.get(spot, 0) for spot, pages in pages_in_use(root).items()}
    return {spot: pages for spot, pages in more.items() if pages}


def status_bytes(pid: int) -> Mapping[str, int]:
    """Return a process's sizes in bytes (VmPin, VmLck, VmRSS ...) by name; {} if it is gone."""
    return read_process_sizes(Root(), pid)
