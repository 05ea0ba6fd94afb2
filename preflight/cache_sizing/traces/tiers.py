"""A trace through the tiers of a launch, request by request, as SGLang and Mooncake move blocks.

What is modelled, and where it was read (SGLang 0.5.23, ``unified_tree_core.py``,
``unified_radix_cache.py``, ``scheduler.py``; 0.5.18, ``hiradix_cache.py``; Mooncake
``master_service.cpp``):

- a request takes its longest prefix from L1, goes on in L2, then in the store: a query of the
  store begins where L2 ends, if L2 has a copy of the prefix; fewer tokens than the threshold are
  not fetched;
- L1 and L2 are one tree. A node is what one request added, until another one ends or parts within
  it, which splits it, and counts as a use of the rest. L1 evicts the least recently used leaf, as a
  whole: with a copy in L2 it lives on in L2 alone; without, it is lost, or written then
  (``write_back``). L2 evicts the least recently used leaf that it alone holds;
- L2 gets a node when a request has left it in L1 (``write_through``) or two have
  (``write_through_selective``). What L1 holds too is not evicted from L2, so L2 may be full: then
  the node waits for the next request that has it. With ``write_back`` copies that L1 holds too go
  first, those of its leaves last;
- the store gets what L2 gets, once. Above the watermark it evicts a part of all its objects, by the
  end of their leases: one that is asked for is leased, and stays so long; one that was only written
  has no lease, so it goes at once where all others are leased;
- with ``buffer_only`` L2 keeps nothing (0.5.23, ``buffer_mode/pipeline.py``): what is left in L1
  goes through it into the store, and comes back through it, as a whole or not at all;
- disks get what the store gets, or what it evicts, and keep the newest.

What is not: a request is done before the next one comes, so prefetch that comes too late and writes
that are still on their way; the end of an answer, which a trace does not name.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import ceil, inf
from random import Random
from typing import NamedTuple

from preflight.base.usage_error import UsageError
from preflight.cache_sizing.traces.formats import Request

TIERS = ("L1", "L2", "L3", "SSD")
# SGLang's default of prefetch_threshold, in tokens (arguments of hicache_storage_backend).
PREFETCH_THRESHOLD_TOKENS = 256
# Of L2 that is staging alone: what may be under prefetch.
BUFFERED_PART = 0.9


class TierSizes(NamedTuple):
    """Tokens that each tier holds; None for a tier that does not exist.

    Attributes:
        l1, l2: Of one cache; ``Rules.caches`` such caches stand side by side.
        store, disk: Shared by all caches; of the store its memory up to the watermark.
        prefetch: A request that lacks more gets nothing from the store; None for no limit.
    """

    l1: int
    l2: int | None = None
    store: int | None = None
    disk: int | None = None
    prefetch: int | None = None


class StoreRules(NamedTuple):
    """When the store evicts; the defaults are Mooncake's (types.h).

    Attributes:
        watermark: The filled part of its memory (0 to 1) above which it does.
        ratio: The part of all objects that goes at once.
        lease_seconds: How long an object that was asked for stays.
        disk_gets_evicted: Disks get only what leaves the memory, not all that is written to it.
    """

    watermark: float = 0.9
    ratio: float = 0.05
    lease_seconds: float = 0.0
    disk_gets_evicted: bool = False


class Routing(NamedTuple):
    """How requests are routed to caches side by side.

    Attributes:
        how: Round-robin (by the requests' order), cache-aware (to the cache that got most of the
            prompt before), sticky (by the conversation) or random.
        cache_threshold: For cache-aware only. If no more than this part of a prompt (0 to 1) was
            routed before, the cache that got the least takes it.
    """

    how: str = "round-robin"
    cache_threshold: float = 0.3


class Rules(NamedTuple):
    """How blocks move between tiers.

    Attributes:
        caches: How many stand side by side.
        prefetch_threshold: Fewer tokens are not fetched from the store.
        whole_nodes: What a request adds becomes one node, which L1 and L2 evict as a whole; else
            every block is a node.
        unified: SGLang's UnifiedRadixCache. HiRadixCache, which came before, makes room in L2 for a
            whole copy, or in L1 for all that it loads, whatever is free; it also keeps copies of
            what L1 holds.
        buffers: L2 is staging for the store (buffer_only), nine tenths of which may be under
            prefetch.
        stores: What L2 gets goes to the store too.
        partial: If L2 has no room for all blocks that are missing, fewer are asked for.
        asks: When the store is asked for more. ``copied``: if L2 has the end of what was found, or
            nothing was. ``loaded``: if L2 has the end of what L1 had. ``always``: in any case, but
            nothing is found if only L1 has that end.
    """

    write_policy: str = "write_through"
    caches: int = 1
    routing: Routing = Routing()
    prefetch_threshold: int = PREFETCH_THRESHOLD_TOKENS
    store: StoreRules = StoreRules()
    whole_nodes: bool = True
    unified: bool = True
    buffers: bool = False
    stores: bool = True
    asks: str = "copied"
    partial: bool = True


@dataclass
class Flows:
    """The sums of a replay, by tier: accesses that hit, tokens that need no computing, blocks
    evicted, and blocks moved from tier to tier, as ("L1", "L2").

    Attributes:
        too_long: Requests that L1 cannot hold.
        asked: Blocks that the store was asked for.
        saved: Tokens in whole pages, and never the last token of a prompt, which is always
            computed.
        full: Tiers that had no room for something.
    """

    requests: int = 0
    accesses: int = 0
    input_tokens: int = 0
    too_long: int = 0
    asked: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    saved: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    full: set[str] = field(default_factory=set)

    def rate(self, tier: str) -> float:
        """Return the part of all accesses (0 to 1) that this tier answers."""
        return self.hits[tier] / self.accesses if self.accesses else 0.0

    @property
    def missed(self) -> float:
        """The part of all accesses (0 to 1) that no tier answers."""
        return 1 - sum(map(self.rate, TIERS)) if self.accesses else 0.0


class StorePool:
    """A replay's store: its memory and its disks.

    ``now`` is a time in seconds that never falls.
    """

    def __init__(self, memory: int, disk: int | None, rules: StoreRules, flows: Flows) -> None:
        """Begin empty.

        Args:
            disk: Blocks that the disks hold; None without disks.
        """
        # When each was written, where none asked for it since; when it was last asked for.
        self._written: OrderedDict[int, float] = OrderedDict()
        self._asked: OrderedDict[int, float] = OrderedDict()
        self._disk: OrderedDict[int, None] | None = None if disk is None else OrderedDict()
        self._memory, self._disk_size, self._rules, self._flows = memory, disk or 0, rules, flows
        self._capacity = memory / rules.watermark if rules.watermark else memory
        self._writes_through = disk is not None and not rules.disk_gets_evicted

    def __len__(self) -> int:
        return len(self._written) + len(self._asked)

    def __contains__(self, block: int) -> bool:
        return block in self._asked or block in self._written

    def find(self, blocks: Sequence[int], now: float) -> list[str]:
        """Return the tier ("L3" or "SSD") of each block, up to the first that is missing.

        Blocks in memory get a new lease.
        """
        tiers: list[str] = []
        asked, written = self._asked, self._written
        for block in blocks:
            if block in asked or block in written:
                self._lease(block, now)
                tiers.append("L3")
            elif self._disk is not None and block in self._disk:
                tiers.append("SSD")
            else:
                break
        return tiers

    def put(self, blocks: Iterable[int], now: float) -> None:
        """Write the blocks that the memory does not have; renew the leases of blocks that it has.

        Evicts if the memory is then above its watermark.
        """
        written, asked, new = self._written, self._asked, 0
        room = self._memory - len(self)
        for block in blocks:
            if block in asked or block in written:
                self._lease(block, now)
                continue
            written[block] = now
            new += 1
            if self._writes_through:
                self._write(block)
            if new > room:
                room += self._evict(now)
        if new:
            self._flows.moved["L2", "L3"] += new

    def _lease(self, block: int, now: float) -> None:
        if self._written.pop(block, None) is None:
            del self._asked[block]
        self._asked[block] = now

    def _evict(self, now: float) -> int:
        """Run one round of the master's eviction, up to the first block that is still leased.

        Return how many blocks went.
        """
        (watermark, ratio, lease, to_disk), went = self._rules, 0
        all_asked, all_written = self._asked, self._written
        self._flows.full.add("L3")
        count = len(all_asked) + len(all_written)
        above = count / self._capacity - watermark if self._capacity else 1.0
        part = ratio + above if above > 0 else ratio
        most = ceil(count * part) if part < 1 else count
        asked = next(iter(all_asked.values())) + lease if all_asked else inf
        written = next(iter(all_written.values())) if all_written else inf
        while went < most and (asked <= now or written <= now):
            from_asked = asked <= written
            gone, _ = (all_asked if from_asked else all_written).popitem(last=False)
            went += 1
            if to_disk:
                self._write(gone)
            if from_asked:
                asked = next(iter(all_asked.values())) + lease if all_asked else inf
            else:
                written = next(iter(all_written.values())) if all_written else inf
        self._flows.evicted["L3"] += went
        return went

    def _write(self, block: int) -> None:
        """Write a block to the disk, if there is one; a full disk drops the block written first."""
        if self._disk is None or block in self._disk:
            return
        self._disk[block] = None
        self._flows.moved["L3", "SSD"] += 1
        if len(self._disk) > self._disk_size:
            self._disk.popitem(last=False)
            self._flows.evicted["SSD"] += 1
            self._flows.full.add("SSD")


class _Node:
    """A node of the tree: blocks that one request added, cut if a later request ends or differs
    within.

    l1, l2: whether each tier holds the node. in_l1: how many children L1 holds. left: how many
    requests left the node in L1. used: when it was last used, as a count that rises.
    """

    __slots__ = ("blocks", "children", "in_l1", "l1", "l2", "left", "parent", "used")

    def __init__(self, blocks: Sequence[int], parent: _Node | None) -> None:
        self.blocks, self.parent = blocks, parent or self
        self.children: dict[int, _Node] = {}
        self.l1 = self.l2 = False
        self.in_l1 = self.left = self.used = 0


_IN_L1, _IN_L2 = ["L1"], ["L2"]


class _Cache:
    """L1 and L2 of one cache: SGLang's tree of prefixes."""

    def __init__(
        self,
        sizes: TierSizes,
        store: StorePool | None,
        rules: Rules,
        flows: Flows,
        block_tokens: int,
    ) -> None:
        """Begin empty.

        Args:
            sizes: In blocks.
            store: None for no store.
        """
        l1, l2 = sizes.l1, sizes.l2
        self._root, self._uses, self._now = _Node((), None), 0, 0.0
        # Blocks, and how many of them are free.
        self._size, self._free1 = l1, l1
        self._has_l2, self._free2 = bool(l2), l2 or 0
        # By tier, what it may evict, the least recently used first; and what it no longer may.
        self._leaves1: list[tuple[int, _Node]] = []
        self._leaves2: list[tuple[int, _Node]] = []
        # With write_back: what L1 got back from L2, in that order; and what a request holds.
        self._doubles: dict[_Node, None] = {}
        self._held: list[_Node] = []
        self._pool, self._rules, self._flows = store, rules, flows
        # Blocks that are fetched from the store at least, and at most.
        self._least = max(1, -(-rules.prefetch_threshold // block_tokens))
        self._most = inf if sizes.prefetch is None else sizes.prefetch
        self._unified, self._buffers = rules.unified, rules.buffers
        self._back = rules.write_policy == "write_back"
        self._after = 2 if rules.write_policy == "write_through_selective" else 1

    def take(self, blocks: Sequence[int], now: float) -> list[str]:
        """Serve one request: look its blocks up, fetch from the store, add what is new.

        Return the tier of each block that was found, from the first block on.
        """
        self._now = now
        if len(blocks) > self._size:
            self._flows.full.add("L1")
            blocks = blocks[: self._size]  # what is longer than L1 does not run at all
        tiers, path = self._match(blocks), self._held
        matched = len(path)
        # L1 has whole prefixes, and L2 too: what stands before a node that one has, it has too.
        loaded = [part for part in path if not part.l1] if path and not path[-1].l1 else []
        for part in loaded:
            self._load(part)
        if self._pool is not None and len(tiers) < len(blocks):
            stored = self._fetch(self._pool, blocks[len(tiers) :], loaded)
            if stored:
                part = self._add(blocks[len(tiers) : len(tiers) + len(stored)])
                if not self._buffers:
                    part.l2 = True
                    self._free2 -= len(stored)
                self._load(part)
                loaded.append(part)
                tiers += stored
        new = enough = len(blocks) - len(tiers)
        if self._free1 < 0 and not self._unified:
            enough = max(enough, self._free1 + sum(len(part.blocks) for part in loaded))
        if self._free1 < enough:
            self._evict(enough)
        if new:
            step = new if self._rules.whole_nodes else 1
            for at in range(len(tiers), len(blocks), step):
                self._enter(self._add(blocks[at : at + step]))
        self._use(path[matched:])
        if path:
            self._queue(path[-1])
        if self._back:
            self._doubles.update(dict.fromkeys(reversed(loaded)))
        elif self._has_l2:
            self._write_through()
        return tiers

    def _match(self, blocks: Sequence[int]) -> list[str]:
        """Return the tier of each block that L1 or L2 has, from the first on.

        A node that matches in part is split; the nodes of the path are kept in ``_held``, and
        marked as used.
        """
        part, tiers, at = self._root, list[str](), 0
        self._held = path = list[_Node]()
        while at < len(blocks) and (child := part.children.get(blocks[at])) is not None:
            part, same = child, len(child.blocks)
            if same > 1 and blocks[at : at + same] != part.blocks:
                pairs = enumerate(zip(part.blocks, blocks[at:], strict=False))
                apart = (at for at, (mine, other) in pairs if mine != other)
                part = self._split(part, next(apart, min(same, len(blocks) - at)))
                same = len(part.blocks)
            path.append(part)
            tiers += _IN_L1 * same if part.l1 else _IN_L2 * same
            at += same
        self._use(path)
        return tiers

    def _split(self, part: _Node, at: int) -> _Node:
        """Split a node before its block ``at``; return the front, and mark the rest as used."""
        front = _Node(part.blocks[:at], part.parent)
        front.children[part.blocks[at]] = part
        front.l1, front.l2, front.left, front.in_l1 = part.l1, part.l2, part.left, int(part.l1)
        front.parent.children[part.blocks[0]] = front
        part.parent, part.blocks = front, part.blocks[at:]
        self._use((part,))
        self._queue(part)
        if self._back and part.l1 and part.l2:
            self._doubles[front] = None
        return front

    def _use(self, nodes: Iterable[_Node]) -> None:
        """Mark nodes as used, the last one as the latest."""
        for part in nodes:
            self._uses += 1
            part.used = self._uses

    def _queue(self, part: _Node) -> None:
        """Queue a leaf of L1, or else of L2, for eviction from that tier; skip any inner node."""
        if part.l1:
            if not part.in_l1:
                heappush(self._leaves1, (part.used, part))
        elif part.l2 and not part.children:
            heappush(self._leaves2, (part.used, part))

    def _add(self, blocks: Sequence[int]) -> _Node:
        """Add a node with ``blocks`` behind the last one that the request holds, and return it."""
        parent = self._held[-1] if self._held else self._root
        part = parent.children[blocks[0]] = _Node(blocks, parent)
        self._held.append(part)
        return part

    def _enter(self, part: _Node) -> None:
        part.l1 = True
        part.parent.in_l1 += 1
        self._free1 -= len(part.blocks)

    def _load(self, part: _Node) -> None:
        self._enter(part)
        self._flows.moved["L2", "L1"] += len(part.blocks)

    def _fetch(self, store: StorePool, wanted: Sequence[int], loaded: Sequence[_Node]) -> list[str]:
        """Prefetch ``wanted`` blocks from the store into L2.

        Return the tier of each block that is fetched; [] if none is, fewer than the threshold, or
        more are wanted than may be under prefetch.

        Args:
            loaded: Nodes that this request moved from L2 to L1.
        """
        rules, least, path = self._rules, self._least, self._held
        if rules.asks == "loaded":
            path = [part for part in path if part not in loaded]
        copied = self._buffers or not path or path[-1].l2
        if not least <= len(wanted) <= self._most or not (copied or rules.asks == "always"):
            return []
        if not self._unified:  # room for all that is asked for, found or not
            room = self._make_room(len(wanted))
            wanted = wanted[: self._free2]
            if len(wanted) < least or not (room or rules.partial):
                return []
        self._flows.asked += len(wanted)
        stored = store.find(wanted, self._now) if copied else []
        if len(stored) < least or (self._buffers and len(stored) > self._free2 * BUFFERED_PART):
            return []
        self._make_room(len(stored), whole=True)
        del stored[self._free2 :]
        if len(stored) < least:
            return []
        for tier in stored:
            self._flows.moved[tier, "L2"] += 1
        return stored

    def _write_through(self) -> None:
        """Copy to L2 each node of the request that enough requests left in L1, its parents first.

        With ``buffers`` the node goes only to the store.
        """
        path = self._held
        first, room = len(path), True
        while first and not path[first - 1].l2:
            first -= 1
        path = path[first:]
        for at, part in enumerate(path):
            part.left += 1
            if part.l2 or part.left < self._after:
                continue
            if self._buffers:
                if part.left == self._after and len(part.blocks) <= self._free2:
                    self._store(part)
                continue
            for each in path[: at + 1] if room else ():
                if not each.l2:
                    if not (room := self._make_room(len(each.blocks))):
                        break  # nor is there for what comes behind it
                    self._copy(each)

    def _copy(self, part: _Node) -> None:
        part.l2 = True
        self._free2 -= len(part.blocks)
        self._flows.moved["L1", "L2"] += len(part.blocks)
        self._store(part)

    def _store(self, part: _Node) -> None:
        if self._pool is not None and self._rules.stores:
            self._pool.put(part.blocks, self._now)

    def _make_room(self, wanted: int, whole: bool = False) -> bool:
        """Evict from L2 if fewer than ``wanted`` blocks are free; return whether ``wanted`` are
        free then.

        Evicts until ``wanted`` are free; with ``whole``, or without unified rules, until ``wanted``
        more are free than before.
        """
        if self._free2 >= wanted:
            return True
        self._flows.full.add("L2")
        enough = wanted + self._free2 if whole or not self._unified else wanted
        if self._unified and self._back:
            self._give_up_doubles(enough)
        leaves = self._leaves2
        while self._free2 < enough and leaves:
            used, part = heappop(leaves)
            if used == part.used and part.l2 and not part.l1 and not part.children:
                del part.parent.children[part.blocks[0]]
                self._forget(part)
                self._queue(part.parent)
        return self._free2 >= wanted

    def _give_up_doubles(self, enough: int) -> None:
        """Drop L2 copies of nodes that L1 holds too, until ``enough`` blocks are free.

        Leaves are dropped last, for L1 evicts leaves next.
        """
        for leaves in (False, True):
            gone = []
            for part in self._doubles:
                if self._free2 >= enough:
                    break
                if part.l1 and part.l2:
                    if not leaves and not part.in_l1 and part not in self._held:
                        continue
                    part.l2 = False
                    self._free2 += len(part.blocks)
                gone.append(part)
            for part in gone:
                del self._doubles[part]

    def _forget(self, part: _Node) -> None:
        """Remove a node's copy from L2, and count its blocks as evicted."""
        part.l2 = False
        self._free2 += len(part.blocks)
        self._flows.evicted["L2"] += len(part.blocks)
        self._doubles.pop(part, None)

    def _evict(self, enough: int) -> None:
        """Evict leaves of L1, the least recently used first, until ``enough`` blocks are free.

        With ``write_back`` a leaf without a copy is written to L2 now.
        """
        self._flows.full.add("L1")
        leaves, freed = self._leaves1, self._free1
        while self._free1 < enough and leaves:
            used, part = heappop(leaves)
            if used != part.used or not part.l1 or part.in_l1:
                continue
            if self._back and self._has_l2 and not part.l2 and self._make_room(len(part.blocks)):
                self._copy(part)
            part.l1 = False
            part.parent.in_l1 -= 1
            self._free1 += len(part.blocks)
            if not part.l2:
                del part.parent.children[part.blocks[0]]
                behind = list(part.children.values())
                for each in behind:
                    self._forget(each)
                    behind += each.children.values()
            elif not part.children:
                heappush(self._leaves2, (used, part))
            self._queue(part.parent)
        self._flows.evicted["L1"] += self._free1 - freed


class Replay:
    """Replays requests one after the other through all tiers; ``flows`` holds the sums so far."""

    def __init__(self, sizes: TierSizes, rules: Rules, block_tokens: int, page_tokens: int) -> None:
        """Begin with empty caches.

        Args:
            block_tokens: Tokens of a request's block.
            page_tokens: Tokens of a page; only whole pages are saved.
        """
        self._block, self._page, self._rules, self._sizes = block_tokens, page_tokens, rules, sizes
        self.flows = Flows()
        others = (size if size is None else size // block_tokens for size in sizes[1:])
        blocks = TierSizes(sizes.l1 // block_tokens, *others)
        store = None
        if blocks.store is not None and blocks.l2:
            store = StorePool(blocks.store, blocks.disk, rules.store, self.flows)
        cache = partial(_Cache, blocks, store, rules, self.flows, block_tokens)
        self.flows.full |= {tier for tier, size in zip(TIERS, blocks, strict=False) if size == 0}
        self._caches = [cache() for _ in range(rules.caches)]
        self._leases = rules.store.lease_seconds > 0
        self._now = 0.0
        # To which cache each block was routed last, and the blocks that each got.
        self._routed: dict[int, int] = {}
        self._got = [0] * rules.caches
        self._random = Random(0)

    def take(self, request: Request) -> list[str]:
        """Serve one request; return the tier of each block that was found, from the first block on.

        Raises:
            UsageError: If sticky routing gets a request without a conversation.
        """
        flows = self.flows
        if self._leases and request.seconds is not None:
            self._now = max(self._now, request.seconds)
        else:
            self._now += 1  # without leases the order alone counts
        at = self._route(request) if len(self._caches) > 1 else 0
        tiers = self._caches[at].take(request.blocks, self._now)
        flows.requests += 1
        flows.accesses += len(request.blocks)
        flows.input_tokens += request.input_tokens
        flows.too_long += request.input_tokens > self._sizes.l1
        most, before = (request.input_tokens - 1) // self._page * self._page, 0
        for tier in dict.fromkeys(tiers):
            count = tiers.count(tier)
            flows.hits[tier] += count
            after = min(most, before + count * self._block)
            flows.saved[tier] += after - before
            before = after
        return tiers

    def _route(self, request: Request) -> int:
        """Return the index of the cache that gets the request.

        Raises:
            UsageError: For sticky routing if the trace names no conversation.
        """
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
