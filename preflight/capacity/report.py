"""The answer of ``capacity``: for a person, what follows from it in sentences, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.base.envelope import subjects
from preflight.capacity.answer import CapacityAnswer, ServerCapacity
from preflight.capacity.curve import Paint, curve_text, whole_percent
from preflight.capacity.deployment import Bounds, Keys, Round, Tier
from preflight.capacity.rates import rate_sentence
from preflight.capacity.workload import MultiTurnWorkload
from preflight.render.plain_data import fields, plain
from preflight.render.text import filled, fitted


def capacity_text(found: CapacityAnswer, width: int, paint: Paint, ascii_only: bool) -> str:
    """Return the whole answer without a final newline. ascii_only: no other characters."""
    parts = [
        "\n\n".join(part for part in _server(server, found, width, paint, ascii_only) if part)
        for server in found.servers
    ]
    parts += [filled(note, width) for note in (*found.notes, *found.unread)]
    return "\n\n".join(parts)


def _server(
    server: ServerCapacity, found: CapacityAnswer, width: int, paint: Paint, ascii_only: bool
) -> Iterator[str]:
    """Yield one server's blocks of text: tiers, formulas, rounds, notes; some may be empty."""
    capacity = server.capacity
    size = server.capacity.bytes_per_token
    each = "" if isinstance(size, Unknown) else f", {format_bytes(size)} per token"
    page = "" if server.page_tokens is None else f", pages of {server.page_tokens}"
    yield filled(f"{server.subject}: {server.model}{each}{page}", width)
    yield _tiers(capacity.tiers, width)
    lines = [f"{tier.name}: {tier.formula}" for tier in capacity.tiers if tier.formula]
    if isinstance(keys := capacity.keys, Keys):
        memory = format_bytes(keys.master_bytes)
        lines += [
            f"master: {keys.number:,} keys when the pool is full, about {memory} of its memory"
        ]
    if capacity.prefetch is not None:
        most = _known(capacity.prefetch)
        lines += [f"prefetch: L3 is read for up to {most} tokens at a time in each cache"]
    if (speed := found.new_tokens_per_second) is not None:
        lines += [rate_sentence(tier, speed) for tier in capacity.tiers]
    yield "\n".join(filled(line, width) for line in lines)
    if isinstance(found.workload, MultiTurnWorkload) and capacity.rounds:
        yield filled(_workload(found.workload), width)
        yield _rounds_table(capacity.rounds, width)
        yield curve_text(capacity.rounds, paint, width, ascii_only)
    yield "\n".join(filled(line, width) for line in summarize_rounds(server, found.workload))
    yield "\n".join(filled(f"note: {note}", width) for note in server.notes)


def _tiers(tiers: Sequence[Tier], width: int) -> str:
    """Format the table of tiers; it has a column of conversations if they were counted."""
    heads, rows = ["tier", "", "bytes", "tokens", "conversations"], []
    for tier in tiers:
        counted = "" if tier.conversations is None else _known(tier.conversations)
        size = _known(tier.bytes, format_bytes)
        rows.append([tier.name, tier.what, size, _known(tier.tokens), counted])
    if all(tier.conversations is None for tier in tiers):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return fitted(rows, heads, width, right=range(2, len(heads)))


def _rounds_table(rounds: Sequence[Round], width: int) -> str:
    """Format the table of rounds; ``?`` after a tier's name: it may evict, but need not."""
    names = [name for name, _, _ in rounds[0].hits]
    heads = ["round", "tokens held", "seen before"]
    heads += [name if index == 0 else f"to {name}" for index, name in enumerate(names)]
    rows = [
        [
            str(each.number),
            f"{each.held_tokens:,}",
            f"{each.reusable_tokens:,}",
            *(share(least, most) if each.reusable_tokens else "-" for _, least, most in each.hits),
            " ".join((*each.evicting, *(f"{name}?" for name in each.may_evict_too))),
        ]
        for each in rounds
    ]
    return fitted(rows, [*heads, "evicting"], width, right=range(len(heads)))


def _workload(workload: MultiTurnWorkload) -> str:
    """Write the sentence above the table of rounds: the workload, and what the table shows."""
    length = f"{workload.first_tokens:,}"
    if workload.next_tokens != workload.first_tokens:
        length = f"{length}, then {workload.next_tokens:,}"
    return (
        f"{workload.clients} clients x {length} tokens x {workload.rounds} rounds, answers of "
        f"{workload.output_tokens} ({workload.origin}); the part of what was seen before that is "
        "still there:"
    )


def summarize_rounds(
    server: ServerCapacity, workload: MultiTurnWorkload | Unknown | None
) -> Iterator[str]:
    """Yield one sentence for each tier, and one for what is lost first."""
    rounds, tiers = server.capacity.rounds, server.capacity.tiers
    if not rounds or not isinstance(workload, MultiTurnWorkload):
        return
    fates = [_fate(each, each.tokens, rounds) for each in tiers if isinstance(each.tokens, Bounds)]
    yield from (*fates, *(_losses(rounds) if fates else ()))


