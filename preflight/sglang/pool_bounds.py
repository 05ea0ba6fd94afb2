"""The host pools of one request as bounds: over the pipeline's stages, with and without a draft."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.unknown import Unknown
from checks.releases.sglang import Indexer
from preflight.sglang.host_pools import HostBytes, HostPool, HostPools, PoolRequest, host_pools
from preflight.sglang.pool_request import Given, Purpose

# How a pool class refuses: the reason then is the exception that ends the server.
_STOPS = ("ValueError: ", "AssertionError: ")


class ServerMemory(NamedTuple):
    """The host pools of one rank, between two bounds; equal where they are exact.

    why: how the bounds come about, or what an exact answer was computed from. pools: one by one,
    at the upper bound, where they can be named. refused: the words with which SGLang stops before
    it has pools. budget_bytes: what the pools are booked against, where SGLang has sized them.
    """

    least_pools_bytes: tuple[int, ...]
    most_pools_bytes: tuple[int, ...] | Unknown
    why: str
    pools: tuple[HostPool, ...] = ()
    refused: str | None = None
    budget_bytes: int | None = None


def bounds(given: Given, purpose: Purpose, request: PoolRequest, asked: str) -> ServerMemory:
    """The pools of ``request``, and what of its draft is not known."""
    found = _widest_stage(given, purpose, request, asked)
    own = given.hardware.drafts.own
    if isinstance(own, Unknown) and purpose is not Purpose.OFFLOAD:
        if isinstance(found.most_pools_bytes, Unknown):
            return found
        why = f"{found.why}; a draft's pool on top: {own.reason}"
        return found._replace(most_pools_bytes=own, why=why, pools=())
    if isinstance(found.most_pools_bytes, Unknown) and (request.draft or request.packed_drafts):
        # Without its draft the target's own pool may be known: the least there will be.
        plain = request._replace(draft=None, packed_drafts=0)
        alone = _widest_stage(given, purpose, plain, asked)
        return found._replace(least_pools_bytes=alone.least_pools_bytes)
    return found


def _widest_stage(given: Given, purpose: Purpose, request: PoolRequest, asked: str) -> ServerMemory:
    """Of the pipeline's stages, the least and the most that one rank takes."""
    stages = []
    for stage in range(request.pp):
        draft = request.draft if stage == request.pp - 1 else None
        pools = host_pools(request._replace(stage=stage, draft=draft))
        if purpose is Purpose.OFFLOAD and isinstance(pools, HostPools):
            pools = _without_indexer(given, pools)
        stages.append(_stage_bounds(pools, asked))
    least = min(stages, key=lambda stage: sum(stage.least_pools_bytes))
    most = max(stages, key=_most_bytes)
    refused = next((stage.refused for stage in stages if stage.refused), None)
    return between(least, most, most.why)._replace(refused=refused)


def _most_bytes(memory: ServerMemory) -> float:
    most = memory.most_pools_bytes
    return float("inf") if isinstance(most, Unknown) else sum(most)


def _without_indexer(given: Given, pools: HostPools) -> HostPools | Unknown:
    """The offload manager mirrors keys and values alone."""
    indexer = [pool for pool in pools.pools if pool.what == "indexer"]
    if indexer and given.release.indexer is not Indexer.ON_TOP:
        return Unknown("this release's offload pool of a sparse-attention model is not computed")
    return HostPools(tuple(pool for pool in pools.pools if pool not in indexer))


def _stage_bounds(pools: HostPools | HostBytes | Unknown, asked: str) -> ServerMemory:
    lead = f"{asked}: " if asked else ""
    if isinstance(pools, HostPools):
        sizes = pools.allocations_bytes
        return ServerMemory(sizes, sizes, f"{asked}, exact", pools.pools)
    if isinstance(pools, Unknown):
        refused = pools.reason if pools.reason.startswith(_STOPS) else None
        return ServerMemory((), pools, f"{lead}{pools.reason}", (), refused)
    most = pools.most_bytes if isinstance(pools.most_bytes, Unknown) else (pools.most_bytes,)
    return ServerMemory((pools.least_bytes,), most, f"{lead}{pools.reason}")


def between(least: ServerMemory, most: ServerMemory, why: str) -> ServerMemory:
    if isinstance(most.most_pools_bytes, Unknown):
        why = most.why
    # What only one end is refused for may not come to pass.
    refused = most.refused if least.refused else None
    return most._replace(least_pools_bytes=least.least_pools_bytes, why=why, refused=refused)


def refused(words: str) -> ServerMemory:
    return ServerMemory((), Unknown(words), words, (), words)
