"""The tiers of a deployment as the model of rounds sees them: what fills each, what all keep.

With ``write_through`` a tier gets all that the one in front of it gets: L2 holds L1's tokens too.
With ``write_back`` it gets what leaves the tier in front. With ``write_through_selective`` it gets
what was asked for twice, which is a round later, and what L1 evicts before that is lost.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.capacity.deployment import DEFAULT_WRITE_POLICY, Deployment
from preflight.capacity.records import Bounds, Tier
from preflight.capacity.rounds import Holder
from preflight.capacity.server_tiers import ServerTier
from preflight.capacity.store_tiers import StoreTier

SELECTIVE = "write_through_selective"
# A bound where nothing bounds.
_ANY_TOKENS = 10**18


class Tiers(NamedTuple):
    """The tiers of one deployment. evicted_alone: disks get what leaves the pool, not all of it."""

    gpu: ServerTier
    host: ServerTier | None
    pool: StoreTier | None
    disk: Tier | None
    evicted_alone: bool = False

    @property
    def shown(self) -> tuple[Tier, ...]:
        parts = (
            self.gpu.tier,
            None if self.host is None else self.host.tier,
            None if self.pool is None else self.pool.tier,
            self.disk,
        )
        return tuple(part for part in parts if part is not None)


def holders(deployment: Deployment, tiers: Tiers) -> tuple[Holder, ...]:
    """Nearest to the GPU first."""
    sticky = deployment.groups == 1
    policy = deployment.server.value("radix_eviction_policy")
    ordered = policy in (None, "lru")
    gpu = _spread(tiers.gpu)
    found = [Holder("L1", gpu, gpu, sticky, ordered=ordered)]
    if tiers.host is not None:
        found.append(_host(deployment, tiers.host, gpu)._replace(sticky=sticky, ordered=ordered))
    if tiers.pool is not None:
        found.append(_pool(deployment, tiers.pool, found[-1]))
    if tiers.disk is not None:
        found.append(_disk(tiers, tiers.disk, found[-1]))
    return tuple(found)


def _spread(tier: ServerTier) -> Bounds | Unknown:
    """Of all groups: as many as one holds where all hold the same, else all of them."""
    own, total = tier.group_tokens, tier.tier.tokens
    if isinstance(own, Unknown):
        return own
    return total if isinstance(total, Unknown) else Bounds(own.least, total.most)


def _host(deployment: Deployment, host: ServerTier, gpu: Bounds | Unknown) -> Holder:
    own = _spread(host)
    if isinstance(own, Unknown):
        return Holder("L2", own, own)
    if deployment.write_policy == DEFAULT_WRITE_POLICY:
        # What is on the GPU too is not evicted, so a smaller L2 adds to L1.
        beside = 0 if isinstance(gpu, Unknown) or gpu.most <= own.least else gpu.most
        nearer = 0 if isinstance(gpu, Unknown) else gpu.least
        return Holder("L2", own, Bounds(max(own.least, nearer), own.most + beside))
    if isinstance(gpu, Unknown):
        why = Unknown(f"{deployment.write_policy} fills L2 by way of L1: {gpu.reason}")
        return Holder("L2", why, why)
    both = own.most + gpu.most
    if deployment.write_policy == SELECTIVE:
        fills = Bounds(min(own.least, gpu.least), own.most)
        return Holder("L2", fills, Bounds(gpu.least, both), late=True)
    return Holder("L2", Bounds(own.least, both), Bounds(max(own.least, gpu.least), both))


def _pool(deployment: Deployment, pool: StoreTier, nearer: Holder) -> Holder:
    own = pool.tier.tokens
    if isinstance(own, Unknown):
        return Holder("L3", own, own, ordered=False)
    front = _ANY_TOKENS if isinstance(nearer.keeps, Unknown) else nearer.keeps.most
    keeps = Bounds(own.least, own.most + front)
    selective = deployment.write_policy == SELECTIVE
    fills = own
    if deployment.write_policy != DEFAULT_WRITE_POLICY:
        lost = nearer.fills.least if isinstance(nearer.fills, Bounds) and selective else own.least
        fills = Bounds(min(own.least, lost), own.most + (0 if selective else front))
    return Holder("L3", fills, keeps, ordered=False, late=selective)


def _disk(tiers: Tiers, disk: Tier, nearer: Holder) -> Holder:
    own = disk.tokens
    if isinstance(own, Unknown):
        return Holder("SSD", own, own, ordered=False)
    front = _ANY_TOKENS if isinstance(nearer.keeps, Unknown) else nearer.keeps.most
    fills = Bounds(own.least, own.most + front) if tiers.evicted_alone else own
    keeps = Bounds(own.least, own.most + front)
    return Holder("SSD", fills, keeps, ordered=False, late=nearer.late)
