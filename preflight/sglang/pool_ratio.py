"""Host pools where no size is given: by a ratio, by the default one, or by the host's free memory.

A pool that SGLang sizes by the host (``mem_cache/hicache_auto_size.py``, since 0.5.21) lies between
what is free now and what is left once the server itself has started.
"""

from __future__ import annotations

from checks.base.units import GIB, format_bytes
from checks.base.unknown import Unknown
from preflight.sglang.admission_gate import HostMemory, auto_budget_bytes
from preflight.sglang.device_pool import Interval, mirrored_bytes
from preflight.sglang.host_pools import MOST_TOKEN_BYTES, PoolRequest
from preflight.sglang.pool_bounds import ServerMemory, between, bounds, refused
from preflight.sglang.pool_request import Given, Purpose, default_ratio

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
    given: Given, purpose: Purpose, request: PoolRequest, tokens: Interval | Unknown
) -> ServerMemory:
    said = f"--hicache-ratio {request.ratio:g}"
    if isinstance(tokens, Unknown):
        return ServerMemory((), tokens, f"{said}: {tokens.reason}")
    ends = [
        bounds(given, purpose, request._replace(device_tokens=count), f"of {count} tokens")
        for count in (tokens.least, tokens.most)
    ]
    return between(ends[0], ends[1], f"{said} of {tokens.most} tokens on the GPU; {tokens.reason}")


def by_default(
    given: Given, purpose: Purpose, request: PoolRequest, tokens: Interval | Unknown
) -> ServerMemory:
    if isinstance(tokens, Unknown):
        why = f"neither --hicache-size nor --hicache-ratio: {tokens.reason}"
        return ServerMemory((), tokens, why)
    least = default_ratio(given, purpose, request, tokens.least)[0]
    most = default_ratio(given, purpose, request, tokens.most)[1]
    ends = [
        bounds(given, purpose, request._replace(device_tokens=count, ratio=ratio), "")
        for count, ratio in ((tokens.least, least), (tokens.most, most))
    ]
    span = f"{most:g}" if least == most else f"{least:g} to {most:g}"
    why = f"the default ratio {span} of {tokens.most} tokens on the GPU; {tokens.reason}"
    return between(ends[0], ends[1], why)


def by_host(
    given: Given, purpose: Purpose, request: PoolRequest, tokens: Interval | Unknown
) -> ServerMemory:
    """The default ratio, lowered until the pools fit the share of the host's memory."""
    unset = "neither --hicache-size nor --hicache-ratio"
    fraction = given.value("hicache_host_memory_fraction")
    fraction = _DEFAULT_FRACTION if fraction is None else fraction
    if isinstance(fraction, Unknown):
        return ServerMemory((), fraction, f"{unset}: {fraction.reason}")
    if not 0 < fraction <= 1:
        return refused(_BAD_FRACTION)
    budgets = _budgets(given, fraction)
    if isinstance(budgets, str):
        return refused(budgets)
    if isinstance(budgets, Unknown):
        top = by_default(given, purpose, request, tokens)
        if isinstance(top.most_pools_bytes, Unknown):
            return top
        why = f"{unset}: at most {top.why}; {budgets.reason}"
        return top._replace(least_pools_bytes=(), why=why, pools=())
    least_budget, most_budget = budgets
    said = (
        f"{unset}: at most {_AUTO_SHARE:.0%} of {format_bytes(most_budget)} of host memory for "
        f"each rank (fraction {fraction:g}, as free now)"
    )
    own = given.hardware.drafts.own
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
        ratio = default_ratio(given, purpose, asked, count)[end]
        if count and mirrored:
            ratio = min(ratio, budget * _AUTO_SHARE / mirrored)
        ratios.append(ratio)
        if ratio <= 0:
            ends.append(ServerMemory((), (), "nothing left"))
        else:
            ends.append(bounds(given, purpose, asked._replace(ratio=ratio), ""))
    why = f"{said}: a ratio of {ratios[1]:.4g} of {tokens.most} tokens on the GPU; {tokens.reason}"
    return between(ends[0], ends[1], why)._replace(budget_bytes=most_budget)


def _budgets(given: Given, fraction: float) -> tuple[int, int] | Unknown | str:
    """A rank's budget once the server runs, and now; or the words that stop the server."""
    host, ranks = given.hardware.host, given.ranks
    if isinstance(host, Unknown):
        return host
    if isinstance(host.headroom_bytes, Unknown):
        return _NO_CGROUP
    most = auto_budget_bytes(host, ranks.sharing, given.release, fraction)
    if most <= 0:
        return _NO_MEMORY_LEFT
    taken = ranks.here * _MOST_PROCESS_BYTES
    later = HostMemory(
        host.available_bytes - taken,
        None if host.headroom_bytes is None else host.headroom_bytes - taken,
    )
    return max(0, auto_budget_bytes(later, ranks.sharing, given.release, fraction)), most
