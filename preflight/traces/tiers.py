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
- the store gets what L2 gets, once; asking for a block counts as its use there. Above the watermark
  it evicts a part of all its objects, the least recently used first;
- disks get what the store gets, or what it evicts, and keep the newest.

What is not: time (a request is done before the next one comes), so leases, prefetch that comes too
late and writes that are still on their way; the end of an answer, which a trace does not name.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from preflight.base.usage_error import UsageError
from preflight.traces.formats import Request

TIERS = ("L1", "L2", "L3", "SSD")
# SGLang's default of prefetch_threshold, in tokens (arguments of hicache_storage_backend).
PREFETCH_THRESHOLD_TOKENS = 256
# sglang_router's --cache-threshold: with less of a prompt than that, the emptiest cache gets it.
ROUTER_CACHE_THRESHOLD = 0.3
# Mooncake's eviction_ratio (types.h, DEFAULT_EVICTION_RATIO).
EVICTION_RATIO = 0.05


class TierSizes(NamedTuple):
    """Tokens that each tier holds; None for a tier that there is not.

    l1, l2: of one cache, of which ``caches`` stand side by side. pool, disk: of the store, which
    all share: the pool up to its watermark.
    """

    l1: int
    l2: int | None = None
    pool: int | None = None
    disk: int | None = None


class Rules(NamedTuple):
    """How blocks move. routing: "round-robin"; "cache-aware", to the cache that has the most of a
    prompt; "sticky", by the conversation.

    disk_gets_evicted: disks get what leaves the pool, in place of all that is written to it.
    whole_nodes: L1 and L2 evict nodes of the tree, not single blocks.
    """

    write_policy: str = "write_through"
    caches: int = 1
    routing: str = "round-robin"
    prefetch_threshold: int = PREFETCH_THRESHOLD_TOKENS
    eviction_ratio: float = EVICTION_RATIO
    disk_gets_evicted: bool = False
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


class _Pool:
    """The store's memory and its disks: one for all caches."""

    def __init__(self, memory: int, disk: int | None, rules: Rules, flows: Flows) -> None:
        self.memory: OrderedDict[int, None] = OrderedDict()
        self.disk: OrderedDict[int, None] | None = None if disk is None else OrderedDict()
        self._sizes, self._rules, self._flows = (memory, disk or 0), rules, flows

    def find(self, blocks: Sequence[int]) -> list[str]:
        """Where each is, as far as there is no gap; all that are asked for were used now."""
        found: list[str] = []
        for block in blocks:
            if block in self.memory:
                self.memory.move_to_end(block)
                found.append("L3")
            elif self.disk is not None and block in self.disk:
                found.append("SSD")
            else:
                break
        return found

    def put(self, block: int) -> None:
        if block in self.memory:
            self.memory.move_to_end(block)
            return
        self.memory[block] = None
        self._flows.moved["L2", "L3"] += 1
        if not self._rules.disk_gets_evicted:
            self._write(block)
        if len(self.memory) > self._sizes[0]:
            for _ in range(max(1, int(len(self.memory) * self._rules.eviction_ratio))):
                gone, _ = self.memory.popitem(last=False)
                self._flows.evicted["L3"] += 1
                if self._rules.disk_gets_evicted:
                    self._write(gone)

    def _write(self, block: int) -> None:
        if self.disk is None or block in self.disk:
            return
        self.disk[block] = None
        self._flows.moved["L3", "SSD"] += 1
        if len(self.disk) > self._sizes[1]:
            self.disk.popitem(last=False)
            self._flows.evicted["SSD"] += 1


