"""A recorded trace against each server's tiers, and in one cache of any size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from checks.framework.unknown import Unknown
from checks.releases.sglang import SglangRelease
from preflight.cache_sizing.capacity.answer import CapacityAnswer, ServerCapacity
from preflight.cache_sizing.capacity.deployment import (
    DEFAULT_WRITE_POLICY,
    Bounds,
    Deployment,
    Tier,
)
from preflight.cache_sizing.capacity.router import Router
from preflight.cache_sizing.traces.curve import Curve, CurveCounter, optimum
from preflight.cache_sizing.traces.describe import TOLD_EVERY
from preflight.cache_sizing.traces.formats import Trace
from preflight.cache_sizing.traces.tiers import (
    PREFETCH_THRESHOLD_TOKENS,
    Flows,
    Replay,
    Routing,
    Rules,
    StoreRules,
    TierSizes,
)

# Of a launch whose page size a variable decides.
DEFAULT_PAGE_TOKENS = 64
# Blocks of the smallest cache of the curve.
_FIRST_SIZE = 125


class TraceRequest(NamedTuple):
    """What is asked about a trace.

    Attributes:
        routing: A ``Routing.how`` to use in place of the router's.
        prefill_tokens_per_second: To turn tokens into seconds; None to leave these out.
        curve: Show the hit curve.
        hit_rate: Tell the cache that reaches this rate, 0 to 1.
        marks: (name, tokens), more sizes to show on the curve.
    """

    routing: str | None = None
    prefill_tokens_per_second: float | None = None
    curve: bool = False
    hit_rate: float | None = None
    marks: tuple[tuple[str, int], ...] = ()


class ServerReplay(NamedTuple):
    """The result of one server's replay, with the least and the most that its tiers hold.

    Attributes:
        l1_with_l2: L1 is not known, and its hits are counted with those of L2.
    """

    least: Flows
    most: Flows
    rules: Rules
    l1_with_l2: bool
    notes: tuple[str, ...]


class TraceAnswer(NamedTuple):
    """A trace as a whole, and the result of each server, in the order of the capacity's servers.

    Attributes:
        block_tokens: What hits are counted by: the trace's blocks, or pages if these are larger.
        span_seconds: From the first request to the last; None if no time is recorded.
        best: (size in blocks, part of all accesses that the best possible cache of that size
            answers). The part is None if only a sample of the blocks was followed.
    """

    trace: Trace
    block_tokens: int
    requests: int
    input_tokens: int
    output_tokens: int
    span_seconds: float | None
    curve: Curve
    best: tuple[tuple[int, float | None], ...]
    servers: tuple[ServerReplay | Unknown, ...]
    notes: tuple[str, ...]
    query: TraceRequest

    @property
    def replayed(self) -> list[ServerReplay]:
        return [server for server in self.servers if not isinstance(server, Unknown)]


def page_of(answer: CapacityAnswer) -> int:
    """Return the page size of the first server in tokens, or 64 if it is not known."""
    return answer.servers[0].page_tokens or DEFAULT_PAGE_TOKENS


def trace_answers(
    capacities: Sequence[CapacityAnswer],
    trace: Trace,
    query: TraceRequest,
    tell: Callable[[str], None],
) -> tuple[TraceAnswer, ...]:
    """Read a trace once, and replay it on the servers of each of ``capacities``.

    Return one answer for each.

    Args:
        tell: Called with a line of progress.

    Raises:
        UsageError: For a bad record, or for sticky routing if the trace names no conversations.
    """
    page = page_of(capacities[0])
    merge = max(1, page // trace.block_tokens) if page % trace.block_tokens == 0 else 1
    block = trace.block_tokens * merge
    plans = [replay_plans(each, query) for each in capacities]
    replays = [
        [() if isinstance(plan, Unknown) else plan.replays(block) for plan in each]
        for each in plans
    ]
    every = [replay for each in replays for of_server in each for replay in of_server]
    counter = CurveCounter()
    requests, tokens, outputs = 0, 0, 0
    times: list[float] = []
    for requests, request in enumerate(trace.requests, 1):
        if requests % TOLD_EVERY == 0:
            tell(f"{trace.name}: {requests:,} requests, {tokens:,} tokens")
        if merge > 1:
            request = request._replace(blocks=request.blocks[merge - 1 :: merge])
        tokens += request.input_tokens
        outputs += request.output_tokens
        if request.seconds is not None:
            times[1:] = [request.seconds]  # the first, and the last so far
        counter.take(request.blocks)
        for replay in every:
            replay.take(request)
    curve = counter.curve()
    span = times[-1] - times[0] if len(times) > 1 else None
    always = {*_doubling(curve), *(max(1, size // block) for _, size in query.marks)}
    sizes = [sorted({*always, *_tier_blocks(each, block)}) for each in capacities]
    best: dict[int, float] = {}
    if counter.uses is not None and curve.accesses:
        drawn = {size for each in sizes for size in each}
        best = {size: optimum(counter.uses, size) / curve.accesses for size in drawn}
    notes = tuple(_trace_notes(trace, page, block, requests, tokens))
    basis = (trace, block, requests, tokens, outputs, span, curve)
    answers = []
    for each, shown, of_server, ran in zip(capacities, sizes, plans, replays, strict=True):
        best_of_each = tuple((size, best.get(size)) for size in shown)
        pairs = zip(of_server, ran, strict=True)
        replayed = tuple(_server_replays(each.router, query, span, pairs))
        answers.append(TraceAnswer(*basis, best_of_each, replayed, notes, query))
    return tuple(answers)


def _server_replays(
    router: Router | None,
    query: TraceRequest,
    span: float | None,
    plans: Iterable[tuple[ReplayPlan | Unknown, tuple[Replay, ...]]],
) -> Iterator[ServerReplay | Unknown]:
    """Yield the result of each server, or why it was not replayed.

    Args:
        plans: Each with its replays, that of the least sizes first.
        span: Seconds of the trace; None if no time is recorded.
    """
    for plan, replays in plans:
        if isinstance(plan, Unknown):
            yield plan
            continue
        notes = *plan.notes, *_replay_notes(plan, None if query.routing else router, span)
        yield ServerReplay(replays[0].flows, replays[-1].flows, plan.rules, plan.l1_with_l2, notes)


def _doubling(curve: Curve) -> Iterator[int]:
    """Yield sizes that double, to thousands of blocks, up to where nothing more is gained."""
    yield (size := _FIRST_SIZE)
    while size < (curve.size_for(curve.ceiling) or 1):
        yield (size := 2 * size)


def _tier_blocks(answer: CapacityAnswer, block: int) -> Iterator[int]:
    for server in answer.servers:
        for tier in server.capacity.tiers:
            if isinstance(tier.tokens, Bounds):
                yield max(1, tier.tokens.most // block)


class ReplayPlan(NamedTuple):
    """How one server is replayed.

    Attributes:
        sizes: With the least that its tiers hold and with the most; a single one if both are the
            same.
        l1_with_l2: L1 is not known, and its hits are counted with those of L2.
    """

    sizes: tuple[TierSizes, ...]
    rules: Rules
    page_tokens: int
    l1_with_l2: bool
    notes: tuple[str, ...]

    def replays(self, block: int) -> tuple[Replay, ...]:
        return tuple(Replay(sizes, self.rules, block, self.page_tokens) for sizes in self.sizes)


def replay_plans(answer: CapacityAnswer, query: TraceRequest) -> list[ReplayPlan | Unknown]:
    """Return how each server is to be replayed, in order.

    Behind a router, the first of several equal servers is replayed with the caches of all; the
    others are Unknown.
    """
    plans = [plan_of(server, answer.router, query) for server in answer.servers]
    if answer.router is None:
        return plans
    first: dict[tuple[object, ...], int] = {}
    for at, (server, plan) in enumerate(zip(answer.servers, plans, strict=True)):
        if isinstance(plan, Unknown):
            continue
        alike = server.deployment.server.mode, plan._replace(notes=())
        leader = first.setdefault(alike, at)
        if leader != at:
            shared = plans[leader]
            assert isinstance(shared, ReplayPlan)
            caches = shared.rules.caches + plan.rules.caches
            plans[leader] = shared._replace(rules=shared.rules._replace(caches=caches))
            both = f"it and {answer.servers[leader].subject}, where both are counted"
            plans[at] = Unknown(f"the router spreads requests over {both}")
    return plans


def plan_of(
    server: ServerCapacity, router: Router | None, query: TraceRequest
) -> ReplayPlan | Unknown:
    """Return how a server is to be replayed; Unknown if the server reuses nothing, or if L1 and L2
    are both unknown.

    An unknown L1 is taken as half of L2, and any other unknown tier is left out, each with a note.
    """
    deployment, tiers = server.deployment, server.tiers
    if not deployment.reuses:
        return Unknown("no request finds what an earlier one left: the radix cache is off")
    page = server.page_tokens or DEFAULT_PAGE_TOKENS
    notes = []
    gpu = _known(tiers.gpu.group_tokens)
    host = _known(tiers.host and tiers.host.group_tokens)
    l1_with_l2 = gpu is None
    if gpu is None and host is None:
        return Unknown(f"neither L1 nor L2 is known: {_why(tiers.gpu)}")
    if gpu is None and host is not None:
        # With write_through L2 has what L1 has: how large L1 is decides who answers alone.
        gpu = Bounds(host.least // 2, host.most // 2)
        notes.append("L1 is not known: what it answers is counted with L2, which has it too")
        if deployment.write_policy != DEFAULT_WRITE_POLICY:
            notes[-1] = (
                f"L1 is not known, and {deployment.write_policy} fills L2 by way of it: it is "
                "taken to hold half of what L2 does"
            )
    elif host is None and tiers.host is not None:
        notes.append(f"L2 is not known, and left out: {_why(tiers.host)}")
    store_tokens, disk = (_known(tier and tier.tokens) for tier in (tiers.store, tiers.disk))
    if tiers.store is not None and store_tokens is None:
        notes.append(f"L3 is not known, and left out: {_why(tiers.store)}")
    if tiers.disk is not None and store_tokens is not None and disk is None:
        notes.append(f"SSD is not known, and left out: {_why(tiers.disk)}")
    evicts = server.eviction
    store = StoreRules(disk_gets_evicted=tiers.disk_gets_evicted)
    if not isinstance(evicts, Unknown):
        rates = evicts.watermark, evicts.ratio, evicts.lease_seconds
        store = StoreRules(*rates, tiers.disk_gets_evicted)
    # One launch on several hosts: as a router that is cache-aware spreads requests, where the
    # launch has none.
    routing = Routing("cache-aware") if deployment.instances > 1 else Routing()
    routing = router.routing if router else routing
    routing = routing if query.routing is None else Routing(query.routing)
    rules = rules_of(deployment.sized.release, deployment.write_policy)
    rules = rules._replace(caches=deployment.groups, routing=routing, store=store)
    rules = rules._replace(prefetch_threshold=_threshold(server), buffers=deployment.buffers)
    least, most = (
        TierSizes(
            gpu_tokens, *(part and part[end] for part in (host, store_tokens, disk))
        )._replace(prefetch=_prefetch(deployment, l1_with_l2, gpu_tokens, host and host[end]))
        for end, gpu_tokens in enumerate(gpu or (0, 0))
    )
    each = (least,) if least == most else (least, most)
    return ReplayPlan(each, rules, page, l1_with_l2, tuple(notes))


def _prefetch(deployment: Deployment, no_l1: bool, l1: int, l2: int | None) -> int | None:
    """Return how many tokens of the store may be under prefetch at a time, for one cache; None if
    that is not known, or L2 is staging, whose part the rules have.

    Args:
        no_l1: L1 is not known.
    """
    release = deployment.sized.release
    if l2 is None or deployment.buffers or (no_l1 and release.budget_of_difference):
        return None
    return max(0, release.prefetch_budget(l1, l2, False))


def rules_of(release: SglangRelease, write_policy: str) -> Rules:
    """Return the rules by which an SGLang release moves blocks between tiers."""
    rules = Rules(write_policy, unified=release.unified_cache, partial=release.partial_prefetch)
    stores = write_policy != "write_back" or release.write_back_stores
    return rules._replace(stores=stores, asks=release.asks_l3)


def _replay_notes(plan: ReplayPlan, router: Router | None, span: float | None) -> Iterator[str]:
    """Yield notes on what a replay assumes and leaves out.

    Args:
        router: None with ``--routing``.
    """
    rules, store = plan.rules, plan.rules.store
    yield from cache_notes(plan, router)
    yield (
        f"one request after the other, {rules.write_policy}: writes on their way and prefetch that "
        "comes too late are not modelled, nor answers before a later prompt has them"
    )
    if all(size.store is None for size in plan.sizes):
        return
    leased = f"what was asked for stays {store.lease_seconds:g} s (its lease)"
    if span is None and store.lease_seconds:
        leased = "no time is recorded, so leases are not modelled"
    yield (
        f"the pool evicts {store.ratio:g} of its objects at a time; {leased}; SGLang writes one "
        "replica of each and pins none; segments of clients that end are not taken away"
    )


def cache_notes(plan: ReplayPlan, router: Router | None) -> Iterator[str]:
    """Yield notes on how requests are spread over caches side by side, if there are several."""
    rules = plan.rules
    if rules.caches > 1:
        why = f" ({router.origin})" if router else ""
        yield f"{rules.caches} caches side by side, requests spread {rules.routing.how}{why}"
        yield from router.notes if router else ()


def _known(tokens: Bounds | Unknown | None) -> Bounds | None:
    return tokens if isinstance(tokens, Bounds) else None


def _why(tier: Tier | None) -> str:
    return tier.tokens.reason if tier and isinstance(tier.tokens, Unknown) else "not sized"


def _threshold(server: ServerCapacity) -> int:
    """Return the prefetch_threshold of the server's extra config, or the default, in tokens."""
    text = server.deployment.server.value("hicache_storage_backend_extra_config")
    try:
        config = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        config = None
    threshold = config.get("prefetch_threshold") if isinstance(config, dict) else None
    return threshold if isinstance(threshold, int) else PREFETCH_THRESHOLD_TOKENS


def _trace_notes(trace: Trace, page: int, block: int, requests: int, tokens: int) -> Iterator[str]:
    """Yield the trace's own notes, and a note if its blocks do not fit the pages.

    Args:
        page, block: In tokens.
        tokens: Of all prompts.
    """
    yield from trace.notes
    if block > page and tokens:
        more = 100 * requests * (block - page) / tokens
        yield (
            f"blocks of {block} tokens, pages of {page}: what two prompts share is known to whole "
            f"blocks, so a request may find up to {block - page} tokens more: at most {more:.1f}% "
            "of all tokens"
        )
    elif page % trace.block_tokens:
        yield (
            f"pages of {page} tokens are no whole number of the trace's blocks of "
            f"{trace.block_tokens}: hits are counted by the trace's blocks"
        )