def first_evicting(rounds: tuple[Round, ...], name: str) -> int | None:
    """Return the first round by whose end the tier has evicted, for certain."""
    return next((each.number for each in rounds if name in each.evicting), None)


def first_maybe(rounds: tuple[Round, ...], name: str) -> int | None:
    """Return the first round by whose end the tier may have evicted."""
    return next((each.number for each in rounds if name in each.may_evict), None)


def _fate(tier: Tier, tokens: Bounds, rounds: tuple[Round, ...]) -> str:
    """Say in which round the tier starts, or may start, to evict, or that it never does."""
    lead = f"{tier.name} ({tier.what}), {tokens.text()} tokens"
    maybe, certain = first_maybe(rounds, tier.name), first_evicting(rounds, tier.name)
    last = rounds[-1]
    if maybe is None:
        never = f"{lead}: never evicts in {_rounds(last.number)}"
        return f"{never}, which come to {last.held_tokens:,} tokens"
    held = rounds[maybe - 1].held_tokens
    before = "holds no whole round"
    if maybe > 1:
        before = f"holds {'round 1' if maybe == 2 else f'rounds 1 to {maybe - 1}'}"
    if certain == maybe:
        return f"{lead}: {before} and starts to evict in round {maybe} ({held:,} tokens)"
    ends = f"has in round {certain}" if certain else f"may never in {_rounds(last.number)}"
    return f"{lead}: {before}, may start to evict in round {maybe} ({held:,} tokens), {ends}"


def _losses(rounds: tuple[Round, ...]) -> Iterator[str]:
    """Yield the first round in which all tiers together no longer have everything, and the last."""
    lost = [each for each in rounds if each.hits and each.hits[-1][1] < 1 and each.reusable_tokens]
    if not lost:
        yield "no token that was seen before is computed again"
        return
    for each in dict.fromkeys((lost[0], lost[-1])):
        name, least, most = each.hits[-1]
        likely = dict(each.likely).get(name)
        said = "" if likely is None else f", {percent(likely)} in a random order"
        yield (
            f"in round {each.number}, of {each.reusable_tokens:,} tokens seen before, "
            f"{share(least, most)} are still there{said}"
        )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _known(bounds: Bounds | Unknown, shown: Callable[[int], str] = "{:,}".format) -> str:
    return "unknown" if isinstance(bounds, Unknown) else bounds.text(shown)


def share(least: float, most: float) -> str:
    """Return ``40 to 79%``, or one number if both round to the same."""
    low, high = whole_percent(least), whole_percent(most)
    return f"{low}%" if low == high else f"{low} to {high}%"


def percent(part: float) -> str:
    return f"{whole_percent(part)}%"


def capacity_object(found: CapacityAnswer) -> dict[str, Any]:
    """Return the answer of ``schemas/capacity-v1.schema.json``."""
    return {
        "workload": plain(found.workload),
        "servers": [_server_object(server, found) for server in found.servers],
        "notes": plain(found.notes),
        "unread": plain(found.unread),
    }


def _server_object(server: ServerCapacity, found: CapacityAnswer) -> dict[str, Any]:
    """Build one entry of ``servers`` in ``schemas/capacity-v1.schema.json``."""
    capacity = server.capacity
    return {
        "subjects": subjects([server.subject]),
        **fields(server, "model", "page_tokens"),
        "bytes_per_token": plain(capacity.bytes_per_token),
        "tiers": [
            {
                **fields(tier, "name", "what"),
                "size_bytes": plain(tier.bytes),
                **fields(tier, "tokens", "conversations", "formula"),
                "written_bytes_per_second": plain(tier.written),
                "read_bytes_per_second": plain(tier.read),
            }
            for tier in capacity.tiers
        ],
        "keys": {"count": keys.number, "master_bytes": keys.master_bytes}
        if isinstance(keys := capacity.keys, Keys)
        else plain(keys),
        "prefetch_tokens": plain(capacity.prefetch),
        "rounds": [_round_object(each) for each in capacity.rounds],
        "conclusions": list(summarize_rounds(server, found.workload)),
        "notes": plain(server.notes),
    }


def _round_object(each: Round) -> dict[str, Any]:
    """Build one entry of ``rounds`` in ``schemas/capacity-v1.schema.json``."""
    likely = dict(each.likely)
    hits = [
        {"up_to": name, "least": least, "most": most, "likely": likely.get(name)}
        for name, least, most in each.hits
    ]
    return {
        **fields(each, "number", "held_tokens", "reusable_tokens"),
        "hits": hits,
        **fields(each, "evicting", "may_evict"),
    }
