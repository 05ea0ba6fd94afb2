"""Which division of the memory, between L2 and the segment, answers the most of a workload.

A grid of divisions, all of which fit, is replayed: the rounds of a multi-turn workload, or a
recorded trace. Their tiers are those of one launch that was sized, computed anew for other sizes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from checks.framework.root import Root
from checks.framework.units import GIB, GIGABYTE, MIB
from checks.framework.unknown import Unknown, UnknownFactError, require
from preflight.base.usage_error import UsageError
from preflight.cache_sizing.capacity.answer import (
    CapacityAnswer,
    CapacityRequest,
    ServerCapacity,
    compute_capacity,
)
from preflight.cache_sizing.capacity.deployment import DEFAULT_WRITE_POLICY, Bounds, Cluster
from preflight.cache_sizing.capacity.rounds import kept_part, replay_rounds
from preflight.cache_sizing.capacity.tiers import host_tier, page_objects, pool_tier, segments
from preflight.cache_sizing.capacity.trace_answer import (
    TraceAnswer,
    TraceRequest,
    page_of,
    replay_plans,
    trace_answers,
)
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload, workload_of
from preflight.cache_sizing.fit.judged_values import CompareBy
from preflight.cache_sizing.fit.launch_values import SizeValues
from preflight.cache_sizing.traces.formats import open_trace
from preflight.cache_sizing.traces.tiers import BUFFERED_PART
from preflight.needs.launch_sizing import LaunchInputs
from preflight.processes.processes import LaunchOptions

# Divisions that are replayed at first, and how often around the best so far, nearer each time.
GRID, _AROUND = 10, 4
# While the best is looked for, more clients are replayed as so many, with tiers that are smaller by
# as much: at first, and for what comes close. What is told is replayed with all clients.
_FEW_CLIENTS, _CLIENTS = 32, 64
_CONVERSATIONS = 2
# Divisions of the first that are looked at again: with few clients they are up to two hundredths
# off.
_RUNNERS_UP = 2
# With L2 as staging alone, conversations that it holds at a time.
_STAGED = 8
BUFFER_ONLY = "staging"
_NOT_CHOSEN = ("now", BUFFER_ONLY)
# Where nobody says what is asked: of what the largest tier of any division holds. With less all
# divisions keep the same, with much more none keeps anything.
_PRESSURE_PERCENT = 125
# What one GiB more buys is measured with so many: a single one is lost among whole blocks.
_MORE_GIB = 16
# SGLang's page on HiCache with Mooncake: bench_multiturn.py, 10 rounds of 2,048 tokens.
_ORIGIN = "as the HiCache pages' benchmark has them"
PUBLISHED = MultiTurnWorkload(80, 10, 2048, 2048, 1, _ORIGIN, barrier=True)
Rates = tuple[tuple[float, float], ...]
# (tier, first round in which it may be full, or None), of the last server.
Full = tuple[tuple[str, int | None], ...]
Tell = Callable[[str], None]


class Frontier(NamedTuple):
    """The largest divisions of the memory that a host takes, as points on a line from the least L2
    to the most.

    Attributes:
        points: Ordered by L2, the least first.
        ranks: On this host, each with an L2 of that size.
        share: This host's part (0 to 1) of the segment size that is set for all hosts.
    """

    points: tuple[SizeValues, ...]
    ranks: int
    share: float

    @property
    def _ends(self) -> tuple[int, int]:
        first, last = self.points[0].l2_bytes or 0, self.points[-1].l2_bytes or 0
        return first // GIGABYTE, last // GIGABYTE

    def at(self, l2_bytes: int) -> SizeValues:
        """Return the division with ``l2_bytes`` of L2 on each rank.

        Its segment lies on the line between the two nearest points, rounded down to whole MiB, at
        least 1 MiB.
        """
        points = self.points
        below = [points[0], *(each for each in points if (each.l2_bytes or 0) <= l2_bytes)][-1]
        above = next((each for each in points if (each.l2_bytes or 0) >= l2_bytes), points[-1])
        first, last = below.l2_bytes or 0, above.l2_bytes or 0
        part = (l2_bytes - first) / (last - first) if last > first else 0.0
        most, least = below.segment_bytes or 0, above.segment_bytes or 0
        return SizeValues(l2_bytes, max(MIB, int(most + part * (least - most)) // MIB * MIB))

    def nearest(self, distance: Callable[[SizeValues], float]) -> SizeValues:
        """Return the division with the least ``distance``, of those with a whole GB of L2."""
        first, last = self._ends
        return min((self.at(size * GIGABYTE) for size in range(first, last + 1)), key=distance)

    def goals(self, now: SizeValues) -> Iterator[tuple[str, SizeValues]]:
        """Yield (name, division) of other goals, to compare with the best division.

        Args:
            now: The sizes of the launch as written. ``balanced``: L2 and the segment take about the
                same memory. ``l2``: the segment of ``now``. ``pool``: the L2 of ``now``.
            now: Both sizes, which may not fit. A goal is left out if ``now`` lacks a size that the
                goal keeps.
        """

        def uneven(values: SizeValues) -> float:
            l2, segment = values.l2_bytes or 0, values.segment_bytes or 0
            return abs(l2 * self.ranks - segment * self.share)

        yield "balanced", self.nearest(uneven)
        if now.segment_bytes:
            segment = now.segment_bytes
            near = self.nearest(lambda values: abs((values.segment_bytes or 0) - segment))
            yield "l2", near._replace(segment_bytes=segment)
        if now.l2_bytes:
            yield "pool", self.at(now.l2_bytes)
        if now.l2_bytes and now.segment_bytes:
            yield "now", now

    def grid(self, count: int) -> Iterator[SizeValues]:
        """Yield ``count`` divisions (2 or more), evenly in L2, both ends among them."""
        first, last = self._ends
        sizes = (first + (last - first) * at // (count - 1) for at in range(count))
        yield from (self.at(size * GIGABYTE) for size in dict.fromkeys(sizes))


class Division(NamedTuple):
    """One division of the memory with the cache hits that a replay of the workload gave.

    Attributes:
        about: ``best``, ``now``, or a goal's name; "" for a division that was only tried.
        rates: For each replayed server (least, most). With rounds they are the part of the tokens
            seen before that is still kept, with a trace the part of all accesses.
        tier_tokens: (tier, tokens that it holds, of all servers).
        unique: Tokens that are held at least once.
        full: The first round in which each tier is full; () for a trace, and while the best is
            looked for.
    """

    about: str
    values: SizeValues
    rates: Rates
    tier_tokens: tuple[tuple[str, int], ...]
    unique: int
    full: Full = ()

    @property
    def kept(self) -> float:
        """The rate of this division as one number: the mean over servers, and of least and most."""
        return sum(least + most for least, most in self.rates) / 2 / len(self.rates)


class DivisionChoice(NamedTuple):
    """Why a division was chosen: the hits of each division that was tried.

    Attributes:
        tried: The chosen division first, then those with a name.
        workload: None for a trace.
        trace: Its path.
        ceiling: The part of the trace that a cache of any size could answer.
        next_gib: (size, tokens of the trace that one GiB more would save), empty without a trace.
        capacity, replay: The best division's tiers, and the trace replayed on them; None without a
            trace.
    """

    tried: tuple[Division, ...]
    notes: tuple[str, ...] = ()
    workload: MultiTurnWorkload | None = None
    trace: str = ""
    ceiling: float = 1.0
    next_gib: tuple[tuple[str, int], ...] = ()
    capacity: CapacityAnswer | None = None
    replay: TraceAnswer | None = None

    @property
    def what(self) -> str:
        """A phrase for a person: the trace or the workload by which divisions are compared."""
        if self.workload is None:
            return f"hits of {self.trace}"
        clients, rounds, length = self.workload[:3]
        return (
            f"of what {clients:,} clients ask again in {rounds} rounds of {length:,} tokens "
            f"({self.workload.origin}), by how the memory is shared"
        )


class Chooser:
    """Orders divisions of a launch's memory by the cache hits of a replay.

    Call ``begin`` first.
    """

    def __init__(
        self,
        basis: CompareBy,
        now: SizeValues,
        options: LaunchOptions,
        root: Root,
        tell: Tell,
    ) -> None:
        """Replay nothing yet.

        Args:
            basis: The workload or trace to replay.
            now: The sizes that the launch has, which may not fit.
            tell: Called with a line of progress.
        """
        self._basis, self._now, self._tell = basis, now, tell
        self._options, self._root, self._count = options, root, 0
        self._tried: list[Division] = []
        self._choice = DivisionChoice(())
        self.workload: MultiTurnWorkload | None = None

    def begin(self, values: SizeValues, inputs: LaunchInputs, capped: bool = True) -> int:
        """Take the launch from which all divisions are computed, and return the least useful L2 of
        a rank, in bytes.

        That is 1 GB, or more if SGLang demands an L2 larger than the GPU's cache.

        Args:
            values: The sizes that ``inputs`` were sized with.
            capped: Never return more than the L2 of ``values``.

        Raises:
            UnknownFactError: If L2, L3 or the workload is not known, and UsageError for an
                impossible workload.
        """
        request = CapacityRequest(Cluster(self._basis.hosts))
        self._values = values
        self._base = compute_capacity(inputs, self._options, self._root, request, {})
        parts = segments(inputs, request.cluster)
        self._segments = () if isinstance(parts, Unknown) else parts
        size, least = values.l2_bytes or GIGABYTE, GIGABYTE
        for server in self._base.servers:
            for tier in (server.tiers.host, server.tiers.store):
                if tier is not None and isinstance(tier.tokens, Unknown):
                    raise UnknownFactError(tier.tokens)
            gpu, tokens = server.tiers.gpu.group_tokens, _l2_tokens(server)
            demanded = server.deployment.sized.release.must_exceed_device
            if demanded and isinstance(gpu, Bounds) and tokens:
                least = max(least, (gpu.most * size // tokens // GIGABYTE + 1) * GIGABYTE)
        if self._basis.trace is None:
            workload = workload_of(self._basis.workload, inputs.processes)
            if isinstance(workload, Unknown):
                raise UnknownFactError(workload)
            self.workload = workload
        return min(least, size) if capped else least

    def capacity(self, values: SizeValues) -> CapacityAnswer:
        """Return the launch's tiers with the sizes ``values``.

        Their bytes are not changed.
        """
        share = (values.segment_bytes or 0) / (self._values.segment_bytes or 1)
        parts = tuple(each._replace(bytes=round(each.bytes * share)) for each in self._segments)

        def resized(server: ServerCapacity) -> ServerCapacity:
            """Return the server with L2 and the store of that size."""
            deployment, tiers = server.deployment, server.tiers
            request = require(deployment.request)
            if values.l2_bytes:
                request = request._replace(size_gb=values.l2_bytes // GIGABYTE)
                tiers = tiers._replace(host=host_tier(deployment._replace(request=request)))
            store = pool_tier(deployment, page_objects(request), parts, server.eviction)
            return server._replace(tiers=tiers._replace(store=store))

        return self._base._replace(servers=tuple(map(resized, self._base.servers)))

    def kept(self, values: SizeValues, clients: int | None = None, buffers: bool = False) -> float:
        """Return the least part (0 to 1) of the tokens seen before that a server still keeps.

        Args:
            clients, buffers: Of ``replay_workload``.
        """
        return min(low for low, _ in self._replay(self.capacity(values), clients, buffers)[0])

    def _replay(
        self, capacity: CapacityAnswer, clients: int | None = None, buffers: bool = False
    ) -> tuple[Rates, Full]:
        assert self.workload is not None
        return replay_workload(capacity, self.workload, clients, buffers)

    def order(self, frontier: Frontier) -> list[SizeValues]:
        """Replay the workload or the trace on divisions of the frontier and on its goals; return
        their sizes, the best first.

        The launch's own sizes and the division with L2 as staging are replayed, but not returned.
        """
        if self._basis.trace is None:
            self._tried = self._tried_on_rounds(frontier)
            self._choice = DivisionChoice((), (), self.workload)
        else:
            self._tried = self._tried_on_trace(frontier)
        return [division.values for division in self._tried if division.about not in _NOT_CHOSEN]

    def _tried_on_rounds(self, frontier: Frontier) -> list[Division]:
        """Replay the rounds on a grid of divisions, then with more clients on the goals and around
        the grid's best.

        Return the divisions that were replayed with more clients, the best first. After them comes
        the grid without its best.

        Without a workload, SGLang's published one with more clients than any division holds becomes
        ``self.workload``.
        """
        grid = list(frontier.grid(GRID))
        if self.workload is None:  # the published one, with more clients than a division holds
            capacities = [self.capacity(values) for values in grid]
            page = capacities[0].servers[0].page_tokens or 1
            each = PUBLISHED.cached_tokens(PUBLISHED.rounds, page)
            most = max(map(_unique, capacities)) * _PRESSURE_PERCENT // 100
            self.workload = PUBLISHED._replace(clients=max(1, most // each))
        tried = [self._try_rounds("", values, _FEW_CLIENTS) for values in grid]
        tried.sort(key=self._sort_key, reverse=True)
        sizes = sorted((division.l2_bytes or 0) // GIGABYTE for division in grid)
        step = max(1, (sizes[-1] - sizes[0]) // (len(sizes) - 1 or 1))
        goals = dict(frontier.goals(self._now))
        now = goals.pop("now", None)
        best = [self._try_rounds(about, values, _CLIENTS) for about, values in goals.items()]
        # Finely: what comes close, and around it; then around the best, nearer each time.
        again = {(division.values.l2_bytes or 0) // GIGABYTE for division in tried[:_RUNNERS_UP]}
        done: set[int] = set()
        for _ in range(_AROUND):
            for size in sorted(again - done):
                values = frontier.at(size * GIGABYTE)
                best.append(self._try_rounds("", values, _CLIENTS))
            first, step = not done, max(1, step // 2)
            done |= again
            middle = (max(best, key=self._sort_key).values.l2_bytes or 0) // GIGABYTE
            middles = again if first else {middle}
            near = {size + by for size in middles for by in (-step, step)}
            again = {size for size in near if sizes[0] <= size <= sizes[-1]}
        best.sort(key=self._sort_key, reverse=True)
        # As all clients find it no goal is better than the best.
        shown = [self._told(each) for at, each in enumerate(best) if each.about or not at]
        shown.sort(key=self._sort_key, reverse=True)
        best = shown + [each for each in best[1:] if not each.about]
        best += self._buffered(frontier)
        if now is not None:
            best.append(Division("now", now, (), *_tier_numbers(self.capacity(now))))
        return best + tried[_RUNNERS_UP:]

    def staged_bytes(self, values: SizeValues) -> int:
        """Return the L2 of a rank that stages ``_STAGED`` conversations, in bytes (whole GB).

        Returns:
            0 if a server only decodes, lacks buffer_only mode or has it on, or its L2 is not known.
        """
        assert self.workload is not None
        length, sizes = self.workload.context_tokens(self.workload.rounds), []
        for server in self.capacity(values).servers:
            deployment, tokens = server.deployment, _l2_tokens(server)
            able = deployment.sized.release.buffer_only and deployment.server.mode != "decode"
            if not able or deployment.buffers or not tokens:
                return 0
            staged = _STAGED * length / BUFFERED_PART
            sizes.append(int(staged / tokens * (values.l2_bytes or 0)))
        return -(-max(sizes) // GIGABYTE) * GIGABYTE

    def _buffered(self, frontier: Frontier) -> Iterator[Division]:
        """Yield one division with L2 as staging alone.

        Nothing if ``staged_bytes`` is 0, or more than the largest L2 of the frontier.
        """
        l2 = self.staged_bytes(frontier.points[0])
        if l2 and l2 <= (frontier.points[-1].l2_bytes or 0):
            values = frontier.at(max(frontier.points[0].l2_bytes or 0, l2))
            yield Division(BUFFER_ONLY, values, (), *_tier_numbers(self.capacity(values)))

    def _tried_on_trace(self, frontier: Frontier) -> list[Division]:
        """Replay the trace on a grid of divisions and on the goals; return all these divisions, the
        best first.

        Keeps the replay of the best, with its notes, for ``choice_of``.
        """
        every = [("", values) for values in frontier.grid(GRID)]
        every += frontier.goals(self._now)
        capacities = [self.capacity(values) for _, values in every]
        now = dict(_tier_numbers(self.capacity(self._now))[0])
        sizes = ("L2", self._now.l2_bytes), ("L3", self._now.segment_bytes)
        marks = tuple((f"now: {name}", now[name]) for name, size in sizes if size and now.get(name))
        answers = self._replayed(capacities, marks)
        tried = [
            Division(about, values, _trace_rates(answer), *_tier_numbers(each))
            for (about, values), each, answer in zip(every, capacities, answers, strict=True)
        ]
        order = sorted(range(len(tried)), key=lambda at: self._sort_key(tried[at]), reverse=True)
        drawn, capacity = answers[order[0]], capacities[order[0]]
        pairs = zip(capacity.servers, drawn.servers, strict=True)
        unknown = ((x.subject, why.reason) for x, why in pairs if isinstance(why, Unknown))
        left_out = (f"{subject}: not replayed: {reason}" for subject, reason in unknown)
        notes = (*drawn.notes, *left_out)
        name, ceiling = self._basis.trace or "", drawn.curve.ceiling
        self._choice = DivisionChoice((), notes, None, name, ceiling, (), capacity, drawn)
        return [tried[at] for at in order]

    def _try_rounds(self, about: str, values: SizeValues, clients: int) -> Division:
        capacity, self._count = self.capacity(values), self._count + 1
        self._tell(f"fit: {self._count} divisions of the memory replayed")
        rates, _ = self._replay(capacity, clients)
        return Division(about, values, rates, *_tier_numbers(capacity))

    def _sort_key(self, division: Division) -> tuple[bool, float, int, int]:
        """Return the key to sort divisions by, larger for a better one: whether the division may be
        chosen, the part kept (to a thousandth), unique tokens, and the bytes of L2.
        """
        is_choice, l2_bytes = division.about not in _NOT_CHOSEN, division.values.l2_bytes or 0
        return is_choice, round(division.kept, 3), division.unique, l2_bytes

    def choice_of(self, values: SizeValues) -> DivisionChoice | None:
        """Return why ``values`` were chosen: the division of ``values``, then those with a name,
        the best first.

        Returns:
            None if nothing was tried.
        """
        if not self._tried:
            return None
        alike = (each for each in self._tried if each.values.l2_bytes == values.l2_bytes)
        near = next((each for each in alike if each.about != BUFFER_ONLY), self._tried[0])
        best = Division("best", values, near.rates, *_tier_numbers(self.capacity(values)))
        named = [self._told(each) for each in (best, *self._tried) if each.about]
        named[1:] = sorted(named[1:], key=lambda each: -each.kept)
        return self._choice._replace(tried=tuple(named), next_gib=self._next_gib(values))

    def _told(self, division: Division) -> Division:
        """Return the division as all clients of the workload find it; unchanged for a trace."""
        if self.workload is None:
            return division
        staging = division.about == BUFFER_ONLY
        rates, full = self._replay(self.capacity(division.values), buffers=staging)
        return division._replace(rates=rates, full=full)

    def why_nothing_kept(self) -> str:
        """Return why no division that was tried keeps anything, with the way out; "" if one does.

        Whether the server starts at all is open if L1 may hold no token, and at most less than half
        of a conversation (DeepSeek-V3 on 8 H20; two A10 of a published run hold nearly one).
        """
        certain = (least for each in self._tried for least, _ in each.rates)
        if not self._tried or any(f"{least:.0%}" != "0%" for least in certain):
            return ""
        if self._choice.trace and not self._choice.ceiling:
            return ""  # nothing is asked twice: no cache of any size keeps something
        work = self.workload
        half = 1 if work is None else work.context_tokens((work.rounds + 1) // 2)
        for server in self._base.servers:
            tokens = server.tiers.gpu.group_tokens
            if isinstance(tokens, Bounds) and not tokens.least and tokens.most < half:
                return (
                    f"L1 of {server.subject} holds {tokens.least:,} to {tokens.most:,} tokens, so "
                    "that no division of the memory keeps anything for certain: give "
                    "--mem-fraction-static, or more GPUs"
                )
        if any(f"{each.kept:.0%}" != "0%" for each in self._tried):
            return ""
        return (
            "no division of the memory keeps anything of what is asked again: give --goal l2 or "
            "--goal pool for sizes alone"
        )

    def _next_gib(self, values: SizeValues) -> tuple[tuple[str, int], ...]:
        """Return (size, tokens of the trace that one more GiB would save) for L2 and the segment.

        Returns:
            () without a trace, or if the trace came from stdin and cannot be read again.
        """
        if self._basis.trace in (None, "-"):
            return ()
        more, (l2, segment, _) = _MORE_GIB * GIB, values
        sizes = (l2, segment), ((l2 or 0) + more, segment), (l2, (segment or 0) + more)
        answers = self._replayed([self.capacity(SizeValues(*each)) for each in sizes])
        saved = ([each.least.saved.values() for each in answer.replayed] for answer in answers)
        base, l2, segment = (sum(map(sum, each)) for each in saved)
        return ("l2", (l2 - base) // _MORE_GIB), ("segment", (segment - base) // _MORE_GIB)

    def _replayed(
        self, capacities: Sequence[CapacityAnswer], marks: tuple[tuple[str, int], ...] = ()
    ) -> tuple[TraceAnswer, ...]:
        """Replay the trace once, on all of ``capacities``; return an answer for each, in order.

        Args:
            marks: (label, tokens) to mark on the curve.
        """
        trace = open_trace(self._basis.trace or "", page_of(capacities[0]))
        return trace_answers(capacities, trace, TraceRequest(marks=marks), self._tell)


def _l2_tokens(server: ServerCapacity) -> int:
    """Return the least tokens of L2 of one cache; 0 without L2, or if they are not known."""
    host = server.tiers.host
    tokens = None if host is None else host.group_tokens
    return tokens.least if isinstance(tokens, Bounds) else 0


def _tier_numbers(capacity: CapacityAnswer) -> tuple[tuple[tuple[str, int], ...], int]:
    """Return (tier, least tokens of all servers together), and the tokens held at least once."""
    tokens: dict[str, int] = {}
    for server in capacity.servers:
        for tier in server.tiers.shown:
            if isinstance(tier.tokens, Bounds):
                tokens[tier.name] = tokens.get(tier.name, 0) + tier.tokens.least
    return tuple(tokens.items()), _unique(capacity)


def _unique(capacity: CapacityAnswer) -> int:
    """Return how many different tokens L1, L2 and the store hold.

    All three keep the same tokens, but with another policy than write_through L1 and L2 add up. SSD
    is left out.
    """
    in_servers, in_store = 0, 0
    for server in capacity.servers:
        tiers = server.tiers
        both = (tier and tier.tokens for tier in (tiers.gpu, tiers.host))
        front = [tokens.least for tokens in both if isinstance(tokens, Bounds)]
        copies = server.deployment.write_policy == DEFAULT_WRITE_POLICY
        in_servers += max(front, default=0) if copies else sum(front)
        if tiers.store is not None and isinstance(tiers.store.tokens, Bounds):
            in_store = max(in_store, tiers.store.tokens.least)
    return max(in_servers, in_store)


def replay_workload(
    capacity: CapacityAnswer,
    workload: MultiTurnWorkload,
    most_clients: int | None = None,
    buffers: bool = False,
) -> tuple[Rates, Full]:
    """Replay a workload; return for each server (least, most) of the part of the tokens seen before
    that it still keeps, and the first round in which each tier is full.

    A server that cannot be replayed is left out.

    Args:
        most_clients: Replay no more clients, and where the bounds of L1 are near, with the least
            that the tiers hold alone, which is near enough to compare divisions.
        buffers: As if L2 were staging (buffer_only).

    Raises:
        UnknownFactError: If no server can be replayed.
    """
    rates: list[tuple[float, float]] = []
    full: dict[str, int | None] = {}
    plans = replay_plans(capacity, TraceRequest())
    for server, plan in zip(capacity.servers, plans, strict=True):
        if isinstance(plan, Unknown):
            continue
        near = most_clients is not None and plan.sizes[0].l1 * 10 > plan.sizes[-1].l1 * 9
        sizes = plan.sizes[:1] if near else plan.sizes
        if buffers:
            sizes = tuple(size._replace(prefetch=None) for size in sizes)
        rules = plan.rules._replace(buffers=buffers or plan.rules.buffers)
        plan = plan._replace(sizes=sizes, rules=rules)
        # Smaller tiers have to hold some conversations still, or no request runs.
        room = max(1, sizes[0].l1) // (_CONVERSATIONS * workload.context_tokens(workload.rounds))
        clients = most_clients and max(most_clients, workload.clients // max(1, room))
        ends = replay_rounds(plan, workload, page_of(capacity), clients)
        rates.append(kept_part(ends))
        for tier in server.tiers.shown:
            rounds = (
                number
                for turns in ends
                for number, turn in enumerate(turns, 1)
                if tier.name in turn.full
            )
            full[tier.name] = min(rounds, default=None)
    if not rates:
        raise UnknownFactError(next(plan for plan in plans if isinstance(plan, Unknown)))
    return tuple(rates), tuple(full.items())


def _trace_rates(answer: TraceAnswer) -> Rates:
    """Return the (least, most) hit rate of each server that is replayed.

    Raises:
        UsageError: If no server is replayed.
    """
    if not answer.replayed and isinstance(answer.servers[0], Unknown):
        raise UsageError(f"--trace: {answer.servers[0].reason}")
    both = (sorted((1 - each.least.missed, 1 - each.most.missed)) for each in answer.replayed)
    return tuple((least, most) for least, most in both)
