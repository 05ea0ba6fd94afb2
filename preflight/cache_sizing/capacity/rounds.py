"""In which round a tier overflows, and how much of what was seen before it can still serve.

A tier that evicts the least recently used keeps, when a client takes its turn, what has been used
since the client's last turn, and of the client's own as much as fits beside that. How much was used
since then depends on the order of the turns alone: most where all rounds have the same order, least
where each is the reverse of the one before. That gives both bounds, and for random orders the mean.
Of a tier that evicts in another order less is certain: whoever takes its turn before the tier is
full finds everything, and nothing serves more than it holds.

With ``write_through`` a tier gets all that the nearer tier gets: L2 holds L1's tokens too. With
``write_back`` it gets what leaves the tier in front. With ``write_through_selective`` it gets what
was asked for twice, which is a round later, and what L1 evicts before that is lost.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

from checks.framework.unknown import Unknown
from preflight.cache_sizing.capacity.deployment import (
    DEFAULT_WRITE_POLICY,
    Bounds,
    Deployment,
    Round,
    Tier,
)
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload
from preflight.cache_sizing.traces.formats import Request


class TierModel(NamedTuple):
    """A tier as the model of rounds sees it.

    Attributes:
        fills: The tier begins to evict once the contexts of all clients have more tokens than this.
        keeps: The tokens that this tier and all nearer tiers hold together once this one evicts.
        sticky: A client's next request comes to the same cache.
        ordered: It evicts the least recently used, the end of a conversation first.
        late: What a round adds arrives here only in the next round.
    """

    name: str
    fills: Bounds | Unknown
    keeps: Bounds | Unknown
    sticky: bool = True
    ordered: bool = True
    late: bool = False


class Turn(NamedTuple):
    """One round for all clients: tokens that each client has cached before and after the round."""

    clients: int
    before: int
    after: int


def rounds_requests(workload: MultiTurnWorkload, block_tokens: int, seed: int) -> Iterator[Request]:
    """Yield the requests of a workload, round by round.

    In each round all clients ask once, in a random order, the same for the same ``seed``. Clients
    share no blocks.
    """
    rng = Random(seed)
    order, asked = list(range(workload.clients)), 0
    tokens = [0] * workload.clients
    for turn in range(workload.rounds):
        rng.shuffle(order)
        for client in order:
            tokens[client] += workload.next_tokens if turn else workload.first_tokens
            blocks = [(client + 1) << 32 | at for at in range(tokens[client] // block_tokens)]
            yield Request(blocks, tokens[client], workload.output_tokens, float(asked), client + 1)
            tokens[client] += workload.output_tokens
            asked += 1


def cached_tokens(workload: MultiTurnWorkload, rounds_: int, page_tokens: int) -> int:
    """Return the tokens that one client has in the cache after ``rounds_`` rounds: whole pages."""
    return max(0, workload.context_tokens(rounds_) - 1) // page_tokens * page_tokens


def rounds(
    workload: MultiTurnWorkload, page_tokens: int, tiers: Sequence[TierModel]
) -> tuple[Round, ...]:
    """Return for each round the least and the most that ``tiers``, the nearest first, still serve
    of what was seen before, and which tiers evict.
    """
    every = []
    for number in range(1, workload.rounds + 1):
        ends = (cached_tokens(workload, at, page_tokens) for at in (number - 1, number))
        turn = Turn(workload.clients, *ends)
        held_tokens = turn.clients * turn.after
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
        certain, maybe = (
            tuple(tier.name for tier in tiers if _evicts(turn, tier, end)) for end in (False, True)
        )
        seen = turn.clients * turn.before
        every.append(Round(number, held_tokens, seen, tuple(hits), certain, maybe, tuple(likely)))
    return tuple(every)


def _evicts(turn: Turn, tier: TierModel, maybe: bool) -> bool:
    """Return whether the tier has certainly evicted by the end of the round; with ``maybe``,
    whether it may have.

    Returns:
        False for a tier of unknown size.
    """
    if isinstance(tier.fills, Unknown):
        return False
    if maybe:
        return turn.clients * turn.after > tier.fills.least
    arrived = turn.before if tier.late else turn.after
    return turn.clients * arrived > tier.fills.most


def _served(turn: Turn, tier: TierModel) -> tuple[float, float, float | None]:
    """Return the part of the reusable tokens (0 to 1) that the tier and all nearer ones serve:
    least, most, and the mean over random orders.

    The mean is None if it is not known.
    """
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
        most = float(min(high, reusable))
        if tier.ordered:
            # At most: those before a client in this round were the ones after it in the last.
            most = _falling_sum(high, turn.after, turn.clients, turn.before)
    if not tier.sticky:
        return 0.0, most / reusable, None
    least = _before_full(turn, tier)
    if not tier.ordered:
        return min(least, most) / reusable, most / reusable, None
    low = tier.keeps.least
    # A leaf of the tree, one client's round, goes as a whole: up to one more than had to.
    step = turn.after - turn.before
    # The client at place p finds capacity - p * after - (clients - 1 - p) * before of its own.
    first = max(0, low - step) - (turn.clients - 1) * turn.before
    least = max(least, _falling_sum(first, step, turn.clients, turn.before))
    likely = max(least, _random_order(turn, low)) / reusable if exact else None
    return min(least, most) / reusable, most / reusable, likely


def _before_full(turn: Turn, tier: TierModel) -> float:
    """Return the reusable tokens of clients whose turn comes before the tier is full.

    Returns:
        0 if that is not known, and for a late tier.
    """
    step = turn.after - turn.before
    if isinstance(tier.fills, Unknown) or step <= 0 or tier.late:
        return 0.0
    left = tier.fills.least - turn.clients * turn.before
    return float(min(turn.clients, max(0, left // step)) * turn.before)


def _random_order(turn: Turn, capacity: int) -> float:
    """Return the reusable tokens that ``capacity`` tokens keep, the mean over all orders."""
    total = 0.0
    for place in range(turn.clients):
        left = capacity - place * turn.after
        if left <= 0:
            break
        others = turn.clients - place
        total += _falling_sum(left, turn.before, others, turn.before) / others
    return total


def _falling_sum(first: int, step: int, count: int, most: int) -> float:
    """Return the sum of min(most, max(0, first - i * step)) for i from 0 to ``count`` - 1."""
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


SELECTIVE = "write_through_selective"
# Tokens that a tier of unknown size holds at most.
_ANY_TOKENS = Bounds(0, 10**18)


class Tiers(NamedTuple):
    """The tiers of a server.

    Attributes:
        disk_gets_evicted: Disks get only the pages that the store evicts.
    """

    gpu: Tier
    host: Tier | None
    store: Tier | None
    disk: Tier | None
    disk_gets_evicted: bool = False

    @property
    def shown(self) -> tuple[Tier, ...]:
        return tuple(tier for tier in (self.gpu, self.host, self.store, self.disk) if tier)


def tier_models(deployment: Deployment, tiers: Tiers) -> tuple[TierModel, ...]:
    """Return the models of the server's tiers, nearest to the GPU first."""
    sticky = deployment.groups == 1
    policy = deployment.server.value("radix_eviction_policy")
    ordered = policy in (None, "lru")
    gpu = _group_bounds(tiers.gpu)
    models = [TierModel("L1", gpu, gpu, sticky, ordered=ordered)]
    if tiers.host is not None:
        l2 = _l2_model(deployment, tiers.host, gpu)
        models.append(l2._replace(sticky=sticky, ordered=ordered))
    if tiers.store is not None:
        models.append(_l3_model(deployment, tiers.store, models[-1]))
    if tiers.disk is not None:
        models.append(_ssd_model(tiers, tiers.disk, models[-1]))
    return tuple(models)