class _Cache:
    """L1 and L2 of one instance, the least recently used first."""

    def __init__(
        self, l1: int, l2: int | None, pool: _Pool | None, rules: Rules, flows: Flows
    ) -> None:
        # How many requests left each there; those of them that L2 has too; those that it alone has.
        self._l1: OrderedDict[int, int] = OrderedDict()
        self._both: dict[int, None] = {}
        self._host: OrderedDict[int, None] = OrderedDict()
        # The next block of the same node of the tree, but for the last one.
        self._next: dict[int, int] = {}
        self._whole_nodes = rules.whole_nodes
        self._sizes, self._pool, self._flows = (l1, l2 or 0), pool, flows
        self._back = rules.write_policy == "write_back"
        self._after = 2 if rules.write_policy == "write_through_selective" else 1
        self._threshold = rules.prefetch_threshold

    @property
    def blocks(self) -> int:
        """How many it holds."""
        return len(self._l1) + len(self._host)

    def matched(self, blocks: Sequence[int]) -> int:
        """How many it holds of a prompt, from the first on."""
        for at, block in enumerate(blocks):
            if block not in self._l1 and block not in self._host:
                return at
        return len(blocks)

    def take(self, blocks: Sequence[int], block_tokens: int) -> list[str]:
        """Serve one request; returns the tier of each block that is found, from the first on."""
        l1, host, size = self._l1, self._host, self._sizes[0]
        blocks = blocks[:size]  # what is longer than L1 does not run at all
        found: list[str] = []
        for block in blocks:
            if block in l1:
                found.append("L1")
            elif block in host:
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
        for block in reversed(blocks):
            if block in l1:
                l1.move_to_end(block)
                continue
            l1[block] = 0
            if block in host:
                del host[block]
                self._both[block] = None
                self._flows.moved["L2", "L1"] += 1
        while len(l1) > size:
            gone = self._evict()
            while l1 and self._next.get(next(iter(l1))) == gone:
                gone = self._evict()
        if self._sizes[1] and not self._back:
            self._write_through(blocks)
        return found

    def _fetch(
        self, pool: _Pool, wanted: Sequence[int], block_tokens: int, found: list[str]
    ) -> None:
        """From the store into L2: all that it has, or nothing where that is too little."""
        if len(wanted) * block_tokens < self._threshold:
            return
        stored = pool.find(wanted)
        if len(stored) * block_tokens < self._threshold:
            return
        for block, tier in zip(wanted, stored, strict=False):
            if not self._room():
                break
            self._host[block] = None
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
            self._pool.put(block)

    def _room(self, wanted: int = 1) -> bool:
        """Make room for so many more in L2; False where it holds nothing that may go."""
        while len(self._both) + len(self._host) + wanted > self._sizes[1]:
            if self._back and self._both:
                del self._both[next(iter(self._both))]
            elif self._host:
                gone = self._drop()
                while self._host and self._next.get(next(iter(self._host))) == gone:
                    gone = self._drop()
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
            for held in (self._l1, self._host):
                if after in held:  # a write back that found no room drops the end of a node
                    held.move_to_end(after)

    def _drop(self) -> int:
        """The last of L2."""
        block, _ = self._host.popitem(last=False)
        self._flows.evicted["L2"] += 1
        self._next.pop(block, None)
        return block

    def _evict(self) -> int:
        """The last of L1."""
        block, _ = self._l1.popitem(last=False)
        self._flows.evicted["L1"] += 1
        if block in self._both:
            del self._both[block]
            self._host[block] = None
        elif self._back and self._sizes[1] and self._room():
            self._host[block] = None
            self._copied(block)
        else:
            self._next.pop(block, None)
        return block


class Replay:
    """Takes requests one after the other; ``flows`` is what they have come to."""

    def __init__(self, sizes: TierSizes, rules: Rules, block_tokens: int, page_tokens: int) -> None:
        self._block, self._page, self._rules, self._sizes = block_tokens, page_tokens, rules, sizes
        self.flows = Flows()
        l1, l2, memory, disk = (None if size is None else size // block_tokens for size in sizes)
        pool = None if memory is None or not l2 else _Pool(memory, disk, rules, self.flows)
        self._caches = [_Cache(l1 or 0, l2, pool, rules, self.flows) for _ in range(rules.caches)]

    def take(self, request: Request) -> list[str]:
        """Serve one request; returns the tier of each block that was found."""
        flows = self.flows
        found = self._routed(request).take(request.blocks, self._block)
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

    def _routed(self, request: Request) -> _Cache:
        caches, routing = self._caches, self._rules.routing
        if len(caches) == 1 or routing == "round-robin":
            return caches[self.flows.requests % len(caches)]
        if routing == "sticky":
            if request.session is None:
                raise UsageError(
                    "--routing sticky: the trace does not say which conversation a request is of "
                    "(Qwen-Bailian's chat_id, or session): give cache-aware or round-robin"
                )
            return caches[request.session % len(caches)]
        held = [cache.matched(request.blocks) for cache in caches]
        best = max(held)
        if best > ROUTER_CACHE_THRESHOLD * len(request.blocks):
            return caches[held.index(best)]
        return min(caches, key=lambda cache: cache.blocks)
