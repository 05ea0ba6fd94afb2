"""The largest sizes that a host takes: the checks themselves are asked, size by size.

No number is computed from a formula of memory here; see ``candidates`` for what passes.
"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.finding import Status
from checks.base.units import GIB, MIB
from checks.base.unknown import Unknown
from checks.memory.facts import MemoryFacts
from preflight.base.usage_error import UsageError
from preflight.fit.candidates import Solver
from preflight.fit.judged_values import HostState, Judgement, LaunchState
from preflight.fit.launch_values import Values
from preflight.fit.records import Bound, FitAnswer, Goal
from preflight.fit.shares import shares
from preflight.sglang.host_pool_records import GIGABYTE
from preflight.sglang.model import Models

# Without these no size says anything: what the launch takes, and what the host has.
_DECISIVE = ("launch.sizes", "memory.host", "hugetlb.reservation")
_NO_GATE = "nothing that could be judged of this launch here depends on the size"


def solve(state: LaunchState, host: HostState, goal: Goal) -> FitAnswer:
    """The largest sizes by ``goal``. Raises UsageError for a size that the launch has not."""
    _refuse(state, goal)
    solver = Solver(state, host)
    limits, low, values = _solved(solver, state, host, goal)
    nothing = FitAnswer(goal, state.sizes, low.values, None, low, (), solver.unknown(low))
    nothing = nothing._replace(beside=solver.beside(low), gates=solver.ids)
    decisive = [finding for id_ in _DECISIVE for finding in low.of((id_,), Status.UNKNOWN)]
    if decisive:
        return nothing._replace(reason=decisive[0].text)
    bounds = () if values is None else tuple(limits.bounds(values, goal))
    if limits.endless or not all(bound.findings for bound in bounds):
        return nothing._replace(reason=_NO_GATE)
    if values is None:
        near = solver.nearest() or low
        return nothing._replace(values=near.values, blocking=solver.stopping(near))
    found = solver.whole(solver.best(values).values)
    return FitAnswer(
        goal,
        state.sizes,
        found.values,
        found,
        low,
        (),
        solver.unknown(found),
        bounds,
        solver.beside(found),
        shares(found, goal, Models(host.root, state.options.model_config)),
        solver.ids,
    )


def largest_sizes(
    state: LaunchState, host: HostState, goal: Goal, gates: frozenset[str]
) -> Values | None:
    """The sizes alone, by ``gates``; None where nothing fits."""
    return _solved(Solver(state, host), state, host, goal, gates)[2]


def _solved(
    solver: Solver,
    state: LaunchState,
    host: HostState,
    goal: Goal,
    gates: frozenset[str] | None = None,
) -> tuple[_Limits, Judgement, Values | None]:
    limits = _Limits(solver, state, _most_bytes(host))
    first = solver.without_arena(limits.values(goal, 1))
    if gates is not None:
        return limits, solver.take_gates(first, gates), limits.solve(goal)
    most = solver.without_arena(limits.values(goal, limits.most(goal)))
    return limits, solver.learn_gates(first, most), limits.solve(goal)


def _refuse(state: LaunchState, goal: Goal) -> None:
    sizes = state.sizes
    if goal is not Goal.POOL and sizes.l2 is None:
        hint = ": give --goal pool to size its segment" if sizes.segment else ""
        raise UsageError(f"--goal {goal.value}: {sizes.why_no_l2}{hint}")
    if goal is not Goal.L2 and sizes.segment is None:
        hint = ": give --goal l2" if sizes.l2 else ""
        raise UsageError(f"--goal {goal.value}: {sizes.why_no_segment}{hint}")


def _most_bytes(host: HostState) -> int:
    """More than any size that this host takes; where its memory is not known, 1 PiB."""
    memory: MemoryFacts | Unknown = host.facts.topic("memory")
    total = memory if isinstance(memory, Unknown) else memory.value("MemTotal")
    available = memory if isinstance(memory, Unknown) else memory.value("MemAvailable")
    if isinstance(total, Unknown) or isinstance(available, Unknown):
        return 1 << 50
    return total + available


class _Limits:
    """The search itself: one size or both, in their own steps."""

    def __init__(self, solver: Solver, state: LaunchState, top_bytes: int) -> None:
        self._solver, self._state, self._top = solver, state, top_bytes
        # Whether the size that is more than any host takes passes: then nothing that could be
        # judged depends on it, and it is no answer.
        self.endless = False
        self._factor: tuple[int, int] | None = None

    def most(self, goal: Goal) -> int:
        step = MIB if goal is Goal.POOL else GIGABYTE
        if goal is Goal.POOL:
            return max(1, self._setting(self._top) // step)
        return max(1, self._top // self._ranks() // step)

    def values(self, goal: Goal, steps: int) -> Values:
        if goal is Goal.L2:
            return Values(l2_bytes=steps * GIGABYTE)
        if goal is Goal.POOL:
            return Values(segment_bytes=steps * MIB)
        return Values(l2_bytes=steps * GIGABYTE, segment_bytes=self._equal(steps * GIGABYTE))

    def solve(self, goal: Goal) -> Values | None:
        def make(steps: int) -> Values:
            return self.values(goal, steps)

        found = self._solver.largest(make, 1, self.most(goal))
        self.endless = found == self.most(goal)
        if found is None or self.endless:
            return None
        values = self.values(goal, found)
        if goal is not Goal.BALANCED:
            return values
        # What is left of it: to L2 while a step of that fits, then to the segment.
        values = values._replace(l2_bytes=self._grow_l2(values))
        return values._replace(segment_bytes=self._grow_segment(values))

    def _grow_l2(self, values: Values) -> int:
        def make(steps: int) -> Values:
            return values._replace(l2_bytes=steps * GIGABYTE)

        assert values.l2_bytes is not None
        low = values.l2_bytes // GIGABYTE
        return self._solver.grown(make, low, self.most(Goal.L2)) * GIGABYTE

    def _grow_segment(self, values: Values) -> int:
        def make(steps: int) -> Values:
            return values._replace(segment_bytes=steps * MIB)

        assert values.segment_bytes is not None
        low = values.segment_bytes // MIB
        return self._solver.grown(make, low, self.most(Goal.POOL)) * MIB

    def bounds(self, values: Values, goal: Goal) -> Iterable[Bound]:
        """What one step more of each size meets."""
        if goal is not Goal.POOL and values.l2_bytes is not None:
            yield self._bound("l2", values, values.l2_bytes + GIGABYTE)
        if goal is not Goal.L2 and values.segment_bytes is not None:
            yield self._bound("segment", values, values.segment_bytes + MIB)

    def _bound(self, size: str, values: Values, value: int) -> Bound:
        more = values._replace(**{f"{size}_bytes": value})
        return Bound(size, value, self._solver.stopping(self._solver.best(more)))

    def _equal(self, l2_bytes: int) -> int:
        """The segment that contributes as much of this host as L2 takes of it."""
        return max(MIB, self._setting(l2_bytes * self._ranks()) // MIB * MIB)

    def _ranks(self) -> int:
        """Processes of this host that have an L2 pool."""
        return max(1, self._contributed()[1])

    def _setting(self, contributed_bytes: int) -> int:
        """What to set so that this host contributes so much: ranks on other hosts have shares."""
        of_one_tib, _ = self._contributed()
        return contributed_bytes * (1024 * GIB) // of_one_tib if of_one_tib else contributed_bytes

    def _contributed(self) -> tuple[int, int]:
        """Bytes of segment on this host with 1 TiB set, and the processes with an L2 pool."""
        if self._factor is None:
            shown = self._solver.peek(
                Values(
                    GIGABYTE if self._state.sizes.l2 else None,
                    1024 * GIB if self._state.sizes.segment else None,
                    0 if self._state.sizes.arena else None,
                )
            )
            processes = shown.inputs.launch.processes if shown is not None else ()
            segment = sum(client.segment_bytes for p in processes for client in p.clients)
            self._factor = segment, sum(1 for p in processes if p.host_pools_bytes)
        return self._factor
