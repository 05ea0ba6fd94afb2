"""Rounds of a multi-turn workload, as requests that are replayed as those of a trace are.

The workload is defined here once: for ``capacity``, for ``fit``, and for the trace that is written.
In each round every client asks once, one after the other, a second apart. The order is drawn anew
for each round, and is the same whenever the workload is replayed; with ``fifo`` it is that of the
clients' numbers. A prompt is all that was said and a new question, in blocks of a round or a part.
What is kept is the part of a prompt's blocks that the same client's prompt before it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.storage.folders import Folder, read_storage
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.answer import (
    CapacityAnswer,
    CapacityRequest,
    ServerCapacity,
    compute_capacity,
    with_rates,
)
from preflight.cache_sizing.capacity.deployment import Bounds, Round
from preflight.cache_sizing.capacity.trace_answer import (
    ReplayPlan,
    TraceRequest,
    cache_notes,
    page_of,
    replay_plans,
)
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload
from preflight.cache_sizing.traces.formats import Request, Trace
from preflight.cache_sizing.traces.tiers import Replay, Rules, TierSizes
from preflight.command_inputs.host_source import open_host, size_within
from preflight.command_inputs.launch_words import LaunchWords
from preflight.needs.launch_sizing import LaunchInputs
from preflight.processes.processes import LaunchOptions

# Parts of a conversation by which rounds are replayed: at least, so that few rounds are told apart
# within, and at most, so that a thousand rounds are replayed in seconds.
_LEAST_BLOCKS, _MOST_BLOCKS = 10, 50
# Requests that are replayed at most, which takes a fifth of a second. Of more clients so many are
# replayed, with tiers that are smaller by as much: that is within a hundredth.
_MOST_REQUESTS = 20_000


class Turn(NamedTuple):
    """What a replay found in one round.

    Attributes:
        seen: Blocks of its prompts that were asked for before.
        hits: By tier, blocks of these that it answered.
        full: Tiers that had no room for something in this round or before.
    """

    seen: int
    hits: Mapping[str, int]
    full: frozenset[str]


def block_of(workload: MultiTurnWorkload, page_tokens: int) -> int:
    """Return the tokens of a block of the workload's requests, whole pages."""
    blocks = -(-_LEAST_BLOCKS // workload.rounds) * workload.rounds
    blocks //= -(-blocks // _MOST_BLOCKS)
    whole = workload.context_tokens(workload.rounds)
    return max(page_tokens, whole // blocks // page_tokens * page_tokens)


def rounds_requests(
    workload: MultiTurnWorkload, block_tokens: int, seed: int = 0
) -> Iterator[Request]:
    """Yield the requests of a workload, round by round.

    Args:
        seed: Of the random order of the clients, if it is random. Clients share no blocks.
    """
    rng = Random(seed)
    order, asked = list(range(workload.clients)), 0
    for turn in range(workload.rounds):
        if workload.random_order:
            rng.shuffle(order)
        tokens = workload.context_tokens(turn + 1) - workload.output_tokens
        for client in order:
            blocks = [(client + 1) << 32 | at for at in range(tokens // block_tokens)]
            yield Request(blocks, tokens, workload.output_tokens, float(asked), client + 1)
            asked += 1


def workload_trace(workload: MultiTurnWorkload, page_tokens: int) -> Trace:
    """Return the workload as a trace, which ``capacity --trace`` replays to the same numbers."""
    block = block_of(workload, page_tokens)
    return Trace(workload.origin, "rounds", block, rounds_requests(workload, block))


@lru_cache(maxsize=8)
def _requests(workload: MultiTurnWorkload, block: int) -> tuple[Request, ...]:
    return tuple(rounds_requests(workload, block))


def fewer_clients(workload: MultiTurnWorkload, most: int | None = None) -> MultiTurnWorkload:
    """Return the workload with as many of its clients as are replayed.

    Args:
        most: Of these, if fewer are enough.
    """
    most = most or max(1, _MOST_REQUESTS // workload.rounds)
    return workload._replace(clients=min(workload.clients, most))


def replay_rounds(
    plan: ReplayPlan,
    workload: MultiTurnWorkload,
    page_tokens: int,
    most_clients: int | None = None,
) -> tuple[tuple[Turn, ...], ...]:
    """Replay a workload for each of the plan's sizes; return the turns of each replay.

    Args:
        page_tokens: Of the launch's first server, whose pages decide the blocks.
        most_clients: Replay no more clients than these, on tiers that are smaller in proportion.
    """
    block, fewer = block_of(workload, page_tokens), fewer_clients(workload, most_clients)

    def smaller(tokens: int | None) -> int | None:
        return None if tokens is None else tokens * fewer.clients // workload.clients

    ends = []
    for l1, l2, store, disk, prefetch in plan.sizes:
        # L2 that is staging stages as much as it does, and a request is as long as it is.
        l2 = l2 if plan.rules.buffers else smaller(l2)
        sizes = smaller(l1), l2, smaller(store), smaller(disk), prefetch
        whole = (size if size is None else size // block for size in sizes)
        ends.append(_replayed(tuple(whole), plan.rules, plan.page_tokens, fewer, block))
    return tuple(ends)


@lru_cache(maxsize=64)
def _replayed(
    blocks: tuple[int | None, ...],
    rules: Rules,
    page_tokens: int,
    workload: MultiTurnWorkload,
    block: int,
) -> tuple[Turn, ...]:
    """Replay a workload on tiers of so many blocks; replay the same only once."""
    l1, *others = (size if size is None else size * block for size in blocks)
    replay = Replay(TierSizes(l1 or 0, *others), rules, block, page_tokens)
    return tuple(_turns(replay, _requests(workload, block), workload.clients))


def _turns(replay: Replay, requests: Sequence[Request], clients: int) -> Iterator[Turn]:
    """Replay the requests of all rounds, ``clients`` each; yield what each round found."""
    flows, before = replay.flows, 0
    for at in range(0, len(requests), clients):
        hits = flows.hits.copy()
        for request in requests[at : at + clients]:
            replay.take(request)
        yield Turn(before * clients, flows.hits - hits, frozenset(flows.full))
        before = len(requests[at].blocks)


def kept_part(ends: Sequence[Sequence[Turn]]) -> tuple[float, float]:
    """Return (least, most) of the part (0 to 1) of all blocks seen before that hit; 1 if none was
    seen before.

    Args:
        ends: Of ``replay_rounds``.
    """
    parts = []
    for turns in ends:
        seen = sum(turn.seen for turn in turns)
        parts.append(sum(sum(turn.hits.values()) for turn in turns) / seen if seen else 1.0)
    return min(parts), max(parts)


def capacity_of(
    launch: LaunchWords, root: str, timeout_seconds: float, request: CapacityRequest
) -> CapacityAnswer | Unknown:
    """Read a launch and a host, and compute what each server's tiers hold and what a workload finds
    in them.

    Returns:
        Unknown if reading takes longer than ``timeout_seconds``.

    Raises:
        UsageError: If no launch is given, or it has no server.
    """
    host = open_host(root, timeout_seconds)
    sized = size_within(launch, host, timeout_seconds)
    if isinstance(sized, Unknown):
        return sized
    if sized is None:
        raise UsageError("capacity is about a launch: give a script, or a command after --")
    folders = read_storage(host.root, sized.needs).folders
    answer = replayed_capacity(sized.sizing.inputs, sized.options, host.root, request, folders)
    processes = sized.sizing.inputs.processes
    unread, source = sized.sizing.not_whole, sized.needs.source
    return answer._replace(unread=unread, source=source, processes=processes)


def replayed_capacity(
    inputs: LaunchInputs,
    options: LaunchOptions,
    root: Root,
    request: CapacityRequest,
    folders: Mapping[str, Folder | Unknown],
) -> CapacityAnswer:
    """Compute what each server's tiers hold and what a workload finds in them, with what is written
    and read at a speed, if one is asked about.

    Arguments and exceptions: ``compute_capacity``.
    """
    answer, speed = (
        compute_capacity(inputs, options, root, request, folders),
        request.new_tokens_per_second,
    )
    servers, workload = answer.servers, answer.workload
    if isinstance(workload, MultiTurnWorkload):
        pairs = zip(servers, replay_plans(answer, TraceRequest()), strict=True)
        servers = tuple(_with_rounds(*pair, answer, workload) for pair in pairs)
    if speed is not None:
        servers = tuple(with_rates(each, speed) for each in servers)
    return answer._replace(servers=servers)


def _with_rounds(
    server: ServerCapacity,
    plan: ReplayPlan | Unknown,
    answer: CapacityAnswer,
    workload: MultiTurnWorkload,
) -> ServerCapacity:
    """Return the server with the rounds of the workload, or with a note why there are none."""
    if not server.deployment.reuses:
        return server
    notes, ends, kept = [*server.notes], tuple[tuple[Turn, ...], ...](), None
    if isinstance(plan, Unknown):
        if any(tier and isinstance(tier.tokens, Bounds) for tier in server.tiers[:2]):
            notes.append(f"no rounds are shown: {plan.reason}")
            return server._replace(notes=tuple(notes))
    else:
        notes += [*plan.notes, *cache_notes(plan, answer.router)]
        ends = replay_rounds(plan, workload, page_of(answer))
        kept = kept_part(ends)
        longest = workload.context_tokens(workload.rounds) - workload.output_tokens
        if any(size.l1 < longest for size in plan.sizes):
            notes.append(
                f"L1 may hold less than the longest prompt ({longest:,} tokens): a server refuses "
                "what is longer, and here it is cut"
            )
        policy = server.deployment.server.value("radix_eviction_policy")
        if isinstance(policy, str) and policy != "lru":
            notes.append(f"replayed as lru; --radix-eviction-policy {policy} evicts otherwise")
        if (fewer := fewer_clients(workload).clients) < workload.clients:
            smaller = "with tiers that are smaller by as much"
            notes.append(f"of {workload.clients:,} clients {fewer:,} are replayed, {smaller}")
    l1_with_l2 = not isinstance(plan, Unknown) and plan.l1_with_l2
    rounds = tuple(_rounds(server, l1_with_l2, workload, ends))
    capacity = server.capacity._replace(rounds=rounds, kept=kept)
    return server._replace(capacity=capacity, notes=tuple(notes))


def _rounds(
    server: ServerCapacity,
    l1_with_l2: bool,
    workload: MultiTurnWorkload,
    ends: Sequence[Sequence[Turn]],
) -> Iterator[Round]:
    """Yield each round, with the least and the most over ``ends``.

    A tier that is not known, and those behind it, may serve everything and nothing more than those
    before them. Such a tier of known size may be full once all contexts are more than it holds.
    """
    page = server.page_tokens or 1
    contexts = [
        workload.cached_tokens(at, page) * workload.clients for at in range(workload.rounds + 1)
    ]
    for number in range(1, workload.rounds + 1):
        turns = [turns[number - 1] for turns in ends]
        served, is_open = [0] * len(turns), False
        hits, certain, maybe = [], [], []
        for tier in server.tiers.shown:
            known, name = isinstance(tier.tokens, Bounds), tier.name
            is_open = is_open or not (known or (l1_with_l2 and name == "L1"))
            pairs = zip(served, turns, strict=True)
            served = [before + turn.hits.get(name, 0) for before, turn in pairs]
            parts = [hit / turns[0].seen if turns[0].seen else 1.0 for hit in served]
            hits.append((name, min(parts, default=0.0), 1.0 if is_open else max(parts)))
            if isinstance(tier.tokens, Bounds):
                full = [name in turn.full for turn in turns]
                if is_open:
                    full = [False, contexts[number] > tier.tokens.least]
                certain += [name] if all(full) else []
                maybe += [name] if any(full) else []
        if l1_with_l2:
            hits[0] = ("L1", 0.0, hits[1][2])
        tokens = contexts[number], contexts[number - 1]
        yield Round(number, *tokens, tuple(hits), tuple(certain), tuple(maybe))
