"""The host pools of one request as bounds: over the pipeline's stages, with and without a draft.

Where no size is given, by a ratio, by the default one, or by the host's free memory: a pool that
SGLang sizes by the host (``mem_cache/hicache_auto_size.py``, since 0.5.21) lies between what is
free now and what is left once the server itself has started.
"""

from __future__ import annotations

from typing import NamedTuple

from checks.base.units import GIB, format_bytes
from checks.base.unknown import Unknown
from checks.releases.sglang import Indexer
from preflight.sglang.admission_gate import HostMemory, auto_budget_bytes
from preflight.sglang.device_pool import Interval, mirrored_bytes
from preflight.sglang.host_pools import (
    MOST_TOKEN_BYTES,
    HostBytes,
    HostPool,
    HostPools,
    PoolRequest,
    host_pools,
)
from preflight.sglang.pool_request import Purpose, SizedServer, default_ratio

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


def bounds(sized: SizedServer, purpose: Purpose, request: PoolRequest, asked: str) -> ServerMemory:
    """Return the pools of ``request``, and what of its draft is not known."""
    found = _widest_stage(sized, purpose, request, asked)
    own = sized.hardware.drafts.own
    if isinstance(own, Unknown) and purpose is not Purpose.OFFLOAD:
        if isinstance(found.most_pools_bytes, Unknown):
            return found
        why = f"{found.why}; a draft's pool on top: {own.reason}"
        return found._replace(most_pools_bytes=own, why=why, pools=())
    if isinstance(found.most_pools_bytes, Unknown) and (request.draft or request.packed_drafts):
        # Without its draft the target's own pool may be known: the least there will be.
        plain = request._replace(draft=None, packed_drafts=0)
        alone = _widest_stage(sized, purpose, plain, asked)
        return found._replace(least_pools_bytes=alone.least_pools_bytes)
    return found


def _widest_stage(
    sized: SizedServer, purpose: Purpose, request: PoolRequest, asked: str
) -> ServerMemory:
    """Of the pipeline's stages, the least and the most that one rank takes."""
    stages = []
    for stage in range(request.pp):
        draft = request.draft if stage == request.pp - 1 else None
        pools = host_pools(request._replace(stage=stage, draft=draft))
        if purpose is Purpose.OFFLOAD and isinstance(pools, HostPools):
            pools = _without_indexer(sized, pools)
        stages.append(_stage_bounds(pools, asked))
    least = min(stages, key=lambda stage: sum(stage.least_pools_bytes))
    most = max(stages, key=_most_bytes)
    refused = next((stage.refused for stage in stages if stage.refused), None)
    return between(least, most, most.why)._replace(refused=refused)


def _most_bytes(memory: ServerMemory) -> float:
    most = memory.most_pools_bytes
    return float("inf") if isinstance(most, Unknown) else sum(most)


def _without_indexer(sized: SizedServer, pools: HostPools) -> HostPools | Unknown:
    """Return the offload manager mirrors keys and values alone."""
    indexer = [pool for pool in pools.pools if pool.what == "indexer"]
    if indexer and sized.release.indexer is not Indexer.ON_TOP:
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


# An estimate, not a rule: what a rank takes of the host before it sizes its pools (Python, CUDA's
# context, NCCL, staging). Wide on purpose.
_MOST_PROCESS_BYTES = 8 * GIB
# --hicache-host-memory-fraction.
_DEFAULT_FRACTION = 0.8
# _ALLOCATION_SLACK_FRACTION (mem_cache/hicache_auto_size.py).
_AUTO_SHARE = 1 - 0.05
_NO_MEMORY_LEFT = (
    "ValueError: No host memory is left for HiCache after the 10 GiB reserve; set --hicache-ratio "
    "or --hicache-size explicitly."
)
_NO_CGROUP = (
    "RuntimeError: Cannot automatically size HiCache host memory; set --hicache-size explicitly "
    "(GB per rank), leaving room for other memory use within the container limit."
)
_BAD_FRACTION = "ValueError: --hicache-host-memory-fraction must be in (0, 1]."


def by_ratio(
    sized: SizedServer, purpose: Purpose, request: PoolRequest, tokens: Interval | Unknown
) -> ServerMemory:
    said = f"--hicache-ratio {request.ratio:g}"
    if isinstance(tokens, Unknown):
        return ServerMemory((), tokens, f"{said}: {tokens.reason}")
    ends = [
        bounds(sized, purpose, request._replace(device_tokens=count), f"of {count} tokens")
        for count in (tokens.least, tokens.most)
    ]
    return between(ends[0], ends[1], f"{said} of {tokens.most} tokens on the GPU; {tokens.reason}")


