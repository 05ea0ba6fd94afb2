"""L1 and L2: what a server's own ranks hold.

The tensor-parallel ranks of one replica hold shards of the same tokens, those of latent attention a
whole copy each: tokens count once for each replica and each data-parallel attention group.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.capacity.deployment import Deployment
from preflight.capacity.page_objects import held_token_bytes
from preflight.capacity.records import Bounds, Tier
from preflight.sglang.device_pool import Interval
from preflight.sglang.host_pool_layers import attention_ranks
from preflight.sglang.host_pools import HostPools, PoolRequest, host_pools
from preflight.sglang.model_geometry import AttentionKind, ModelGeometry
from preflight.sglang.pool_request import ratio_tokens

# A pool of sliding-window layers is split by what the GPU holds: where that is not known, from one
# page to more than any GPU has.
_MOST_DEVICE_TOKENS = 1 << 40


class ServerTier(NamedTuple):
    """A tier, and what one of its groups holds."""

    tier: Tier
    group_tokens: Bounds | Unknown


def gpu_tier(deployment: Deployment) -> ServerTier:
    """L1."""
    request, what = deployment.request, "GPU memory"
    tokens = request if isinstance(request, Unknown) else ratio_tokens(deployment.given, request)
    if isinstance(request, Unknown) or isinstance(tokens, Unknown):
        assert isinstance(tokens, Unknown)
        unknown = _with_advice(tokens)
        return ServerTier(Tier("L1", what, unknown, unknown, ""), unknown)
    own = Bounds(tokens.least, tokens.most)
    each = held_token_bytes(request, attention_ranks(request))
    size: Bounds | Unknown
    if isinstance(each, Unknown):
        size = each
    else:
        size = Bounds(own.least * each[0], own.most * each[1]).times(deployment.groups)
    total = own.times(deployment.groups)
    return ServerTier(Tier("L1", what, size, total, _l1_formula(deployment, tokens)), own)


def host_tier(deployment: Deployment) -> ServerTier | None:
    """L2; None where the server has none."""
    if not deployment.server.hicache:
        return None
    own = _l2_tokens(deployment)
    memory, ranks = deployment.memory, deployment.ranks
    most = memory.most_pools_bytes
    size: Bounds | Unknown
    if isinstance(most, Unknown):
        size = most
    else:
        size = Bounds(sum(memory.least_pools_bytes), sum(most)).times(ranks)
    total = own if isinstance(own, Unknown) else own.times(deployment.groups)
    formula = f"{memory.why}; {_spread(deployment)}"
    return ServerTier(Tier("L2", "host memory", size, total, formula), own)


def _l1_formula(deployment: Deployment, tokens: Interval) -> str:
    copies = "" if deployment.groups == 1 else f"{deployment.groups} x "
    return f"{copies}{tokens.reason}"


def _spread(deployment: Deployment) -> str:
    """How a token lies on the ranks."""
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


def _l2_tokens(deployment: Deployment) -> Bounds | Unknown:
    """Of one group: what all of its ranks hold at once."""
    request, memory = deployment.request, deployment.memory
    if isinstance(request, Unknown):
        return request
    if memory.refused:
        return Unknown(memory.refused)
    if isinstance(request.geometry, Unknown):
        return Unknown(f"{request.geometry.reason}: give --model-config")
    if request.dcp > 1:
        return Unknown("decode context parallelism: how tokens spread over ranks is not computed")
    drafts = deployment.given.hardware.drafts.own
    if isinstance(drafts, Unknown):
        return drafts
    if request.size_gb > 0:
        return _sized_tokens(deployment, request)
    if isinstance(memory.most_pools_bytes, Unknown):
        return _with_advice(memory.most_pools_bytes)
    if not memory.pools:
        return Unknown(memory.why)
    most = _tokens(HostPools(memory.pools), request)
    if memory.least_pools_bytes == memory.most_pools_bytes:
        return most
    # Between the bounds of a ratio the pools shrink alike, so as the first of them does.
    taken = memory.pools[0].allocations_bytes[0]
    least_bytes = memory.least_pools_bytes[0] if memory.least_pools_bytes else 0
    if request.release.pinned_power_of_two:
        least_bytes //= 2  # rounded up to a power of two: the tokens take more than half of it
    least = most.least * least_bytes // taken // request.page_tokens * request.page_tokens
    return Bounds(least, most.most)


def _sized_tokens(deployment: Deployment, request: PoolRequest) -> Bounds | Unknown:
    """Of ``--hicache-size``: exact, but for sliding windows without the GPU's size."""
    counts: list[int | None] = [None]
    geometry = request.geometry
    if isinstance(geometry, ModelGeometry) and geometry.sliding is not None:
        device = ratio_tokens(deployment.given, request)
        if isinstance(device, Unknown):
            counts = [request.page_tokens, _MOST_DEVICE_TOKENS]
        else:
            counts = [max(device.least, request.page_tokens), max(device.most, request.page_tokens)]
    found: list[Bounds] = []
    for count in counts:
        for stage in range(request.pp):
            draft = request.draft if stage == request.pp - 1 else None
            asked = request._replace(stage=stage, draft=draft, device_tokens=count)
            pools = host_pools(asked)
            if isinstance(pools, Unknown):
                return pools
            if not isinstance(pools, HostPools):
                return Unknown(pools.reason)
            found.append(_tokens(pools, request))
    if len(counts) == 1:
        # A token is reusable where every stage has it.
        return Bounds(min(it.least for it in found), min(it.most for it in found))
    return Bounds(min(it.least for it in found), max(it.most for it in found))


def _tokens(pools: HostPools, request: PoolRequest) -> Bounds:
    """The main pool's; with a second one for sliding windows, as few as that holds at worst."""
    own = pools.pools[0].tokens
    windows = [pool.tokens for pool in pools.pools if pool.what == "sliding-window KV"]
    return Bounds(min([own, *windows]), own)


def _with_advice(unknown: Unknown) -> Unknown:
    """A model that is not known can be given."""
    if "--" in unknown.reason or "table of well-known models" not in unknown.reason:
        return unknown
    return Unknown(f"{unknown.reason}: give --model-config")
