"""What the rounds come to, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.unknown import Unknown
from preflight.capacity.answer import ServerAnswer
from preflight.capacity.records import Bounds, Round, Tier
from preflight.capacity.workload import Workload


def conclusions(server: ServerAnswer, workload: Workload | Unknown | None) -> Iterator[str]:
    """One sentence for each tier, and one for what is lost first."""
    rounds = server.capacity.rounds
    if not rounds or not isinstance(workload, Workload):
        return
    known = [tier for tier in server.capacity.tiers if isinstance(tier.tokens, Bounds)]
    for tier in known:
        if isinstance(tier.tokens, Bounds):
            yield _fate(tier, tier.tokens, rounds)
    if known:
        yield from _losses(rounds)


def first_evicting(rounds: tuple[Round, ...], name: str) -> int | None:
    """The first round by whose end the tier has evicted, for certain."""
    return next((each.number for each in rounds if name in each.evicting), None)


def first_maybe(rounds: tuple[Round, ...], name: str) -> int | None:
    """The first round by whose end it may have."""
    return next((each.number for each in rounds if name in each.may_evict), None)


def _fate(tier: Tier, tokens: Bounds, rounds: tuple[Round, ...]) -> str:
    lead = f"{tier.name} ({tier.what}), {span(tokens)} tokens"
    maybe, certain = first_maybe(rounds, tier.name), first_evicting(rounds, tier.name)
    last = rounds[-1]
    if maybe is None:
        return (
            f"{lead}: never evicts in {_rounds(last.number)}, which come to "
            f"{last.held_tokens:,} tokens"
        )
    held = rounds[maybe - 1].held_tokens
    before = f"holds {_through(maybe - 1)}" if maybe > 1 else "holds no whole round"
    if certain == maybe:
        return f"{lead}: {before} and starts to evict in round {maybe} ({held:,} tokens)"
    ends = f"has in round {certain}" if certain else f"may never in {_rounds(last.number)}"
    return f"{lead}: {before}, may start to evict in round {maybe} ({held:,} tokens), {ends}"


def _losses(rounds: tuple[Round, ...]) -> Iterator[str]:
    """The first round in which all tiers together no longer have everything, and the last."""
    lost = [each for each in rounds if each.hits and each.hits[-1][1] < 1 and each.reusable_tokens]
    if not lost:
        yield "nothing that was seen before is computed again"
        return
    for each in dict.fromkeys((lost[0], lost[-1])):
        name, least, most = each.hits[-1]
        likely = dict(each.likely).get(name)
        said = "" if likely is None else f", {percent(likely)} in a random order"
        yield (
            f"in round {each.number}, of {each.reusable_tokens:,} tokens seen before, "
            f"{share(least, most)} are still there{said}"
        )


def _through(last: int) -> str:
    return "round 1" if last == 1 else f"rounds 1 to {last}"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def span(bounds: Bounds) -> str:
    """``1,024``, or ``1,024 to 2,048``."""
    if bounds.least == bounds.most:
        return f"{bounds.least:,}"
    return f"{bounds.least:,} to {bounds.most:,}"


def share(least: float, most: float) -> str:
    """Whole percents, rounded away from all and from nothing: 100% is everything."""
    low, high = percent(least), percent(most)
    return low if low == high else f"{low.removesuffix('%')} to {high}"


def percent(part: float) -> str:
    whole = round(part * 100)
    if 0 < part < 1:
        whole = min(99, max(1, whole))
    return f"{whole}%"
