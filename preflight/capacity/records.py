"""What each tier of the cache holds, and what a workload makes of it, as plain records."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from checks.base.unknown import Unknown


class Bounds(NamedTuple):
    """least and most; equal where the number is known exactly."""

    least: int
    most: int

    def text(self, shown: Callable[[int], str] = "{:,}".format) -> str:
        """Return ``1,024``, or ``1,024 to 2,048``: once where both are shown alike."""
        least, most = shown(self.least), shown(self.most)
        return least if least == most else f"{least} to {most}"

    def times(self, count: int) -> Bounds:
        """Return the bounds of so many alike."""
        return Bounds(self.least * count, self.most * count)


class Tier(NamedTuple):
    """One tier, over the whole deployment.

    name: ``L1``, ``L2``, ``L3``, ``SSD``. what: in words (``GPU memory``, ``host memory``). bytes
    and tokens: what it holds before it evicts; Unknown with the input that is missing. formula: how
    that comes about, as ``8 x 4.00 GiB x 0.95 (eviction watermark)``. conversations: of the length
    that was asked about, None without one.
    """

    name: str
    what: str
    bytes: Bounds | Unknown
    tokens: Bounds | Unknown
    formula: str
    conversations: Bounds | Unknown | None = None


class Round(NamedTuple):
    """One round of a multi-turn workload.

    number: from 1. held_tokens: all clients' contexts at its end, which a cache of everything would
    hold. reusable_tokens: what of the round's prompts was seen in earlier rounds. hits: by tier
    name, cumulative from L1 down, the part of ``reusable_tokens`` (0 to 1) that tiers up to it can
    still serve, (least, most). evicting: names of the tiers that are full by its end.
    may_evict: those that are if they hold the least that they may hold. likely: by tier name, the
    part to expect where the clients take turns at random, of tiers that are known exactly and evict
    the least recently used.
    """

    number: int
    held_tokens: int
    reusable_tokens: int
    hits: tuple[tuple[str, float, float], ...]
    evicting: tuple[str, ...]
    may_evict: tuple[str, ...] = ()
    likely: tuple[tuple[str, float], ...] = ()


class Keys(NamedTuple):
    """What the master keeps when the pool is full: its names, and about the memory they take."""

    number: int
    master_bytes: int


class Capacity(NamedTuple):
    """tiers: nearest to the GPU first. rounds: () without a workload.

    bytes_per_token: of one copy of the cache, the shards of all ranks together, as the store keeps
    it. keys: None without a store.
    """

    tiers: tuple[Tier, ...]
    bytes_per_token: int | Unknown
    rounds: tuple[Round, ...]
    keys: Keys | Unknown | None = None
