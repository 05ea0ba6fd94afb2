"""In which round a tier overflows, and how much of what was seen before it can still serve.

A tier that evicts the least recently used keeps, when a client takes its turn, what has been used
since the client's last turn, and of the client's own as much as fits beside that. How much was used
since then depends on the order of the turns alone: most where all rounds have the same order, least
where each is the reverse of the one before. That gives both bounds, and for random orders the mean.
Of a tier that evicts in another order less is certain: whoever takes its turn before the tier is
full finds everything, and nothing serves more than it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.capacity.records import Bounds, Round
from preflight.capacity.workload import Workload


class Holder(NamedTuple):
    """A tier as the model sees it.

    fills: the tokens with which it begins to evict, those included that only a tier in front of it
    has. keeps: the tokens that it and all tiers in front of it hold together once it evicts.
    sticky: a client's next request comes to the same cache. ordered: it evicts the least recently
    used, the end of a conversation first. late: what a round adds arrives in it with the next one.
    """

    name: str
    fills: Bounds | Unknown
    keeps: Bounds | Unknown
    sticky: bool = True
    ordered: bool = True
    late: bool = False


class Turn(NamedTuple):
    """One round for all clients: tokens that each has cached before and after it."""

    clients: int
    before: int
    after: int


def rounds(workload: Workload, page_tokens: int, tiers: Sequence[Holder]) -> tuple[Round, ...]:
    """Every round of ``workload``; ``tiers``: nearest to the GPU first."""
    return tuple(_rounds(workload, page_tokens, tiers))


def cached_tokens(workload: Workload, rounds_: int, page_tokens: int) -> int:
    """What one client leaves in the cache: whole pages, and not the last token of an answer."""
    return max(0, workload.context_tokens(rounds_) - 1) // page_tokens * page_tokens


def _rounds(workload: Workload, page_tokens: int, tiers: Sequence[Holder]) -> Iterator[Round]:
    for number in range(1, workload.rounds + 1):
        turn = Turn(
            workload.clients,
            cached_tokens(workload, number - 1, page_tokens),
            cached_tokens(workload, number, page_tokens),
        )
        held = turn.clients * turn.after
        served = [_served(turn, tier) for tier in tiers]
        # What a nearer tier serves for certain, the farther ones with it serve too; and it serves
        # no more than they do together, which bounds a tier of unknown size.
        lows = list(accumulate((low for low, _, _ in served), max))
        highs = list(accumulate((high for _, high, _ in reversed(served)), min))[::-1]
        hits = [
            (tier.name, min(low, high), high)
            for tier, low, high in zip(tiers, lows, highs, strict=True)
        ]
        likely = [
            (name, min(high, max(low, middle)))
            for (name, low, high), (_, _, middle) in zip(hits, served, strict=True)
            if middle is not None
        ]
        yield Round(
            number,
            held,
            turn.clients * turn.before,
            tuple(hits),
            tuple(tier.name for tier in tiers if _evicts(turn, tier, False)),
            tuple(tier.name for tier in tiers if _evicts(turn, tier, True)),
            tuple(likely),
        )


def _evicts(turn: Turn, tier: Holder, maybe: bool) -> bool:
    """Whether the tier has had to evict by the end of the round."""
    if isinstance(tier.fills, Unknown):
        return False
    if maybe:
        return turn.clients * turn.after > tier.fills.least
    arrived = turn.before if tier.late else turn.after
    return turn.clients * arrived > tier.fills.most


def _served(turn: Turn, tier: Holder) -> tuple[float, float, float | None]:
    """The parts of the reusable tokens, least and most, and the mean of random orders."""
    reusable = turn.clients * turn.before
    if not reusable:
        return 1.0, 1.0, 1.0
    if isinstance(tier.keeps, Unknown):
        return 0.0, 1.0, None
    exact = tier.sticky and tier.fills == tier.keeps and tier.keeps.least == tier.keeps.most
    if not _evicts(turn, tier, True):
        return (1.0 if tier.sticky else 0.0), 1.0, (1.0 if exact else None)
    most = float(reusable)
    if _evicts(turn, tier, False):
        high = tier.keeps.most
        most = _reverse_order(turn, high) if tier.ordered else float(min(high, reusable))
    if not tier.sticky:
        return 0.0, most / reusable, None
    least = _before_full(turn, tier)
    if not tier.ordered:
        return min(least, most) / reusable, most / reusable, None
    low = tier.keeps.least
    # A leaf of the tree, one client's round, goes as a whole: up to one more than had to.
    leaf = turn.after - turn.before
    least = max(least, _same_order(turn, max(0, low - leaf)))
    likely = max(least, _random_order(turn, low)) / reusable if exact else None
    return min(least, most) / reusable, most / reusable, likely


def _before_full(turn: Turn, tier: Holder) -> float:
    """The clients whose turn comes before the tier is full, where it was not when the round began.

    Each adds what its round adds: the order does not matter.
    """
    step = turn.after - turn.before
    if isinstance(tier.fills, Unknown) or step <= 0 or tier.late:
        return 0.0
    left = tier.fills.least - turn.clients * turn.before
    return float(min(turn.clients, max(0, left // step)) * turn.before)


def _same_order(turn: Turn, capacity: int) -> float:
    """All others took a turn since: the earlier in the round the longer, the later the shorter."""
    step = turn.after - turn.before
    # The client at place p finds capacity - p * after - (clients - 1 - p) * before of its own.
    first = capacity - (turn.clients - 1) * turn.before
    return _falling(first, step, turn.clients, turn.before)


def _reverse_order(turn: Turn, capacity: int) -> float:
    """Those before it in this round were the ones after it in the last."""
    return _falling(capacity, turn.after, turn.clients, turn.before)


def _random_order(turn: Turn, capacity: int) -> float:
    """The mean over all orders: of those still to come, as many as not were after it last time."""
    total = 0.0
    for place in range(turn.clients):
        left = capacity - place * turn.after
        if left <= 0:
            break
        others = turn.clients - place
        total += _falling(left, turn.before, others, turn.before) / others
    return total


def _falling(first: int, step: int, count: int, most: int) -> float:
    """The sum of min(most, max(0, first - i * step)) for i below ``count``."""
    if first < most:
        full = 0
    elif step <= 0:
        return float(count * most)
    else:
        full = min(count, (first - most) // step + 1)
    total = float(full * most)
    if full == count:
        return total
    if step <= 0:
        return total + (count - full) * max(0, first)
    top = first - full * step
    if top <= 0:
        return total
    partial = min(count - full, -(-top // step))
    return total + partial * top - step * partial * (partial - 1) / 2
