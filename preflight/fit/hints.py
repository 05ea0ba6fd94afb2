"""What would let more fit, if it is no size; and what 1 GiB more of a size costs and buys.

The first is found by asking the same checks again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from checks.base.pages import MemoryKind
from checks.base.units import GIB, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import Pool
from preflight.fit.judged_values import (
    FitAnswer,
    Goal,
    HostState,
    Judgement,
    LaunchState,
    NextGib,
    facts_with_pools,
    released_root,
)
from preflight.fit.launch_values import SizeValues
from preflight.fit.solver import larger_fit, largest_sizes
from preflight.judging.pages import GATE
from preflight.mooncake.allocations import Allocation, Backing
from preflight.sglang.launch import server_ranks
from preflight.sglang.model import Models
from preflight.sglang.model_geometry import AttentionKind

_SWITCH = "MC_STORE_USE_HUGEPAGE"


def hints(state: LaunchState, host: HostState, answer: FitAnswer) -> tuple[str, ...]:
    """Return sentences, each with what would fit then; nothing if nothing more would."""
    if answer.reason or answer.goal is Goal.BEST:
        return ()
    return (*_released(state, host, answer), *_regular(state, host, answer))


def _regular(state: LaunchState, host: HostState, answer: FitAnswer) -> Iterator[str]:
    """Yield a hint where larger sizes would pass on regular pages.

    SGLang's gate asks for the pool's size of available memory, whatever the pool lies on.
    """
    gated = any(finding.check == GATE.id for bound in answer.bounds for finding in bound.findings)
    gated = gated or any(finding.check == GATE.id for finding in answer.blocking)
    reading = state.launch.reading
    if answer.goal is not Goal.L2 or not gated:
        return
    if not any(_SWITCH in command.environment for command in reading.commands):
        return
    commands = tuple(
        command._replace(environment={n: w for n, w in command.environment.items() if n != _SWITCH})
        for command in reading.commands
    )
    launch = state.launch._replace(reading=reading._replace(commands=commands))
    larger = largest_sizes(state._replace(launch=launch), host, answer.goal, answer.gates)
    if larger is not None and _more(larger, answer):
        yield (
            f"without {_SWITCH}, {larger.text} would pass: SGLang's own check asks for as much "
            "available memory as the pools take, and the pages that they lie on are no longer part "
            "of it"
        )


def _released(state: LaunchState, host: HostState, answer: FitAnswer) -> Iterator[str]:
    """Yield a hint about free pages that the launch does not take: a plan never lowers a pool."""
    hugetlb: HugetlbFacts | Unknown = host.facts.topic("hugetlb")
    if isinstance(hugetlb, Unknown) or isinstance(hugetlb.hugetlb.pools, Unknown):
        return
    pools = [
        huge_pool for huge_pool in hugetlb.hugetlb.pools.values() if isinstance(huge_pool, Pool)
    ]
    taken = _taken(answer)
    spare = [
        (size, huge_pool.free_pages - huge_pool.reserved_pages - taken.get(size, 0))
        for huge_pool in pools
        for size in [huge_pool.page_size_bytes]
    ]
    if sum(size * max(0, pages) for size, pages in spare) < GIB:
        return
    root = released_root(host.root, pools)
    facts = facts_with_pools(root, answer.least.needs, host.facts)
    freed = host._replace(root=root, facts=facts)
    if answer.bounds and not any(larger_fit(state, freed, answer)):
        return
    larger = largest_sizes(state, freed, answer.goal, answer.gates)
    if larger is not None and _more(larger, answer):
        names = " and ".join(
            f"{pages} pages of {format_page_size(size)}" for size, pages in spare if pages > 0
        )
        yield (
            f"{names} are reserved, free, and not taken by this launch; were the pools only as "
            f"large as they have to be, {larger.text} would pass (nothing here lowers a pool)"
        )


def _taken(answer: FitAnswer) -> Mapping[int, int]:
    """Return pages of each size that the launch takes, with the sizes found or the least."""
    usages, pages = (answer.fits or answer.least).needs.usages, Counter[int]()
    for usage in () if isinstance(usages, Unknown) else usages:
        for spot, count in usage.mapped.items():
            pages[spot.page_size_bytes] += count
    return pages


def _more(larger: SizeValues, answer: FitAnswer) -> bool:
    """Return whether either size is at least one step larger, and none is smaller."""
    if answer.fits is None:
        return True
    more = [(new or 0) - (old or 0) for new, old in zip(larger, answer.values, strict=True)][:2]
    return min(more) >= 0 and max(more) > 0


def shares(judgement: Judgement, goal: Goal, models: Models) -> Iterator[NextGib]:
    """Yield the cost and gain of 1 GiB more, for each of the sizes that ``goal`` is about."""
    shown = judgement.sizing.shown
    if shown is None:
        return
    mapped = [a for process in shown.asked for a in process.allocations]
    if goal is not Goal.POOL:
        ranks = sum(1 for p in shown.inputs.launch.processes if p.host_pools_bytes)
        tokens = _tokens(judgement, models, of_one_rank=True)
        yield _share("l2", mapped, MemoryKind.HOST_POOL, ranks, tokens)
    if goal is not Goal.L2:
        tokens = _tokens(judgement, models, of_one_rank=False)
        yield _share("segment", mapped, MemoryKind.SEGMENT, 1, tokens)


def _share(
    size: str, mapped: list[Allocation], what: MemoryKind, times: int, tokens: int | None
) -> NextGib:
    """Return the memory and pages that 1 GiB more of a size takes."""
    of_size = [a for a in mapped if a.what == what and a.backing is not Backing.ARENA]
    of_size = of_size or [a for a in mapped if a.what == MemoryKind.ARENA]
    page = max((a.page_size_bytes for a in of_size if a.on_huge_pages), default=0)
    host_bytes = times * GIB
    return NextGib(size, host_bytes, host_bytes // page if page else 0, page, tokens)


def _tokens(judgement: Judgement, models: Models, *, of_one_rank: bool) -> int | None:
    """Return the tokens of 1 GiB, on every rank of a server, or in a store of all ranks."""
    for process in judgement.sizing.inputs.processes:
        memory = judgement.sizing.inputs.memory.get(process.number)
        if process.server is None or memory is None:
            continue
        ranks = server_ranks(process.server)
        whole = [host_pool for host_pool in memory.pools if host_pool.tokens]
        if isinstance(ranks, Unknown) or not whole:
            continue
        # One token in all pools of one rank.
        token_bytes = sum(host_pool.bytes / host_pool.tokens for host_pool in whole)
        groups = ranks.attention_dp * ranks.replicas
        if of_one_rank:
            return int(GIB / token_bytes) * groups
        geometry = models.target(process.server.value("model_path")).geometry
        if isinstance(geometry, Unknown):
            return None
        # Of latent attention one rank stores each token, of others each with heads a part of it.
        latent = geometry.kind is AttentionKind.MLA
        writers = ranks.pp * (1 if latent else max(1, ranks.tp // ranks.attention_dp))
        return int(GIB / (token_bytes * writers))
    return None
