"""A trace through the tiers of a launch, request by request, as SGLang and Mooncake move blocks.

What is modelled, and where it was read (SGLang 0.5.23, ``unified_tree_core.py``,
``unified_radix_cache.py``, ``cache_controller.py``; Mooncake ``master_service.cpp``):

- a request takes its longest prefix from L1, goes on in L2, then in the store: a query of the
  store begins where L2 ends, and fewer tokens than the threshold are not fetched;
- L1 evicts the least recently used leaf of its tree, as a whole: a node is what one request added,
  until another one ends or parts within it, which splits it, and counts as a use of both parts. A
  block with a copy in L2 lives on there alone; one without is lost, or written then
  (``write_back``);
- L2 gets a block when a request has left it in L1 (``write_through``) or has left it there twice
  (``write_through_selective``). What L1 holds too is not evicted from L2, so L2 may be full: then
  the block waits for the next request that has it. With ``write_back`` copies that L1 holds too go
  first;
- the store gets what L2 gets, once. Above the watermark it evicts a part of all its objects, by the
  end of their leases: one that is asked for is leased, and stays so long; one that was only written
  has no lease, so it goes at once where all others are leased;
- disks get what the store gets, or what it evicts, and keep the newest.

What is not: a request is done before the next one comes, so prefetch that comes too late and writes
that are still on their way; the end of an answer, which a trace does not name.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf
from random import Random
from typing import NamedTuple

from preflight.base.usage_error import UsageError
from preflight.traces.formats import Request

TIERS = ("L1", "L2", "L3", "SSD")
# SGLang's default of prefetch_threshold, in tokens (arguments of hicache_storage_backend).
PREFETCH_THRESHOLD_TOKENS = 256


class TierSizes(NamedTuple):
    """Tokens that each tier holds; None for a tier that there is not.

    l1, l2: of one cache, of which ``caches`` stand side by side. pool, disk: of the store, which
    all share: the pool up to its watermark.
    """

    l1: int
    l2: int | None = None
    pool: int | None = None
    disk: int | None = None


class StoreRules(NamedTuple):
    """When the store evicts: watermark, ratio: of all of its memory, of its objects (Mooncake's
    defaults, types.h). lease_seconds: how long what was asked for stays.

    disk_gets_evicted: disks get what leaves the memory, in place of all that is written to it.
    """

    watermark: float = 0.9
    ratio: float = 0.05
    lease_seconds: float = 0.0
    disk_gets_evicted: bool = False


class Routing(NamedTuple):
    """How requests come to caches side by side.

    how: one of ROUTINGS. cache_threshold: with less of a prompt than that routed to one before, the
    one that got the least does (sglang_router's --cache-threshold).
    """

    how: str = "round-robin"
    cache_threshold: float = 0.3


# By the requests' order; to the cache that got most of the prompt before; by the conversation; any.
ROUTINGS = ("round-robin", "cache-aware", "sticky", "random")


class Rules(NamedTuple):
    """How blocks move. whole_nodes: L1 and L2 evict nodes of the tree, not single blocks."""

    write_policy: str = "write_through"
    caches: int = 1
    routing: Routing = Routing()
    prefetch_threshold: int = PREFETCH_THRESHOLD_TOKENS
    store: StoreRules = StoreRules()
    whole_nodes: bool = True


@dataclass
class Flows:
    """What a replay comes to, by tier: accesses that hit, tokens that are not computed again, and
    blocks that were evicted; and blocks moved from tier to tier, as ("L1", "L2").

    saved: whole pages at most, and not the last token of a prompt, which is always computed.
    too_long: requests that L1 cannot hold.
    """

    requests: int = 0
    accesses: int = 0
    input_tokens: int = 0
    too_long: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    saved: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)

    def rate(self, tier: str) -> float:
        """The part of all accesses that a tier answers."""
        return self.hits[tier] / self.accesses if self.accesses else 0.0

    @property
    def missed(self) -> float:
        """The part of all accesses that no tier answers."""
        return 1 - sum(map(self.rate, TIERS)) if self.accesses else 0.0


class StorePool:
    """The store's memory and its disks: one for all caches.

    memory: blocks up to the watermark. Times are in seconds and rise.
    """

    def __init__(self, memory: int, disk: int | None, rules: StoreRules, flows: Flows) -> None:
        # When each was written, where none asked for it since; when it was last asked for.
        self._written: OrderedDict[int, float] = OrderedDict()
        self._asked: OrderedDict[int, float] = OrderedDict()
        self._disk: OrderedDict[int, None] | None = None if disk is None else OrderedDict()
        self._memory, self._disk_size, self._rules, self._flows = memory, disk or 0, rules, flows
        self._capacity = memory / rules.watermark if rules.watermark else memory

    def __len__(self) -> int:
        return len(self._written) + len(self._asked)

    def __contains__(self, block: int) -> bool:
        return block in self._asked or block in self._written

    def find(self, blocks: Sequence[int], now: float) -> list[str]:
        """Where each is, as far as there is no gap; all that are asked for are leased."""
        found: list[str] = []
        for block in blocks:
            if block in self:
                self._lease(block, now)
                found.append("L3")
            elif self._disk is not None and block in self._disk:
                found.append("SSD")
            else:
                break
        return found

    def put(self, block: int, now: float) -> None:
        """Write what is not there; who writes asks for it first."""
        if block in self:
            self._lease(block, now)
            return
        self._written[block] = now
        self._flows.moved["L2", "L3"] += 1
        if not self._rules.disk_gets_evicted:
            self._write(block)
        if len(self) > self._memory:
            self._evict(now)

    def _lease(self, block: int, now: float) -> None:
        self._written.pop(block, None)
        self._asked[block] = now
        self._asked.move_to_end(block)

    def _next(self) -> tuple[float, OrderedDict[int, float]]:
        """When the next lease ends, or ended; and where its block stands, which comes first."""
        lease = self._rules.lease_seconds
        asked = next(iter(self._asked.values()), inf) + lease
        written = next(iter(self._written.values()), inf)
        return (asked, self._asked) if asked <= written else (written, self._written)

    def _evict(self, now: float) -> None:
        """One round of the master's, of those whose leases have ended."""
        above = len(self) / self._capacity - self._rules.watermark if self._capacity else 1.0
        for _ in range(ceil(len(self) * min(1.0, max(0.0, above) + self._rules.ratio))):
            end, held = self._next()
            if end > now:
                return
            gone, _ = held.popitem(last=False)
            self._flows.evicted["L3"] += 1
            if self._rules.disk_gets_evicted:
                self._write(gone)

    def _write(self, block: int) -> None:
        if self._disk is None or block in self._disk:
            return
        self._disk[block] = None
        self._flows.moved["L3", "SSD"] += 1
        if len(self._disk) > self._disk_size:
            self._disk.popitem(last=False)
            self._flows.evicted["SSD"] += 1


class _Cache:
    """L1 and L2 of one instance, the least recently used first."""

    def __init__(
        self, l1: int, l2: int | None, pool: StorePool | None, rules: Rules, flows: Flows
    ) -> None:
        # How many requests left each there; those of them that L2 has too; those that it alone has.
        self._l1: OrderedDict[int, int] = OrderedDict()
        self._both: dict[int, None] = {}
        self._host: OrderedDict[int, None] = OrderedDict()
        # Of the last, what a request parted from its node when it was there alone; and when each
        # was used last, by the number of the request: what comes out of L1 may be older.
        self._parted: OrderedDict[int, None] = OrderedDict()
        self._used: dict[int, int] = {}
        self._requests = 0
        # The next block of the same node of the tree, but for the last one.
        self._next: dict[int, int] = {}
        self._whole_nodes = rules.whole_nodes
        self._sizes, self._pool, self._flows, self._now = (l1, l2 or 0), pool, flows, 0.0
        self._back = rules.write_policy == "write_back"
        self._after = 2 if rules.write_policy == "write_through_selective" else 1
        self._threshold = rules.prefetch_threshold

    def take(self, blocks: Sequence[int], block_tokens: int, now: float) -> list[str]:
        """Serve one request; returns the tier of each block that is found, from the first on."""
        l1, host, parted, size = self._l1, self._host, self._parted, self._sizes[0]
        self._now, self._requests = now, self._requests + 1
        blocks = blocks[:size]  # what is longer than L1 does not run at all
        found: list[str] = []
        for block in blocks:
            if block in l1:
                found.append("L1")
            elif block in host or block in parted:
                found.append("L2")
            else:
                break
        if self._whole_nodes and found:
            self._split(blocks[len(found) - 1])
        known = len(found)
        if self._pool is not None:
            self._fetch(self._pool, blocks[known:], block_tokens, found)
        if self._whole_nodes:
            self._next.update(pairwise(blocks[known : len(found)]))
            self._next.update(pairwise(blocks[len(found) :]))
        self._used.update(dict.fromkeys(blocks, self._requests))
        for block in reversed(blocks):
            if block in l1:
                l1.move_to_end(block)
                continue
            l1[block] = 0
            if block in host or block in parted:
                del (host if block in host else parted)[block]
                self._both[block] = None
                self._flows.moved["L2", "L1"] += 1
        while len(l1) > size:
            self._evict(self._oldest(l1))
        if self._sizes[1] and not self._back:
            self._write_through(blocks)
        return found

    def _fetch(
        self, pool: StorePool, wanted: Sequence[int], block_tokens: int, found: list[str]
    ) -> None:
        """From the store into L2: all that it has, or nothing where that is too little."""
        if len(wanted) * block_tokens < self._threshold:
            return
        stored = pool.find(wanted, self._now)
        if len(stored) * block_tokens < self._threshold:
            return
        for count, (block, tier) in enumerate(zip(wanted, stored, strict=False)):
            # What this request fetched already is not given up for the rest of it.
            kept = count if self._back else count + len(self._both)
            if kept >= self._sizes[1] or not self._room():
                break
            self._host[block] = None
            self._used[block] = self._requests
            self._flows.moved[tier, "L2"] += 1
            found.append(tier)

    def _write_through(self, blocks: Sequence[int]) -> None:
        """What was left in L1 often enough, from the first on: a copy needs its parent's."""
        l1, both, at, room = self._l1, self._both, 0, True
        while at < len(blocks):
            end = at + 1
            while end < len(blocks) and self._next.get(blocks[end - 1]) == blocks[end]:
                end += 1
            node, at = blocks[at:end], end
            if node[-1] in both:
                continue
            for block in node:
                l1[block] += 1
            room = room and l1[node[0]] >= self._after and self._room(len(node))
            for block in node if room else ():
                if block not in both:
                    both[block] = None
                    self._copied(block)

    def _copied(self, block: int) -> None:
        self._flows.moved["L1", "L2"] += 1
        if self._pool is not None:
            self._pool.put(block, self._now)

    def _room(self, wanted: int = 1) -> bool:
        """Make room for so many more in L2; False where it holds nothing that may go."""
        both, host, parted, used = self._both, self._host, self._parted, self._used
        while len(both) + len(host) + len(parted) + wanted > self._sizes[1]:
            if self._back and both:
                for block in self._oldest(both):
                    del both[block]
            elif host or parted:
                held = host
                if parted and (not host or used[next(iter(parted))] <= used[next(iter(host))]):
                    held = parted
                for block in self._oldest(held):
                    del held[block]
                    self._flows.evicted["L2"] += 1
                    self._forget(block)
            else:
                return False
        return True

    def _split(self, block: int) -> None:
        """End a node at ``block``; what comes behind it counts as used now."""
        rest = []
        while (after := self._next.pop(block, None)) is not None:
            rest.append((block, after))
            block = after
        self._next.update(rest[1:])
        for _, after in reversed(rest):
            if after in self._l1:
                self._l1.move_to_end(after)
            elif after in self._host:  # a write back that found no room drops the end of a node
                del self._host[after]
                self._parted[after] = None
            elif after in self._parted:
                self._parted.move_to_end(after)
            else:
                continue
            self._used[after] = self._requests

    def _oldest(self, held: Iterable[int]) -> list[int]:
        """The node that was used least recently of those there, its last block first."""
        blocks = iter(held)
        node = [next(blocks)]
        for block in blocks:
            if self._next.get(block) != node[-1]:
                break
            node.append(block)
        return node

    def _evict(self, node: Sequence[int]) -> None:
        """Take a node out of L1. With write_back one without a copy gets it now, or is lost."""
        written = self._back and self._sizes[1] and node[0] not in self._both
        room = written and self._room(len(node))
        for block in node:
            del self._l1[block]
            self._flows.evicted["L1"] += 1
            if block in self._both:
                del self._both[block]
                self._host[block] = None
            elif room:
                self._host[block] = None
                self._copied(block)
            else:
                self._forget(block)

    def _forget(self, block: int) -> None:
        self._next.pop(block, None)
        del self._used[block]


class Replay:
    """Takes requests one after the other; ``flows`` is what they have come to."""

    def __init__(self, sizes: TierSizes, rules: Rules, block_tokens: int, page_tokens: int) -> None:
        self._block, self._page, self._rules, self._sizes = block_tokens, page_tokens, rules, sizes
        self.flows = Flows()
        l1, l2, memory, disk = (None if size is None else size // block_tokens for size in sizes)
        pool = None
        if memory is not None and l2:
            pool = StorePool(memory, disk, rules.store, self.flows)
        self._caches = [_Cache(l1 or 0, l2, pool, rules, self.flows) for _ in range(rules.caches)]
        self._now = 0.0
        # To which cache each block was routed last, and the blocks that each got.
        self._routed: dict[int, int] = {}
        self._got = [0] * rules.caches
        self._random = Random(0)

    def take(self, request: Request) -> list[str]:
        """Serve one request; returns the tier of each block that was found."""
        flows = self.flows
        if self._rules.store.lease_seconds and request.seconds is not None:
            self._now = max(self._now, request.seconds)
        else:
            self._now += 1  # without leases the order alone counts
        at = self._route(request) if len(self._caches) > 1 else 0
        found = self._caches[at].take(request.blocks, self._block, self._now)
        flows.requests += 1
        flows.accesses += len(request.blocks)
        flows.input_tokens += request.input_tokens
        flows.too_long += request.input_tokens > self._sizes.l1
        most, before = (request.input_tokens - 1) // self._page * self._page, 0
        for tier in dict.fromkeys(found):
            count = found.count(tier)
            flows.hits[tier] += count
            after = min(most, before + count * self._block)
            flows.saved[tier] += after - before
            before = after
        return found

    def _route(self, request: Request) -> int:
        count, (how, threshold) = len(self._caches), self._rules.routing
        if how == "random":
            return self._random.randrange(count)
        if how == "sticky":
            if request.session is None:
                raise UsageError(
                    "--routing sticky, or the router's policy: the trace does not say which "
                    "conversation a request is of (Qwen-Bailian's chat_id, or session): give "
                    "--routing cache-aware or round-robin"
                )
            return request.session % count
        if how == "round-robin":
            return self.flows.requests % count
        blocks, routed, known = request.blocks, self._routed, 0
        while known < len(blocks) and blocks[known] in routed:
            known += 1
        if known > threshold * len(blocks):
            at = routed[blocks[known - 1]]
        else:
            at = self._got.index(min(self._got))
        routed.update(dict.fromkeys(blocks, at))
        self._got[at] += len(blocks)
        return at
