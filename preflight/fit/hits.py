"""Which sizes that a host takes answer the most of a recorded trace.

The memory is given to L2, to the segment, or to both in three shares; each is fitted as by itself,
and the trace is replayed on all of them at once. More shares between these bring little: hits
change slowly with size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.capacity.answer import (
    CapacityAnswer,
    CapacityRequest,
    ServerCapacity,
    compute_capacity,
)
from preflight.capacity.deployment import Bounds, Tier
from preflight.capacity.trace_answer import TraceAnswer, TraceRequest, page_of, trace_answer
from preflight.capacity.trace_report import tier_sizes
from preflight.fit.fit_launch import Fitted
from preflight.traces.formats import open_trace

# What is tried: the goal, and the part of the memory that L2 gets.
TRIED = (("l2", 1.0), ("balanced", 0.75), ("balanced", 0.5), ("balanced", 0.25), ("pool", 0.0))
# What one GiB more buys is measured with so many: a single one is lost among whole blocks.
_MORE_GIB = 16


class Tried(NamedTuple):
    """Sizes that fit. rates: hits of each server, least and most, as a part of all accesses."""

    about: str
    sizes: str
    rates: tuple[tuple[float, float], ...]

    @property
    def least(self) -> float:
        """Of all servers together."""
        return sum(least for least, _ in self.rates) / len(self.rates)


class Hits(NamedTuple):
    """tried: the best first. next_gib: by size, tokens of the trace that one GiB more saves.

    chosen, answer: the first of them, and the trace on it, with the curve.
    """

    trace: str
    ceiling: float
    tried: tuple[Tried, ...]
    next_gib: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]
    chosen: CapacityAnswer
    answer: TraceAnswer


def fitted_for_hits(
    fit: Callable[[str, float], Fitted | Unknown], name: str, tell: Callable[[str], None]
) -> tuple[Fitted, Hits | None] | Unknown:
    """Return the sizes with the most hits; None for hits where nothing fits, and why is said.

    fit: by goal and L2's part. name: of the trace. Raises UsageError.
    """
    found: list[tuple[Fitted, CapacityAnswer]] = []
    refused: Fitted | None = None
    for goal, part in TRIED:
        tell(f"{goal}: {part:.0%} of the memory to L2")
        one = fit(goal, part)
        if isinstance(one, Unknown):
            return one
        if one.answer.fits is None:
            refused = refused or one
        else:
            found.append((one, _capacity(one)))
    if not found:
        assert refused is not None
        return refused, None
    also = tuple(_as_it_is(*found[0]))
    answer = _replayed([capacity for _, capacity in found], name, tell, also)
    rates = _rates(answer)
    tried = []
    for (one, capacity), (_, part) in zip(found, TRIED, strict=False):
        own = tuple(rates[: len(capacity.servers)])
        del rates[: len(capacity.servers)]
        tried.append(Tried(f"{part:.0%} to L2", one.answer.values.text, own))
    best = max(range(len(tried)), key=lambda at: tried[at].least)
    chosen, capacity = found[best]
    before = sum(len(each.servers) for _, each in found[:best])
    replays = answer.servers[before : before + len(capacity.servers)]
    shown = {max(1, size) for _, size in tier_sizes(capacity, answer)}
    rest = {max(1, size) for _, each in found for _, size in tier_sizes(each, answer)} - shown
    drawn = answer._replace(
        servers=replays, best=tuple(each for each in answer.best if each[0] not in rest)
    )
    more = () if name == "-" else _next_gib(chosen, capacity, name, tell)
    order = sorted(tried, key=lambda one: -one.least)
    hits = Hits(name, answer.curve.ceiling, tuple(order), more, answer.notes, capacity, drawn)
    return chosen, hits


def _as_it_is(one: Fitted, capacity: CapacityAnswer) -> Iterator[tuple[str, int]]:
    """The launch's own sizes in tokens, by those that fit."""
    sizes, values = one.answer.sizes, one.answer.values
    both = (("L2", sizes.l2, values.l2_bytes), ("L3", sizes.segment, values.segment_bytes))
    for name, knob, fits_bytes in both:
        held = [
            tier.tokens.most
            for server in capacity.servers
            for tier in server.capacity.tiers
            if tier.name == name and isinstance(tier.tokens, Bounds)
        ]
        if knob is not None and knob.now_bytes and fits_bytes and held:
            yield f"now: {name}", sum(held) * knob.now_bytes // fits_bytes


def _capacity(one: Fitted) -> CapacityAnswer:
    fits = one.answer.fits
    assert fits is not None
    return compute_capacity(
        fits.sizing.inputs, one.state.options, fits.planned, CapacityRequest(), {}
    )


def _replayed(
    answers: list[CapacityAnswer],
    name: str,
    tell: Callable[[str], None],
    also: tuple[tuple[str, int], ...] = (),
) -> TraceAnswer:
    servers = tuple(server for each in answers for server in each.servers)
    every = CapacityAnswer(servers, None, None, ())
    router = answers[0].router
    asked = TraceRequest(router.routing.how if router else None, also=also)
    return trace_answer(every, open_trace(name, page_of(every)), asked, tell)


def _rates(answer: TraceAnswer) -> list[tuple[float, float]]:
    found = []
    for each in answer.servers:
        if isinstance(each, Unknown):
            raise UsageError(f"--goal hits: {each.reason}")
        found.append((1 - each.least.missed, 1 - each.most.missed))
    return found


def _next_gib(
    one: Fitted, capacity: CapacityAnswer, name: str, tell: Callable[[str], None]
) -> tuple[tuple[str, int], ...]:
    """What more of each size would save, were there room for it."""
    grown = [
        (share.size, tuple(_grown(each, share.size, share.tokens) for each in capacity.servers))
        for share in one.answer.shares
        if share.tokens is not None
    ]
    answers = [capacity, *(capacity._replace(servers=servers) for _, servers in grown)]
    answer = _replayed(answers, name, tell)
    saved = [
        0 if isinstance(each, Unknown) else sum(each.least.saved.values())
        for each in answer.servers
    ]
    count = len(capacity.servers)
    base = sum(saved[:count])
    return tuple(
        (size, (sum(saved[at * count : (at + 1) * count]) - base) // _MORE_GIB)
        for at, (size, _) in enumerate(grown, 1)
    )


def _grown(server: ServerCapacity, size: str, tokens: int) -> ServerCapacity:
    more, tiers = tokens * _MORE_GIB, server.tiers
    if size == "l2":
        return server._replace(
            tiers=tiers._replace(host=_larger(tiers.host, more // server.deployment.groups))
        )
    return server._replace(tiers=tiers._replace(pool=_larger(tiers.pool, more)))


def _larger(tier: Tier | None, more: int) -> Tier | None:
    def grown(held: Bounds | Unknown | None) -> Bounds | Unknown | None:
        return Bounds(held.least + more, held.most + more) if isinstance(held, Bounds) else held

    if tier is None or isinstance(tier.tokens, Unknown):
        return tier
    tokens = Bounds(tier.tokens.least + more, tier.tokens.most + more)
    return tier._replace(tokens=tokens, group_tokens=grown(tier.group_tokens))
