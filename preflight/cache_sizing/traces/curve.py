"""The part of all block accesses that one cache of any size answers: the exact curve in one pass.

Requests form a tree (see ``formats``), and each touches a path from the root. So what a request
finds was last touched by a few earlier requests, the later the nearer to the root, and what is
left of an earlier one is the end of its path. Counting those runs in place of blocks is why this
needs no library: a run costs two walks of a binary indexed tree over requests, a block one look-up.

A cache of the least recently used evicts the end of a prompt first, as SGLang's radix tree does: a
leaf before its parent. What a request finds is counted before the new blocks of that request take
room.

Sources: R. L. Mattson and others, Evaluation techniques for storage hierarchies (1970); C. A.
Waldspurger and others, Efficient MRC construction with SHARDS (2015), with its correction of the
number of accesses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil
from statistics import stdev
from typing import NamedTuple

# Distinct blocks that are followed at once: each takes about 150 bytes.
MOST_BLOCKS = 4_000_000
# Independent parts of a sample: how far their curves lie apart tells its error.
PARTS = 8

Runs = list[list[tuple[int, int]]]


class Curve(NamedTuple):
    """Hits of one cache by its size: straight lines between the points.

    Attributes:
        sizes: In blocks, rising, from 0.
        hits: For each size, the accesses that such a cache answers.
        accesses: Blocks of all requests.
        distinct: Number of different blocks; None if a sample was followed.
        sampled: The part of all blocks (0 to 1) that was followed.
        error: The largest standard error of a rate (0 to 1).
    """

    sizes: Sequence[int]
    hits: Sequence[float]
    accesses: int
    distinct: int | None
    sampled: float = 1.0
    error: float = 0.0

    def rate(self, blocks: float) -> float:
        """Return the hit rate, 0 to 1, of a cache of ``blocks`` blocks."""
        if not self.accesses:
            return 0.0
        at = bisect_right(self.sizes, blocks)
        if at == len(self.sizes):
            return self.hits[-1] / self.accesses
        (low, high), (least, most) = self.sizes[at - 1 : at + 1], self.hits[at - 1 : at + 1]
        return (least + (most - least) * (blocks - low) / (high - low)) / self.accesses

    @property
    def ceiling(self) -> float:
        """Return the hit rate of a cache without a size limit."""
        return self.hits[-1] / self.accesses if self.accesses else 0.0

    def size_for(self, rate: float) -> int | None:
        """Return the smallest cache, in blocks, with a hit rate of ``rate`` (0 to 1); None above
        the ceiling.
        """
        if rate > self.ceiling:
            return None
        wanted = min(rate * self.accesses, self.hits[-1])  # a rate is rounded
        at = bisect_left(self.hits, wanted)
        if at == 0:
            return 0
        (low, high), (least, most) = self.sizes[at - 1 : at + 1], self.hits[at - 1 : at + 1]
        # A hair below: a whole number of blocks is not to be missed by a rounding.
        return ceil(low + (high - low) * (wanted - least) / (most - least) - 1e-6)

    @property
    def knee(self) -> int:
        """The size at which the curve stands highest above a straight line to 99% of its end."""
        end = self.size_for(0.99 * self.ceiling) or 1
        return int(
            max(self.sizes, key=lambda size: self.rate(size) - self.ceiling * min(1, size / end))
        )


class _Stack:
    """Counts at which distance each access finds its block: how many blocks were used since."""

    def __init__(self, scale: int = 1) -> None:
        """Begin with no request counted.

        Args:
            scale: How many blocks each followed block represents.
        """
        self.scale, self.accesses = scale, 0
        self.last: dict[int, int] = {}
        # A binary indexed tree over requests: the blocks that each was the last to touch.
        self.tree = [0]
        # How many more accesses there are at each distance than at the one before.
        self.steps: dict[int, float] = {}

    def take(self, blocks: Sequence[int], uses: Runs | None = None) -> None:
        """Count one request.

        Args:
            uses: A list for each earlier request, to which (this request, number of blocks taken
                from the earlier one) is added; None to add nothing.
        """
        last, tree, steps, scale = self.last, self.tree, self.steps, self.scale
        now, size, at, seen = len(tree) - 1, len(blocks), 0, len(self.last)
        touched_by = list(map(last.get, blocks))
        while at < size and (request := touched_by[at]) is not None:
            start = at
            at += 1
            while at < size and touched_by[at] == request:
                at += 1
            older, index = 0, request + 1
            while index:
                older += tree[index]
                index &= index - 1
            first = (seen - older) * scale + 1
            end = first + (at - start) * scale
            steps[first] = steps.get(first, 0) + 1
            steps[end] = steps.get(end, 0) - 1
            if uses is not None:
                uses[request].append((now, at - start))
            # Those still to come are of earlier requests: what they read does not change.
            index = request + 1
            while index <= now:
                tree[index] -= at - start
                index += index & -index
        self.accesses += size
        last.update(dict.fromkeys(blocks, now))
        self._append(size)

    def _append(self, count: int) -> None:
        """Add a request to the tree.

        Args:
            count: The blocks that this request was the last to touch.
        """
        index = len(self.tree)
        low, below = index & index - 1, index - 1
        while below > low:
            count += self.tree[below]
            below &= below - 1
        self.tree.append(count)

    def thinned(self, divisor: int, part: int, scale: int) -> _Stack:
        """Return a new stack that follows a sample of this stack's blocks: those whose name modulo
        ``divisor`` is ``part``.

        No request is counted in it yet.

        Args:
            scale: Of the new stack.
        """
        thin = _Stack(scale)
        kept = {block: at for block, at in self.last.items() if block % divisor == part}
        touched: dict[int, int] = {}
        for at in kept.values():
            touched[at] = touched.get(at, 0) + 1
        numbers = {at: number for number, at in enumerate(sorted(touched))}
        thin.last = {block: numbers[at] for block, at in kept.items()}
        for at in numbers:
            thin._append(touched[at])
        return thin


class CurveCounter:
    """Takes requests one after the other; ``curve`` returns the hit curve so far.

    All blocks are followed up to ``most_blocks``, then a sample chosen by the blocks' names. The
    sample is halved each time that it is too large again, so memory stays bounded.
    """

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        """Begin without requests.

        Args:
            most_blocks: How many blocks may be followed.
        """
        self._most = max(2 * PARTS, most_blocks)
        self._stacks = [_Stack()]
        # Accesses by their distances (see ``_Stack.steps``): of the time when all blocks were
        # followed, and of each part since then.
        self._whole: dict[int, float] = {}
        self._counted: list[dict[int, float]] = [{} for _ in range(PARTS)]
        self._begun, self.accesses = 0, 0
        # Of each request, which later ones use what it touched last: (request, blocks).
        self.uses: Runs | None = []

    @property
    def distinct(self) -> int | None:
        """The number of distinct blocks so far; None if a sample is followed."""
        return None if self.uses is None else len(self._stacks[0].last)

    def take(self, blocks: Sequence[int]) -> None:
        """Count one request.

        Args:
            blocks: Those of the prompt, from its first on.
        """
        self.accesses += len(blocks)
        if self.uses is not None:
            self.uses.append([])
            self._stacks[0].take(blocks, self.uses)
        else:
            divisor = self._stacks[0].scale
            shares: list[list[int]] = [[] for _ in range(PARTS)]
            for block in blocks:
                if (part := block % divisor) < PARTS:
                    shares[part].append(block)
            for stack, share in zip(self._stacks, shares, strict=True):
                if share:
                    stack.take(share)
        followed = sum(len(stack.last) for stack in self._stacks)
        if followed > self._most or len(self._stacks[0].tree) > self._most:
            self._thin()

    def _thin(self) -> None:
        """Follow half as many blocks from here on; the first time, in ``PARTS`` samples."""
        if self.uses is not None:
            self._whole, old, self.uses = self._stacks[0].steps, self._stacks * PARTS, None
            scale = 2 * PARTS
        else:
            self._counted = [self._steps(part) for part in range(PARTS)]
            old, scale = self._stacks, 2 * self._stacks[0].scale
        self._begun = self.accesses
        self._stacks = [each.thinned(scale, part, scale) for part, each in enumerate(old)]

    def _steps(self, part: int) -> dict[int, float]:
        """Return the steps of the sample ``part``, counted since not all blocks are followed."""
        stack = self._stacks[part]
        # A block that every request has is followed by one part or none: what its accesses are
        # more or fewer than all accesses was, or would have been, found at once.
        missed = self.accesses - self._begun - stack.accesses * stack.scale
        return _sum(self._counted[part], stack.steps, {1: missed, 2: -missed} if missed else {})

    def curve(self) -> Curve:
        """Return the curve of all requests taken so far, with its error if a sample is followed."""
        if self.uses is not None:
            curve = _curve(self._stacks[0].steps, self.accesses)
            return curve._replace(distinct=self.distinct)
        parts = [self._steps(part) for part in range(PARTS)]
        mean = {at: step / PARTS for at, step in _sum(*parts).items()}
        curve = _curve(_sum(self._whole, mean), self.accesses)
        last = max(1.0, curve.sizes[-1])
        rates = []
        for part in parts:
            alone = _curve(_sum(self._whole, part), self.accesses)
            rates.append([alone.rate(last / 2 ** (at / 4)) for at in range(64)])
        error = max(map(stdev, zip(*rates, strict=True))) / PARTS**0.5
        return curve._replace(sampled=PARTS / self._stacks[0].scale, error=error)


def _sum(*every: dict[int, float]) -> dict[int, float]:
    total = dict(every[0])
    for steps in every[1:]:
        for at, step in steps.items():
            total[at] = total.get(at, 0) + step
    return total


def _curve(steps: dict[int, float], accesses: int) -> Curve:
    """Return the curve of ``steps``: a cache of n blocks answers accesses at distances 1 to n."""
    sizes, hits, rate = [0], [0.0], 0.0
    for distance in sorted(steps):
        if distance > 1:
            hits.append(hits[-1] + rate * (distance - 1 - sizes[-1]))
            sizes.append(distance - 1)
        rate += steps[distance]
    return Curve(sizes, [max(0.0, hit) for hit in hits], accesses, None)


def optimum(uses: Runs, size: int) -> int:
    """Return the hits of the best possible cache of ``size`` blocks.

    The cache knows all later requests and keeps the blocks that are used soonest (L. A. Belady, A
    study of replacement algorithms, 1966). A block that is used later than all blocks in the cache
    is not taken. Of the blocks that one request uses next, the last are dropped first.

    Args:
        uses: ``CurveCounter.uses``.
    """
    hits, kept_blocks = 0, 0
    kept: dict[int, int] = {}
    latest: list[int] = []
    for now, later in enumerate(uses):
        count = kept.pop(now, 0)
        hits += count
        kept_blocks -= count
        for request, count in later:
            if request not in kept:
                heappush(latest, -request)
            kept[request] = kept.get(request, 0) + count
            kept_blocks += count
        while kept_blocks > size:
            request = -latest[0]
            dropped = min(kept[request], kept_blocks - size)
            kept[request] -= dropped
            kept_blocks -= dropped
            if not kept[request]:
                del kept[request]
                heappop(latest)
    return hits
