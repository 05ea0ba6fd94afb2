"""What 1 GiB more of a size costs this host, and how many tokens it buys."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.needs import MemoryKind
from checks.base.units import GIB
from checks.base.unknown import Unknown
from preflight.fit.judged_values import Judgement
from preflight.fit.records import Goal, Share
from preflight.mooncake.allocations import Allocation, Backing
from preflight.sglang.model import Models
from preflight.sglang.model_geometry import AttentionKind
from preflight.sglang.pools import ServerMemory
from preflight.sglang.ranks import Ranks, server_ranks
from preflight.sizing.page_usages import ON_HUGE_PAGES


def shares(found: Judgement, goal: Goal, models: Models) -> tuple[Share, ...]:
    """Of the sizes that ``goal`` is about."""
    return tuple(_shares(found, goal, models))


def _shares(found: Judgement, goal: Goal, models: Models) -> Iterator[Share]:
    shown = found.sizing.shown
    if shown is None:
        return
    mapped = [a for process in shown.asked for a in process.allocations]
    if goal is not Goal.POOL:
        ranks = sum(1 for p in shown.inputs.launch.processes if p.host_pools_bytes)
        yield _share(
            "l2", mapped, MemoryKind.HOST_POOL, ranks, _tokens(found, models, of_one_rank=True)
        )
    if goal is not Goal.L2:
        yield _share(
            "segment", mapped, MemoryKind.SEGMENT, 1, _tokens(found, models, of_one_rank=False)
        )


def _share(
    size: str, mapped: list[Allocation], what: MemoryKind, times: int, tokens: int | None
) -> Share:
    own = [a for a in mapped if a.what == what]
    own = [a for a in own if a.backing is not Backing.ARENA] or [
        a for a in mapped if a.what == MemoryKind.ARENA
    ]
    pages = [a.page_size_bytes for a in own if a.backing in ON_HUGE_PAGES]
    host_bytes = times * GIB
    page = max(pages, default=0)
    return Share(size, host_bytes, host_bytes // page if page else 0, page, tokens)


def _tokens(found: Judgement, models: Models, *, of_one_rank: bool) -> int | None:
    """Tokens of 1 GiB: on every rank of a server, or in a store that all ranks write to."""
    for process in found.sizing.inputs.processes:
        pools = found.sizing.inputs.memory.get(process.number)
        if process.server is None or pools is None:
            continue
        ranks = server_ranks(process.server)
        token_bytes = _token_bytes(pools)
        if isinstance(ranks, Unknown) or token_bytes is None:
            continue
        groups = ranks.attention_dp * ranks.replicas
        if of_one_rank:
            return int(GIB / token_bytes) * groups
        geometry = models.target(process.server.value("model_path")).geometry
        if isinstance(geometry, Unknown):
            return None
        latent = geometry.kind is AttentionKind.MLA
        return int(GIB / (token_bytes * _writers(latent, ranks)))
    return None


def _token_bytes(memory: ServerMemory) -> float | None:
    """Return bytes of one token in all pools of one rank."""
    whole = [pool for pool in memory.pools if pool.tokens]
    if not whole:
        return None
    return sum(pool.bytes / pool.tokens for pool in whole)


def _writers(latent: bool, ranks: Ranks) -> int:
    """Ranks that store a part of each token: of latent attention one, of others each with heads."""
    return ranks.pp * (1 if latent else max(1, ranks.tp // ranks.attention_dp))
