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
from preflight.capacity.trace_answer import TraceAnswer, TraceRequest, page_of, trace_answers
from preflight.fit.fit_launch import Fitted
from preflight.traces.formats import open_trace

# What is tried: the goal, and the part of the memory that L2 gets.
TRIED = (("l2", 1.0), ("balanced", 0.75), ("balanced", 0.5), ("balanced", 0.25), ("pool", 0.0))
# What one GiB more buys is measured with so many: a single one is lost among whole blocks.
_MORE_GIB = 16
# A part is in steps of 10^9 bytes for each rank.
_NEAR = 0.1


class Tried(NamedTuple):
    """Sizes that fit. rates: hits of each server, least and most, as a part of all accesses.

    Servers that are alike behind the launch's router answer one stream of requests: one rate.
    """

    about: str
    sizes: str
    rates: tuple[tuple[float, float], ...]

    @property
    def least(self) -> float:
        """Return the lower bound of the hit rate, averaged over the servers."""
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
    labels: list[str] = []
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
            labels.append(_shared(one, part))
    if not found:
        assert refused is not None
        return refused, None
    also = tuple(_as_it_is(*found[0]))
    answers = _replayed([capacity for _, capacity in found], name, tell, also)
    tried = [
        Tried(label, one.answer.values.text, _rates(answer))
        for label, (one, _), answer in zip(labels, found, answers, strict=True)
    ]
    best = max(range(len(tried)), key=lambda at: tried[at].least)
    (chosen, capacity), drawn = found[best], answers[best]
    more = () if name == "-" else _next_gib(chosen, capacity, name, tell)
    order = sorted(tried, key=lambda one: -one.least)
    notes = (*drawn.notes, *_left_out(capacity, drawn))
    hits = Hits(name, drawn.curve.ceiling, tuple(order), more, notes, capacity, drawn)
    return chosen, hits


def _shared(one: Fitted, part: float) -> str:
    """Return what was asked to go to L2, and what did, where something else than memory held it."""
    asked = f"{part:.0%} to L2"
    assert one.answer.fits is not None
    shown = one.answer.fits.sizing.shown
    processes = () if shown is None else shown.inputs.launch.processes
    pools = sum(sum(process.host_pools_bytes) for process in processes)
    segments = sum(client.segment_bytes for process in processes for client in process.clients)
    got = pools / (pools + segments) if pools else 0.0
    if part in (0.0, 1.0) or abs(got - part) < _NEAR:  # of one alone the other stays as written
        return asked
    return f"{asked} asked, {got:.0%} fit"


def _as_it_is(one: Fitted, capacity: CapacityAnswer) -> Iterator[tuple[str, int]]:
    """Yield the launch's own sizes in tokens, by those that fit."""
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
    found: list[CapacityAnswer],
    name: str,
    tell: Callable[[str], None],
    also: tuple[tuple[str, int], ...] = (),
) -> tuple[TraceAnswer, ...]:
    return trace_answers(found, open_trace(name, page_of(found[0])), TraceRequest(also=also), tell)


def _rates(answer: TraceAnswer) -> tuple[tuple[float, float], ...]:
    """Return the rates of the servers that are replayed; larger tiers may answer less.

    Raises UsageError.
    """
    replays = [each for each in answer.servers if not isinstance(each, Unknown)]
    if not replays:
        reasons = [each.reason for each in answer.servers if isinstance(each, Unknown)]
        raise UsageError(f"--goal hits: {reasons[0]}")
    both = (sorted((1 - each.least.missed, 1 - each.most.missed)) for each in replays)
    return tuple((least, most) for least, most in both)


def _left_out(capacity: CapacityAnswer, answer: TraceAnswer) -> Iterator[str]:
    for server, replay in zip(capacity.servers, answer.servers, strict=True):
        if isinstance(replay, Unknown):
            yield f"{server.subject}: not replayed: {replay.reason}"


def _next_gib(
    one: Fitted, capacity: CapacityAnswer, name: str, tell: Callable[[str], None]
) -> tuple[tuple[str, int], ...]:
    """Return what one more GiB of each size would save, if there were room for it."""
    shares = [share for share in one.answer.shares if share.tokens is not None]
    grown = [
        capacity._replace(
            servers=tuple(_grown(each, share.size, share.tokens or 0) for each in capacity.servers)
        )
        for share in shares
    ]
    base, *more = (_saved(answer) for answer in _replayed([capacity, *grown], name, tell))
    return tuple(
        (share.size, (saved - base) // _MORE_GIB) for share, saved in zip(shares, more, strict=True)
    )


def _saved(answer: TraceAnswer) -> int:
    replays = (each for each in answer.servers if not isinstance(each, Unknown))
    return sum(sum(each.least.saved.values()) for each in replays)


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