def by_default(
    sized: SizedServer, purpose: Purpose, request: PoolRequest, tokens: Interval | Unknown
) -> ServerMemory:
    if isinstance(tokens, Unknown):
        why = f"neither --hicache-size nor --hicache-ratio: {tokens.reason}"
        return ServerMemory((), tokens, why)
    least = default_ratio(sized, purpose, request, tokens.least)[0]
    most = default_ratio(sized, purpose, request, tokens.most)[1]
    ends = [
        bounds(sized, purpose, request._replace(device_tokens=count, ratio=ratio), "")
        for count, ratio in ((tokens.least, least), (tokens.most, most))
    ]
    span = f"{most:g}" if least == most else f"{least:g} to {most:g}"
    why = f"the default ratio {span} of {tokens.most} tokens on the GPU; {tokens.reason}"
    return between(ends[0], ends[1], why)


def by_host(
    sized: SizedServer, purpose: Purpose, request: PoolRequest, tokens: Interval | Unknown
) -> ServerMemory:
    """Return the default ratio, lowered until the pools fit the share of the host's memory."""
    unset = "neither --hicache-size nor --hicache-ratio"
    fraction = sized.value("hicache_host_memory_fraction")
    fraction = _DEFAULT_FRACTION if fraction is None else fraction
    if isinstance(fraction, Unknown):
        return ServerMemory((), fraction, f"{unset}: {fraction.reason}")
    if not 0 < fraction <= 1:
        return refused(_BAD_FRACTION)
    budgets = _budgets(sized, fraction)
    if isinstance(budgets, str):
        return refused(budgets)
    if isinstance(budgets, Unknown):
        top = by_default(sized, purpose, request, tokens)
        if isinstance(top.most_pools_bytes, Unknown):
            return top
        why = f"{unset}: at most {top.why}; {budgets.reason}"
        return top._replace(least_pools_bytes=(), why=why, pools=())
    least_budget, most_budget = budgets
    said = (
        f"{unset}: at most {_AUTO_SHARE:.0%} of {format_bytes(most_budget)} of host memory for "
        f"each rank (fraction {fraction:g}, as free now)"
    )
    own = sized.hardware.drafts.own
    missing = next((it for it in (tokens, request.geometry, own) if isinstance(it, Unknown)), None)
    if missing is not None or isinstance(tokens, Unknown):
        # Whatever the GPU holds, the pools share the budget; each may round up by a page.
        page = request.page_tokens * MOST_TOKEN_BYTES
        most = int(most_budget * _AUTO_SHARE) + page
        why = missing.reason if missing is not None else ""
        return ServerMemory((), (most,), f"{said}; {why}", (), None, most_budget)
    ends: list[ServerMemory] = []
    ratios: list[float] = []
    for count, budget, end in ((tokens.least, least_budget, 0), (tokens.most, most_budget, 1)):
        asked = request._replace(device_tokens=count)
        mirrored = mirrored_bytes(asked, count)
        if isinstance(mirrored, Unknown):
            return ServerMemory((), mirrored, f"{said}; {mirrored.reason}")
        ratio = default_ratio(sized, purpose, asked, count)[end]
        if count and mirrored:
            ratio = min(ratio, budget * _AUTO_SHARE / mirrored)
        ratios.append(ratio)
        if ratio <= 0:
            ends.append(ServerMemory((), (), "nothing left"))
        else:
            ends.append(bounds(sized, purpose, asked._replace(ratio=ratio), ""))
    why = f"{said}: a ratio of {ratios[1]:.4g} of {tokens.most} tokens on the GPU; {tokens.reason}"
    return between(ends[0], ends[1], why)._replace(budget_bytes=most_budget)


def _budgets(sized: SizedServer, fraction: float) -> tuple[int, int] | Unknown | str:
    """A rank's budget once the server runs, and now; or the words that stop the server."""
    host, ranks = sized.hardware.host, sized.ranks
    if isinstance(host, Unknown):
        return host
    if isinstance(host.headroom_bytes, Unknown):
        return _NO_CGROUP
    most = auto_budget_bytes(host, ranks.sharing, sized.release, fraction)
    if most <= 0:
        return _NO_MEMORY_LEFT
    taken = ranks.here * _MOST_PROCESS_BYTES
    later = HostMemory(
        host.available_bytes - taken,
        None if host.headroom_bytes is None else host.headroom_bytes - taken,
    )
    return max(0, auto_budget_bytes(later, ranks.sharing, sized.release, fraction)), most
