"""The largest sizes that a host takes: the checks themselves are asked, size by size.

No number is computed from a formula of memory here. A candidate passes where no gate finds anything
that it does not find with the least sizes as well; failures and, beyond the least sizes, unknowns
never pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from checks.framework.finding import Finding, Status
from checks.framework.pages import MemoryKind
from checks.framework.units import GIB, GIGABYTE, MIB, round_up
from checks.framework.unknown import Unknown, UnknownFactError, require
from checks.memory.facts import MemoryFacts
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.fit.judged_values import (
    FitAnswer,
    Goal,
    HostState,
    Judgement,
    LaunchState,
    SizeBound,
    is_mended,
    judged_values,
    sensitive_ids,
    sized_values,
)
from preflight.cache_sizing.fit.launch_values import SizeValues
from preflight.host_tuning.refusal import REFUSED
from preflight.needs.sizing import Sizing

if TYPE_CHECKING:
    from preflight.cache_sizing.fit.divisions import Chooser


def largest(
    passes: Callable[[int], bool],
    least: int,
    most: int,
    too_small: Callable[[int], bool] = lambda number: False,
) -> int | None:
    """Return the largest number from ``least`` to ``most`` that passes; None if none was found.

    All numbers above the answer must fail; smaller ones may fail too, as an L2 smaller than the
    GPU's cache does. From ``most`` the distance to ``least`` is halved until a number passes, then
    the stretch above is searched by halves.

    Args:
        too_small: May tell that a number fails for being too small; it must be false for all
            numbers above the answer.
    """
    if least > most:
        return None
    high, low, looked = most + 1, most, False
    while not passes(low):
        if not looked and too_small(low):
            looked = True
            end = _last_passing(lambda number: passes(number) or too_small(number), low, high)
            if passes(end):
                return end
        if low == least:
            return None
        high, low = low, least + (low - least) // 2
    return _last_passing(passes, low, high)


def _last_passing(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number that holds, by halves.

    ``low`` holds, and ``high`` does not.
    """
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def largest_from(passes: Callable[[int], bool], low: int, most: int) -> int:
    """Return the largest number up to ``most`` that passes.

    ``low`` must pass; the search is short if the answer is little above ``low``.
    """
    step, high = 1, most + 1
    while low + step < high:
        if not passes(low + step):
            high = low + step
            break
        low += step
        step *= 8
    return _last_passing(passes, low, high)


_WANTING = (Status.FAIL, Status.UNKNOWN, Status.WARN)
# An arena in which any segment lies: what is used of it is what an exact one has.
_ENDLESS_ARENA = 1 << 50