def _group_bounds(tier: Tier) -> Bounds | Unknown:
    """Return bounds over all groups: from one cache's tokens (all may hold the same) to the sum."""
    of_group, total = tier.group_tokens, tier.tokens
    if isinstance(of_group, Bounds) and isinstance(total, Bounds):
        return Bounds(of_group.least, total.most)
    return of_group if isinstance(of_group, Unknown) else total


def _l2_model(deployment: Deployment, host: Tier, gpu: Bounds | Unknown) -> TierModel:
    """Return the model of L2: the write policy says whether L2 gets what L1 gets, or what L1
    evicts.

    Args:
        gpu: Tokens that L1 holds.
    """
    holds = _group_bounds(host)
    if isinstance(holds, Unknown):
        return TierModel("L2", holds, holds)
    if deployment.write_policy == DEFAULT_WRITE_POLICY:
        # What is on the GPU too is not evicted, so a smaller L2 adds to L1.
        beside = 0 if isinstance(gpu, Unknown) or gpu.most <= holds.least else gpu.most
        nearer = 0 if isinstance(gpu, Unknown) else gpu.least
        return TierModel("L2", holds, Bounds(max(holds.least, nearer), holds.most + beside))
    if isinstance(gpu, Unknown):
        why = Unknown(f"{deployment.write_policy} fills L2 by way of L1: {gpu.reason}")
        return TierModel("L2", why, why)
    both = holds.most + gpu.most
    if deployment.write_policy == SELECTIVE:
        fills = Bounds(min(holds.least, gpu.least), holds.most)
        return TierModel("L2", fills, Bounds(gpu.least, both), late=True)
    return TierModel("L2", Bounds(holds.least, both), Bounds(max(holds.least, gpu.least), both))


def _l3_model(deployment: Deployment, tier: Tier, nearer: TierModel) -> TierModel:
    """Return the model of the store's pool (L3).

    Args:
        nearer: The model of the tier in front.
    """
    holds = tier.tokens
    if isinstance(holds, Unknown):
        return TierModel("L3", holds, holds, ordered=False)
    front = (_ANY_TOKENS if isinstance(nearer.keeps, Unknown) else nearer.keeps).most
    keeps = Bounds(holds.least, holds.most + front)
    selective = deployment.write_policy == SELECTIVE
    fills = holds
    if deployment.write_policy != DEFAULT_WRITE_POLICY:
        lost = nearer.fills.least if isinstance(nearer.fills, Bounds) and selective else holds.least
        fills = Bounds(min(holds.least, lost), holds.most + (0 if selective else front))
    return TierModel("L3", fills, keeps, ordered=False, late=selective)


def _ssd_model(tiers: Tiers, disk: Tier, nearer: TierModel) -> TierModel:
    """Return the model of SSD, which fills later with evicted pages alone.

    Args:
        nearer: That of L3.
    """
    holds = disk.tokens
    if isinstance(holds, Unknown):
        return TierModel("SSD", holds, holds, ordered=False)
    front = (_ANY_TOKENS if isinstance(nearer.keeps, Unknown) else nearer.keeps).most
    keeps = Bounds(holds.least, holds.most + front)
    fills = keeps if tiers.disk_gets_evicted else holds
    return TierModel("SSD", fills, keeps, ordered=False, late=nearer.late)
