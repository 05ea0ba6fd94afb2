"""Candidates asked one by one: which gates stop them, and what they remember of each.

A candidate passes where no gate finds anything that it does not find with the least sizes as well;
failures and, beyond the least sizes, unknowns never pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from checks.base.finding import Finding, Status
from checks.base.needs import MemoryKind
from checks.base.units import round_up
from preflight.fit.judged_values import (
    HostState,
    Judgement,
    LaunchState,
    judged_values,
    sensitive_ids,
    sized_values,
)
from preflight.fit.launch_values import Values
from preflight.fit.search import largest, largest_from
from preflight.sizing.sizing import Sizing

_WANTING = (Status.FAIL, Status.UNKNOWN, Status.WARN)
# An arena in which any segment lies: what is used of it is what an exact one has.
_ENDLESS_ARENA = 1 << 50


class _Allowed(NamedTuple):
    """What a candidate may find: (check, subject) of warnings and of what cannot be judged."""

    warned: frozenset[tuple[str, str]]
    unknown: frozenset[tuple[str, str]]


class Solver:
    """Asks the checks about candidates; remembers what they said."""

    def __init__(self, state: LaunchState, host: HostState) -> None:
        self._state, self._host = state, host
        self._known: dict[Values, Judgement] = {}
        self._arenas: dict[int | None, int] = {}
        self._ids: frozenset[str] | None = None
        self._allowed = _Allowed(frozenset(), frozenset())

    def judge(self, values: Values) -> Judgement:
        """By the gates alone once they are known."""
        found = self._known.get(values)
        if found is None:
            found = judged_values(self._state, self._host, values, self._ids)
            self._known[values] = found
        return found

    def whole(self, values: Values) -> Judgement:
        """By every check."""
        return judged_values(self._state, self._host, values)

    def peek(self, values: Values) -> Sizing | None:
        """What sizing alone tells."""
        return sized_values(self._state, self._host, values)[1].shown

    def learn_gates(self, least: Values, most: Values) -> Judgement:
        """Which checks sizes change, and what they find whatever the sizes; judged by all."""
        low, high = self.whole(least), self.whole(most)
        self._allow(low, sensitive_ids(low, high))
        return low

    def take_gates(self, least: Values, ids: frozenset[str]) -> Judgement:
        """The same where the gates are known from another host or launch."""
        self._ids = ids
        low = self.judge(least)
        self._allow(low, ids)
        return low

    def _allow(self, low: Judgement, ids: frozenset[str]) -> None:
        self._ids = ids
        gates = low.of(ids, Status.WARN, Status.UNKNOWN)
        warned = {(f.check, f.subject) for f in gates if f.status is Status.WARN}
        unknown = {(f.check, f.subject) for f in gates if f.status is Status.UNKNOWN}
        self._allowed = _Allowed(frozenset(warned), frozenset(unknown))

    @property
    def ids(self) -> frozenset[str]:
        return self._ids or frozenset()

    def stopping(self, judgement: Judgement) -> tuple[Finding, ...]:
        """What keeps a candidate from passing, the worst first."""
        found = []
        for status in _WANTING:
            for finding in judgement.of(self.ids, status):
                key = (finding.check, finding.subject)
                warned = status is Status.WARN and key in self._allowed.warned
                unread = status is Status.UNKNOWN and key in self._allowed.unknown
                if not warned and not unread:
                    found.append(finding)
        return tuple(found)

    def unknown(self, judgement: Judgement) -> tuple[Finding, ...]:
        """Gates that could not be judged."""
        return judgement.of(self.ids, Status.UNKNOWN)

    def nearest(self) -> Judgement | None:
        """Of all candidates that were judged, the least of those that the fewest findings stop."""

        def rank(judgement: Judgement) -> tuple[int, int]:
            values = judgement.values
            size = (values.l2_bytes or 0) + (values.segment_bytes or 0)
            return len(self.stopping(judgement)), size

        return min(self._known.values(), key=rank, default=None)

    def beside(self, judgement: Judgement) -> tuple[Finding, ...]:
        """What check finds beside the gates, the worst first."""
        others = [f for f in judgement.findings if f.check not in self.ids and f.status in _WANTING]
        return tuple(sorted(others, key=lambda finding: _WANTING.index(finding.status)))

    def best(self, values: Values) -> Judgement:
        """With the arena that suits these values: exactly what is used of it, or none.

        Where neither passes, the one without is what stops.
        """
        with_arena = self.with_exact_arena(values)
        if with_arena is not None and self.passes(with_arena):
            return self.judge(with_arena)
        return self.judge(self.without_arena(values))

    def without_arena(self, values: Values) -> Values:
        return values if self._state.sizes.arena is None else values._replace(arena_bytes=0)

    def with_exact_arena(self, values: Values) -> Values | None:
        """With an arena that is used up to its last page; None where the launch creates none."""
        exact = 0 if self._state.sizes.arena is None else self._exact_arena(values)
        return values._replace(arena_bytes=exact) if exact else None

    def _exact_arena(self, values: Values) -> int:
        """What the processes use of an arena that holds all it can; 0 where none is created."""
        if values.segment_bytes not in self._arenas:
            shown = self.peek(values._replace(arena_bytes=_ENDLESS_ARENA))
            replays = shown.asked if shown is not None else ()
            used = max((replay.arena_used_bytes for replay in replays), default=0)
            pages = [
                a.page_size_bytes
                for replay in replays
                for a in replay.allocations
                if a.what == MemoryKind.ARENA
            ]
            self._arenas[values.segment_bytes] = round_up(used, max(pages)) if pages else 0
        return self._arenas[values.segment_bytes]

    def passes(self, values: Values) -> bool:
        return not self.stopping(self.judge(values))

    def largest(self, make: Callable[[int], Values], least: int, most: int) -> int | None:
        """The largest number whose values pass, without an arena or with an exact one.

        The two hardly differ: an arena rounds once what is rounded piece by piece without it.
        """

        without, exact = self._variants(make)

        def too_small(number: int) -> bool:
            """Whether nothing stops it that does not stop the least as well."""
            return self._stops(make(number)) <= self._stops(make(least))

        found = largest(without, least, most, too_small)
        if self._state.sizes.arena is None:
            return found
        if found is None:
            return largest(exact, least, most, too_small)
        if found < most and exact(found + 1):
            return largest_from(exact, found + 1, most)
        return found

    def grown(self, make: Callable[[int], Values], low: int, most: int) -> int:
        """The same from ``low`` on, which passes, where the answer is hardly above it."""
        without, exact = self._variants(make)
        found = largest_from(without, low, most) if without(low) else low
        if self._state.sizes.arena is not None and found < most and exact(found + 1):
            return largest_from(exact, found + 1, most)
        return found

    def _stops(self, values: Values) -> set[tuple[str, Status, str]]:
        stopping = self.stopping(self.judge(self.without_arena(values)))
        return {(finding.check, finding.status, finding.subject) for finding in stopping}

    def _variants(
        self, make: Callable[[int], Values]
    ) -> tuple[Callable[[int], bool], Callable[[int], bool]]:
        def without(number: int) -> bool:
            return self.passes(self.without_arena(make(number)))

        def exact(number: int) -> bool:
            values = self.with_exact_arena(make(number))
            return values is not None and self.passes(values)

        return without, exact