class Solver:
    """Judges sizes by the checks, and remembers each judgement."""

    def __init__(self, state: LaunchState, host: HostState) -> None:
        """Start without gates: until some are learned or taken, every check judges."""
        self._state, self._host = state, host
        self._known: dict[SizeValues, Judgement] = {}
        self._arenas: dict[int | None, int] = {}
        # The gates; none are known at first, and every check judges.
        self.ids: frozenset[str] = frozenset()
        # What a candidate may find: what the least sizes warn of, and cannot judge either.
        self._allowed: frozenset[tuple[str, str, Status]] = frozenset()

    def judge(self, values: SizeValues) -> Judgement:
        """Return the judgement of ``values``, by the gates alone if these are known; keep it."""
        if values not in self._known:
            self._known[values] = judged_values(self._state, self._host, values, self.ids or None)
        return self._known[values]

    def judge_fully(self, values: SizeValues) -> Judgement:
        """Return the judgement of ``values`` by every check; it is not kept."""
        return judged_values(self._state, self._host, values)

    def peek(self, values: SizeValues) -> Sizing | None:
        """Return the sizing with ``values``, judged by no check; None if it is not known."""
        return sized_values(self._state, self._host, values)[1].shown

    def learn_gates(self, least: SizeValues, most: SizeValues) -> Judgement:
        """Learn the gates: ``GATES``, and the checks whose findings differ between the ``least``
        and the ``most`` sizes.

        Warnings and unknowns of the least sizes will stop no sizes. Return the judgement of the
        least sizes by every check.
        """
        low = self.judge_fully(least)
        self._allow(low, sensitive_ids(low, self.judge_fully(most)))
        return low

    def take_gates(self, least: SizeValues, ids: frozenset[str]) -> None:
        """Take the gates ``ids``, known from another host or launch.

        Warnings and unknowns of the ``least`` sizes will stop no sizes.
        """
        self.ids = ids
        self._allow(self.judge(least), ids)

    def _allow(self, low: Judgement, ids: frozenset[str]) -> None:
        self.ids = ids
        gates = low.of(ids, Status.WARN, Status.UNKNOWN)
        self._allowed = frozenset((each.check, each.subject, each.status) for each in gates)

    def stopping(self, judgement: Judgement) -> tuple[Finding, ...]:
        """Return the findings of gates that keep sizes from passing, the worst first.

        Left out are warnings and unknowns that the least sizes have too, and all that a setting
        mends.
        """
        every = (finding for status in _WANTING for finding in judgement.of(self.ids, status))
        rest = (
            each for each in every if (each.check, each.subject, each.status) not in self._allowed
        )
        return tuple(finding for finding in rest if not is_mended(finding))

    def nearest(self) -> Judgement | None:
        """Return the remembered judgement that the fewest findings stop; if several are equal, the
        judgement of the smallest sizes.

        Returns:
            None if nothing was judged.
        """

        def rank(judgement: Judgement) -> tuple[int, int]:
            values = judgement.values
            size = (values.l2_bytes or 0) + (values.segment_bytes or 0)
            return len(self.stopping(judgement)), size

        return min(self._known.values(), key=rank, default=None)

    def beside(self, judgement: Judgement) -> tuple[Finding, ...]:
        """Return the findings that do not pass and stop no sizes, the worst first: those of checks
        that are no gates, and those that a setting mends.
        """
        rest = [x for x in judgement.findings if x.check not in self.ids or is_mended(x)]
        return tuple(each for status in _WANTING for each in rest if each.status is status)

    def best(self, values: SizeValues) -> Judgement:
        """Return the judgement of ``values`` with an arena of just the bytes that are used; if that
        does not pass, or the launch sets no arena, the judgement without one.
        """
        with_arena = self.with_exact_arena(values)
        if with_arena is not None and self.passes(with_arena):
            return self.judge(with_arena)
        return self.judge(self.without_arena(values))

    def without_arena(self, values: SizeValues) -> SizeValues:
        return values if self._state.sizes.arena is None else values._replace(arena_bytes=0)

    def with_exact_arena(self, values: SizeValues) -> SizeValues | None:
        """Return ``values`` with an arena that is used up to its last page; None if the launch sets
        no arena, or would use nothing of one.
        """
        if self._state.sizes.arena is None:
            return None
        if values.segment_bytes not in self._arenas:
            shown = self.peek(values._replace(arena_bytes=_ENDLESS_ARENA))
            replays = shown.asked if shown is not None else ()
            used = max((replay.arena_used_bytes for replay in replays), default=0)
            every = (a for replay in replays for a in replay.allocations)
            pages = [a.page_size_bytes for a in every if a.what == MemoryKind.ARENA]
            self._arenas[values.segment_bytes] = round_up(used, max(pages)) if pages else 0
        exact = self._arenas[values.segment_bytes]
        return values._replace(arena_bytes=exact) if exact else None

    def passes(self, values: SizeValues) -> bool:
        return not self.stopping(self.judge(values))

    def fits(self, values: SizeValues) -> bool:
        """Return whether ``values`` pass without an arena, or with one that is used up."""
        if self.passes(self.without_arena(values)):
            return True
        with_arena = self.with_exact_arena(values)
        return with_arena is not None and self.passes(with_arena)

    def largest(
        self,
        make: Callable[[int], SizeValues],
        least: int,
        most: int,
        step_bytes: float = 0.0,
        near: int = 0,
    ) -> int | None:
        """Return the largest number from ``least`` to ``most`` for which the sizes ``make(number)``
        fit; None if none was found.

        Args:
            step_bytes: Memory of the host that one step of the number takes, to guess where to look
                next; 0 if not known.
            near: A guess of the answer; 0 for none.
        """

        def fits(number: int) -> bool:
            return self.fits(make(number))

        low = least
        if least < near < most:
            if fits(near):
                low = near
            elif fits(least):
                return self._search_between(make, least, near)
        if step_bytes and fits(low):
            while (room := self.best(make(low)).room_bytes) >= step_bytes and low < most:
                high = min(most, low + int(room / step_bytes))
                if not fits(high):
                    return self._search_between(make, low, high)
                taken = room - self.best(make(high)).room_bytes
                low, expected = high, (high - low) * step_bytes
                if 2 * taken < expected:  # such a size takes less of this host, or nothing
                    break
            return largest_from(fits, low, most)

        def stops(number: int) -> set[tuple[str, Status, str]]:
            stopping = self.stopping(self.judge(self.without_arena(make(number))))
            return {(finding.check, finding.status, finding.subject) for finding in stopping}

        return largest(fits, least, most, lambda number: stops(number) <= stops(least))

    def _search_between(self, make: Callable[[int], SizeValues], low: int, high: int) -> int:
        """Return the last number that fits between ``low``, which does, and ``high``, which does
        not.

        The memory left at both ends tells where to look.
        """
        poor = 0
        while high - low > 1:
            width, middle = high - low, (low + high) // 2
            first, last = (self.best(make(number)).room_bytes for number in (low, high))
            if last < 0 <= first and poor < 2:
                middle = min(high - 1, max(low + 1, low + width * first // (first - last)))
            low, high = (middle, high) if self.fits(make(middle)) else (low, middle)
            poor = poor + 1 if poor < 2 and (high - low) * 2 > width else 0
        return low


# Without these no size says anything: what the launch takes, and what the host has.
_DECISIVE = ("launch.sizes", "memory.host", "hugetlb.reservation")
# With less a segment on regular pages may be too small to be mapped (16 MiB).
_SMALL_SEGMENT = 64 * MIB
# How often the stretch between two divisions is halved where it is no line.
_HALVINGS = 4
# Each size with its step in bytes, and the goal that is about this size alone.
_STEPS = (("l2", GIGABYTE, Goal.L2), ("segment", MIB, Goal.POOL))
_MEMORY_ROWS = ("MemTotal", "MemAvailable")
_NO_GATE = "nothing that could be judged of this launch here depends on the size"


def solve(
    state: LaunchState, host: HostState, goal: Goal, chooser: Chooser | None = None
) -> FitAnswer:
    """Return the largest sizes for ``goal``, or with ``chooser`` the division that it ranks first
    among those that fit.

    If no sizes fit, the answer says why.

    Raises:
        UsageError: For a goal whose size the launch does not have, and with a chooser
            UnknownFactError as ``Chooser.begin``.
    """
    _refuse_missing_size(state, goal)
    search = _Search(state, host, goal)
    solver, low = search.solver, search.learn_gates()
    values = search.largest() if chooser is None else search.choose(chooser)
    unknown, beside = low.of(solver.ids, Status.UNKNOWN), solver.beside(low)
    nothing = FitAnswer(goal, state.sizes, low.values, None, low, (), unknown)
    nothing = nothing._replace(beside=beside, gates=solver.ids)
    decisive = [finding for id_ in _DECISIVE for finding in low.of((id_,), Status.UNKNOWN)]
    refused = [finding for finding in nothing.beside if finding.check in REFUSED]
    if decisive and any(finding.status is Status.FAIL for finding in refused):
        # The server ends at start, whatever the size; what it would map is not known for that.
        rest = tuple(finding for finding in nothing.beside if finding not in refused)
        return nothing._replace(blocking=tuple(refused), beside=rest, unknown=())
    if decisive:
        return nothing._replace(reason=decisive[0].text)
    bounds = () if values is None else tuple(search.bounds(values))
    if search.endless or not all(bound.findings for bound in bounds):
        return nothing._replace(reason=_NO_GATE)
    if values is None:
        near = solver.nearest() or low
        return nothing._replace(values=near.values, blocking=solver.stopping(near))
    finding = solver.judge_fully(solver.best(values).values)
    unknown, beside = finding.of(solver.ids, Status.UNKNOWN), solver.beside(finding)
    answer = nothing._replace(values=finding.values, fits=finding, bounds=bounds)
    return answer._replace(unknown=unknown, beside=beside)


def largest_sizes(
    state: LaunchState, host: HostState, goal: Goal, gates: frozenset[str]
) -> SizeValues | None:
    """Return the largest sizes for ``goal`` that pass the checks ``gates``, learned before on
    another host or launch.

    Returns:
        None if none do, or if no gate depends on the size.
    """
    search = _Search(state, host, goal)
    search.solver.take_gates(search.least, gates)
    return search.largest()


def larger_fit(state: LaunchState, host: HostState, answer: FitAnswer) -> Iterator[bool]:
    """Yield for each bound of ``answer`` whether its size, one step larger, fits on ``host``."""
    search = _Search(state, host, answer.goal)
    search.solver.take_gates(search.least, answer.gates)
    for bound in answer.bounds:
        more = answer.values._replace(**{f"{bound.size}_bytes": bound.value_bytes})
        yield search.solver.fits(more)


def _refuse_missing_size(state: LaunchState, goal: Goal) -> None:
    """Raise UsageError for a goal whose size the launch does not have."""
    sizes = state.sizes
    if goal is not Goal.POOL and sizes.l2 is None:
        hint = ": give --goal pool to size its segment" if sizes.segment else ""
        raise UsageError(f"--goal {goal.value}: {sizes.why_no_l2}{hint}")
    if goal is not Goal.L2 and sizes.segment is None:
        hint = ": give --goal l2" if sizes.l2 else ""
        raise UsageError(f"--goal {goal.value}: {sizes.why_no_segment}{hint}")


class _Search:
    """The search for one goal: one size or both, in their own steps."""

    def __init__(self, state: LaunchState, host: HostState, goal: Goal) -> None:
        """Size the launch once, to learn how much memory of this host each size takes."""
        self.solver = Solver(state, host)
        self._state, self._host, self._goal = state, host, goal
        # More than any size that this host takes; 1 PiB where its memory is unknown.
        memory: MemoryFacts | Unknown = host.facts.topic("memory")
        self._top_bytes = 1 << 50
        with suppress(UnknownFactError):
            self._top_bytes = sum(require(require(memory).value(row)) for row in _MEMORY_ROWS)
        # Whether the size that is more than any host takes passes: then nothing that could be
        # judged depends on it, and it is no answer.
        self.endless = False
        # Bytes of segment on this host with 1 TiB set, and the processes with an L2 pool.
        sizes = state.sizes
        l2, segment = GIGABYTE if sizes.l2 else None, 1024 * GIB if sizes.segment else None
        shown = self.solver.peek(self.solver.without_arena(SizeValues(l2, segment)))
        processes = shown.inputs.launch.processes if shown is not None else ()
        self._of_one_tib = sum(client.segment_bytes for p in processes for client in p.clients)
        self._ranks = max(1, sum(1 for p in processes if p.host_pools_bytes))

    @property
    def least(self) -> SizeValues:
        return self.solver.without_arena(self._values(1))

    def learn_gates(self) -> Judgement:
        """Learn which checks sizes change; return all checks' judgement of the least sizes."""
        most = self.solver.without_arena(self._values(self._most(self._goal)))
        return self.solver.learn_gates(self.least, most)

    def _most(self, goal: Goal) -> int:
        """Return too many steps for any host: of a segment for the goal pool, else of L2."""
        if goal is Goal.POOL:
            return max(1, self._setting(self._top_bytes) // MIB)
        return max(1, self._top_bytes // self._ranks // GIGABYTE)

    def _values(self, steps: int) -> SizeValues:
        """Return the sizes after ``steps`` steps of 1 GB of L2, or for the goal pool of 1 MiB of
        segment.

        For goals of both sizes the segment takes as much of this host as L2.
        """
        if self._goal is Goal.L2:
            return SizeValues(l2_bytes=steps * GIGABYTE)
        if self._goal is Goal.POOL:
            return SizeValues(segment_bytes=steps * MIB)
        # With equal parts the segment contributes as much of this host as L2 takes of it.
        segment = self._setting(steps * GIGABYTE * self._ranks) // MIB * MIB
        return SizeValues(l2_bytes=steps * GIGABYTE, segment_bytes=max(MIB, segment))

    def largest(self) -> SizeValues | None:
        """Return the largest sizes for the goal; None if none fit.

        None too, with ``endless`` set, if even impossible sizes pass.
        """
        most = self._most(self._goal)
        step_bytes = self._step_bytes(self._goal)
        if self._goal is Goal.BALANCED:
            step_bytes *= 2
        steps = self.solver.largest(self._values, 1, most, step_bytes)
        self.endless = steps == most
        if steps is None or self.endless:
            return None
        values = self._values(steps)
        # What is left of it: to L2 while a step of that fits, then to the segment.
        for size, step, goal in _STEPS if self._goal is Goal.BALANCED else ():
            values = self._grow(values, size, step, self._most(goal))
        return values

    def choose(self, chooser: Chooser) -> SizeValues | None:
        """Return the division that the chooser ranks first among those that fit, with the largest
        segment for its L2.

        Returns:
            None if none fits, or, with ``endless`` set, if even impossible sizes pass.
        """
        least_segment = max(MIB, self._setting(self._ranks * _SMALL_SEGMENT))

        def with_l2(steps: int) -> SizeValues:
            return SizeValues(steps * GIGABYTE, least_segment)

        most = self._most(Goal.L2)
        largest_l2 = self.solver.largest(with_l2, 1, most, self._step_bytes(Goal.L2))
        self.endless = largest_l2 == most
        if self.endless or largest_l2 is None:
            return None
        high = self._fill(with_l2(largest_l2), GIB)
        least = chooser.begin(high, sized_values(self._state, self._host, high)[1].inputs)
        from preflight.cache_sizing.fit.divisions import Frontier

        low = self._fill(with_l2(least // GIGABYTE), GIB, high)
        points = {point.l2_bytes or 0: point for point in (low, high)}
        self._add_points(points, low, high, _HALVINGS)
        share = self._of_one_tib / (1024 * GIB)
        frontier = Frontier(tuple(points[size] for size in sorted(points)), self._ranks, share)
        for values in chooser.order(frontier):
            start = with_l2((values.l2_bytes or 0) // GIGABYTE)
            if self.solver.fits(start):
                return self._fill(start, MIB, values)
        return high

    def _add_points(
        self, points: dict[int, SizeValues], low: SizeValues, high: SizeValues, halvings: int
    ) -> None:
        """Add the division in the middle of ``low`` and ``high`` to ``points``, by L2 size.

        If its segment is far from the straight line between the two, do the same in both halves.

        Args:
            halvings: How often a stretch may be halved; 0 adds nothing.
        """
        first, last = low.l2_bytes or 0, high.l2_bytes or 0
        middle = (first + last) // 2 // GIGABYTE * GIGABYTE
        if not halvings or not first < middle < last:
            return
        segments = low.segment_bytes or 0, high.segment_bytes or 0
        part = (middle - first) / (last - first)
        guess = int(segments[0] + part * (segments[1] - segments[0]))
        start = SizeValues(middle, max(MIB, self._setting(self._ranks * _SMALL_SEGMENT)))
        point = points[middle] = self._fill(start, GIB, start._replace(segment_bytes=guess))
        if abs((point.segment_bytes or 0) - guess) > max(2 * GIB, segments[0] // 100):
            self._add_points(points, low, point, halvings - 1)
            self._add_points(points, point, high, halvings - 1)

    def _fill(self, start: SizeValues, step: int, near: SizeValues | None = None) -> SizeValues:
        """Return ``start``, which fits, with the largest segment that fits too, in steps of
        ``step`` bytes.

        Args:
            near: A division that fits, from which a first guess is made.
        """

        def make(steps: int) -> SizeValues:
            return start._replace(segment_bytes=max(start.segment_bytes or 0, steps * step))

        guess = 0
        if near is not None:
            more = self._setting(((near.l2_bytes or 0) - (start.l2_bytes or 0)) * self._ranks)
            guess = ((near.segment_bytes or 0) + more) // step
        taken = self._step_bytes(Goal.POOL) * step / MIB
        most = self._most(Goal.POOL) * MIB // step
        return make(self.solver.largest(make, 0, most, taken, guess) or 0)

    def _step_bytes(self, goal: Goal) -> float:
        """Return the host memory of one step: of a segment for the goal pool, else of L2."""
        if goal is Goal.POOL:
            return MIB * self._of_one_tib / (1024 * GIB)
        return float(GIGABYTE * self._ranks)

    def _grow(self, values: SizeValues, size: str, step_bytes: int, most: int) -> SizeValues:
        """Return ``values`` with as much of ``size`` ("l2" or "segment") as fits, at least as much
        as ``values`` have.

        Args:
            most: Steps of ``step_bytes`` to try up to.
        """

        def make(steps: int) -> SizeValues:
            return values._replace(**{f"{size}_bytes": steps * step_bytes})

        low = getattr(values, f"{size}_bytes") // step_bytes
        return make(largest_from(lambda steps: self.solver.fits(make(steps)), low, most))

    def bounds(self, values: SizeValues) -> Iterable[SizeBound]:
        """Yield for each size of the goal the findings that stop it from being one step larger."""
        for size, step, goal in _STEPS:
            now = getattr(values, f"{size}_bytes")
            if self._goal in (goal, Goal.BALANCED, Goal.BEST) and now is not None:
                more = values._replace(**{f"{size}_bytes": now + step})
                yield SizeBound(size, now + step, self.solver.stopping(self.solver.best(more)))

    def _setting(self, contributed_bytes: int) -> int:
        """Return the segment size to set so that this host contributes ``contributed_bytes``: ranks
        on other hosts have shares of the setting too.
        """
        if not self._of_one_tib:
            return contributed_bytes
        return contributed_bytes * (1024 * GIB) // self._of_one_tib
