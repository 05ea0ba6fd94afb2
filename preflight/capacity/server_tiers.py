"""L1 and L2: what a server's own ranks hold.

The tensor-parallel ranks of one replica hold shards of the same tokens, those of latent attention a
whole copy each: tokens count once for each replica and each data-parallel attention group.
"""

from __future__ import annotations

from checks.base.unknown import Unknown, UnknownFactError, known, or_unknown
from preflight.capacity.deployment import Bounds, Deployment, Tier
from preflight.capacity.page_objects import held_token_bytes, model_of
from preflight.sglang.host_pool_records import HostPools, PoolKind, PoolRequest
from preflight.sglang.host_pools import host_pools
from preflight.sglang.model_geometry import AttentionKind, ModelGeometry
from preflight.sglang.pool_request import ratio_tokens

# A pool of sliding-window layers is split by what the GPU holds: where that is not known, from one
# page to more than any GPU has.
_MOST_DEVICE_TOKENS = 1 << 40


def gpu_tier(deployment: Deployment) -> Tier:
    """Return the server's L1 tier."""
    request = deployment.request
    tokens = request if isinstance(request, Unknown) else ratio_tokens(deployment.given, request)
    if isinstance(request, Unknown) or isinstance(tokens, Unknown):
        assert isinstance(tokens, Unknown)
        if not isinstance(request, Unknown) and tokens is request.geometry and tokens.absent:
            tokens = Unknown(f"{tokens.reason}: give --model-config")
        return Tier("L1", "GPU memory", tokens, tokens, "", group_tokens=tokens)
    own, groups = Bounds(tokens.least, tokens.most), deployment.groups
    each = held_token_bytes(request)
    size = each
    if not isinstance(each, Unknown):
        size = Bounds(own.least * each.least, own.most * each.most).times(groups)
    formula = tokens.reason if groups == 1 else f"{groups} x {tokens.reason}"
    return Tier("L1", "GPU memory", size, own.times(groups), formula, group_tokens=own)


def host_tier(deployment: Deployment) -> Tier | None:
    """Return the server's L2 tier; None where it has none."""
    if not deployment.server.hicache:
        return None
    own, memory = _l2_tokens(deployment), deployment.memory
    most = memory.most_pools_bytes
    size: Bounds | Unknown
    if isinstance(most, Unknown):
        size = most
    else:
        size = Bounds(sum(memory.least_pools_bytes), sum(most)).times(deployment.ranks)
    total = own if isinstance(own, Unknown) else own.times(deployment.groups)
    formula = f"{memory.why}; {_spread(deployment)}"
    return Tier("L2", "host memory", size, total, formula, group_tokens=own)


def _spread(deployment: Deployment) -> str:
    """Return in words how a token lies on the ranks."""
    ranks, groups = deployment.ranks, deployment.groups
    each = ranks // groups
    geometry = deployment.given.hardware.geometry
    if each == 1:
        said = "each rank holds tokens of its own"
    elif isinstance(geometry, ModelGeometry) and geometry.kind is AttentionKind.MLA:
        said = f"{each} ranks hold the same tokens, each a whole copy"
        if deployment.given.ranks.pp > 1:
            said += " of its stage's layers"
    else:
        said = f"{each} ranks hold shards of the same tokens"
    return said if groups == 1 else f"{said}, {groups} times over"


@or_unknown
def _l2_tokens(deployment: Deployment) -> Bounds:
    """Return the L2 tokens of one group: what all of its ranks hold at once."""
    request, memory = known(deployment.request), deployment.memory
    if memory.refused is not None:
        raise UnknownFactError(memory.refused)
    model_of(request)
    if request.dcp > 1:
        why = "decode context parallelism: how tokens spread over ranks is not computed"
        raise UnknownFactError(Unknown(why))
    known(deployment.given.hardware.drafts.own)
    if request.size_gb > 0:
        return _sized_tokens(deployment, request)
    known(memory.most_pools_bytes)
    if not memory.pools:
        raise UnknownFactError(Unknown(memory.why))
    most = _tokens(HostPools(memory.pools))
    if memory.least_pools_bytes == memory.most_pools_bytes:
        return most
    # Between the bounds of a ratio the pools shrink alike, so as the first of them does.
    taken = memory.pools[0].allocations_bytes[0]
    least_bytes = memory.least_pools_bytes[0] if memory.least_pools_bytes else 0
    if request.release.pinned_power_of_two:
        least_bytes //= 2  # rounded up to a power of two: the tokens take more than half of it
    least = most.least * least_bytes // taken // request.page_tokens * request.page_tokens
    return Bounds(least, most.most)


def _sized_tokens(deployment: Deployment, request: PoolRequest) -> Bounds:
    """Return the tokens of ``--hicache-size``; bounds for sliding windows without a GPU's size."""
    counts: list[int | None] = [None]
    if model_of(request).sliding is not None:
        device, page = ratio_tokens(deployment.given, request), request.page_tokens
        if isinstance(device, Unknown):
            counts = [page, _MOST_DEVICE_TOKENS]
        else:
            counts = [max(device.least, page), max(device.most, page)]
    found: list[Bounds] = []
    for count in counts:
        for stage in range(request.pp):
            draft = request.draft if stage == request.pp - 1 else None
            asked = request._replace(stage=stage, draft=draft, device_tokens=count)
            pools = host_pools(asked)
            if not isinstance(pools, HostPools):  # bounds, or Unknown: not told apart by tokens
                raise UnknownFactError(Unknown(pools.reason))
            found.append(_tokens(pools))
    # A token is reusable where every stage has it.
    highest = min if len(counts) == 1 else max
    return Bounds(min(one.least for one in found), highest(one.most for one in found))


def _tokens(pools: HostPools) -> Bounds:
    """Return the main pool's tokens; at least those of a smaller pool for sliding windows."""
    own = pools.pools[0].tokens
    windows = [pool.tokens for pool in pools.pools if pool.kind is PoolKind.WINDOW]
    return Bounds(min([own, *windows]), own)
