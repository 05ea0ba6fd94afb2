"""What ``capacity --trace`` answers: for a person, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from preflight.base.envelope import subjects
from preflight.base.plain_data import fields
from preflight.base.text import filled, fitted_table
from preflight.cache_sizing.capacity.answer import CapacityAnswer, ServerCapacity
from preflight.cache_sizing.capacity.deployment import Bounds
from preflight.cache_sizing.capacity.trace_answer import ServerReplay, TraceAnswer
from preflight.cache_sizing.traces.tiers import TIERS, Flows

Row = list[str]


def trace_text(capacity: CapacityAnswer, answer: TraceAnswer, width: int, plot: str) -> str:
    """Return the whole answer as text, without a final newline.

    Args:
        plot: The drawn curve, shown if the curve is asked for.
    """
    parts = [filled(trace_head(answer), width)]
    for server, replay in zip(capacity.servers, answer.servers, strict=True):
        if isinstance(replay, Unknown):
            parts.append(filled(f"{server.subject}: not replayed: {replay.reason}", width))
            continue
        about = f"{server.subject}, {replay.rules.write_policy}, on this trace:"
        heads, rows = tier_rows(server, replay, answer)
        tiers = fitted_table(rows, heads, width, right=range(1, len(heads)))
        parts.append(f"{filled(about, width)}\n{tiers}")
        lines = [*moves(server, replay, answer), *(f"note: {note}" for note in replay.notes)]
        parts.append("\n".join(filled(line, width) for line in lines))
    if answer.query.curve:
        heads, rows = curve_rows(capacity, answer)
        parts += [plot, fitted_table(rows, heads, width, right=range(1, 5))]
    lines = [*curve_sentences(capacity, answer), *(f"note: {note}" for note in answer.notes)]
    parts.append("\n".join(filled(line, width) for line in lines))
    return "\n\n".join(parts)


def trace_head(answer: TraceAnswer) -> str:
    """Return a sentence that describes the trace."""
    curve, block = answer.curve, answer.block_tokens
    over = "" if answer.span_seconds is None else f" in {_duration(answer.span_seconds)}"
    distinct = "" if curve.distinct is None else f", {curve.distinct:,} of them distinct"
    return (
        f"{answer.trace.name} ({answer.trace.format}): {answer.requests:,} requests{over}, "
        f"{answer.input_tokens:,} tokens of input; {curve.accesses:,} blocks of {block} "
        f"tokens{distinct}"
    )


def _duration(seconds: float) -> str:
    for unit, scale in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.0f} s"


def percent(rate: float) -> str:
    """Return a part as ``17.8%``."""
    return f"{100 * rate:.1f}%"


def rate_span(least: float, most: float) -> str:
    """Return ``4.9 to 5.0%``, or one number if both are the same."""
    low, high = map(percent, sorted((least, most)))
    return low if low == high else f"{low.removesuffix('%')} to {high}"


def _counts(least: int, most: int) -> str:
    return Bounds(*sorted((least, most))).text()


def tier_rows(
    server: ServerCapacity, replay: ServerReplay, answer: TraceAnswer
) -> tuple[Row, list[Row]]:
    """Return (headings, rows) of what each tier answers.

    After the tiers come the rows "all", for all tiers together, and "none", for what no tier
    answers.
    """
    speed = answer.query.prefill_tokens_per_second
    heads = ["tier", "hits", "tokens not computed", "tokens evicted"]
    rows = []
    for name in (tier.name for tier in server.capacity.tiers):
        if replay.l1_with_l2 and name == "L1":
            rows.append([name, *["unknown"] * 3])
            continue
        low, high = (_sums(flows, name, replay.l1_with_l2) for flows in (replay.least, replay.most))
        shown = "L1 and L2" if replay.l1_with_l2 and name == "L2" else name
        evicted = (size * answer.block_tokens for size in (low[2], high[2]))
        spans = rate_span(low[0], high[0]), _counts(low[1], high[1]), _counts(*evicted)
        rows.append([shown, *spans])
    least, most = replay.least, replay.most
    saved = [sum(flows.saved.values()) for flows in (least, most)]
    rows.append(["all", rate_span(1 - least.missed, 1 - most.missed), _counts(*saved), ""])
    missed = [flows.input_tokens - sum(flows.saved.values()) for flows in (least, most)]
    rows.append(["none", rate_span(least.missed, most.missed), "", ""])
    if speed is not None:
        heads.append("seconds of prefill")
        for row in rows:
            row.append("")
        rows[-2][-1] = "saved " + _counts(*(round(each / speed) for each in saved))
        rows[-1][-1] = "spent " + _counts(*(round(each / speed) for each in missed))
    return heads, rows


def _sums(flows: Flows, name: str, l1_with_l2: bool) -> tuple[float, int, int]:
    """Return (part of accesses that hit, tokens saved, blocks evicted) of a tier.

    Args:
        l1_with_l2: Hits and saved tokens of "L2" include those of L1.
    """
    names = ("L1", "L2") if l1_with_l2 and name == "L2" else (name,)
    saved = sum(flows.saved[each] for each in names)
    return sum(map(flows.rate, names)), saved, flows.evicted[name]


_MOVES = (("L1", "L2"), ("L2", "L1"), ("L2", "L3"), ("L3", "L2"), ("L3", "SSD"), ("SSD", "L2"))


def moves(server: ServerCapacity, replay: ServerReplay, answer: TraceAnswer) -> Iterator[str]:
    """Yield a sentence for each two tiers between which bytes were moved, and one on requests
    longer than L1.

    Nothing if the bytes of a token are not known.
    """
    size = server.capacity.bytes_per_token
    if isinstance(size, Unknown):
        return
    for move in (each for each in _MOVES if not (replay.l1_with_l2 and "L1" in each)):
        flows = (replay.least, replay.most)
        moved = Bounds(*sorted(each.moved[move] * answer.block_tokens * size for each in flows))
        if not moved.most:
            continue
        each = ""
        if answer.span_seconds:
            rate = moved.most / answer.span_seconds
            each = f", {format_bytes(int(rate))}/s on average"
            if move[1] == "SSD" and server.ssd is not None and server.ssd.fill_rate:
                each += f", of which at most {percent(server.ssd.part(rate / size))} reach it"
        yield f"{move[0]} to {move[1]}: {moved.text(format_bytes)}{each}"
    if long := replay.least.too_long:
        yield f"{long:,} requests are longer than L1: a server refuses them, and here they are cut"


def tier_sizes(capacity: CapacityAnswer, answer: TraceAnswer) -> list[tuple[str, int]]:
    """Return (name, blocks of all caches) of each tier of known size, then of each of ``marks``."""
    every = (tier for server in capacity.servers for tier in server.capacity.tiers)
    tiers = [(each.name, each.tokens.most) for each in every if isinstance(each.tokens, Bounds)]
    return [(name, tokens // answer.block_tokens) for name, tokens in (*tiers, *answer.query.marks)]


def curve_rows(capacity: CapacityAnswer, answer: TraceAnswer) -> tuple[Row, list[Row]]:
    """Return (headings, rows) of what one cache answers, by its size.

    The first column names the tier or mark, if any, that has this size.
    """
    size = capacity.servers[0].capacity.bytes_per_token
    known: dict[int, str] = {}
    for name, blocks in tier_sizes(capacity, answer):
        known.setdefault(max(1, blocks), name)
    rows = [
        [
            known.get(blocks, ""),
            f"{blocks * answer.block_tokens:,}",
            "" if isinstance(size, Unknown) else format_bytes(blocks * answer.block_tokens * size),
            percent(answer.curve.rate(blocks)),
            "unknown" if best is None else percent(best),
        ]
        for blocks, best in answer.best
    ]
    return ["as", "tokens in one cache", "bytes", "hits (LRU)", "best possible"], rows


def curve_sentences(capacity: CapacityAnswer, answer: TraceAnswer) -> Iterator[str]:
    """Yield sentences on the hit curve: its ceiling, its knee, the cache for the hit rate that was
    asked about, and the sampling error if a sample was followed.
    """
    curve, block = answer.curve, answer.block_tokens
    size = capacity.servers[0].capacity.bytes_per_token

    def held(blocks: int) -> str:
        tokens = blocks * block
        if isinstance(size, Unknown):
            return f"{tokens:,} tokens"
        return f"{tokens:,} tokens ({format_bytes(tokens * size)})"

    seen = f"{percent(curve.ceiling)} of all accesses are to a block that was seen before"
    yield f"ceiling: {seen}; no cache answers more"
    if curve.ceiling:
        answers = f"one cache of {held(curve.knee)} answers {percent(curve.rate(curve.knee))}"
        yield f"knee: {answers}; beyond it each GiB brings less"
    wanted = answer.query.hit_rate
    if wanted is not None:
        if (need := curve.size_for(wanted)) is None:
            yield f"{percent(wanted)}: no cache answers so much of this trace"
        else:
            yield f"{percent(wanted)}: one cache of {held(need)}"
            yield from _sizing_flags(capacity.servers[0], need * block)
    if curve.sampled < 1:
        yield (
            f"from a sample of {percent(curve.sampled)} of the blocks: rates are within "
            f"{200 * curve.error:.1f} points, 19 times of 20"
        )


def _sizing_flags(server: ServerCapacity, tokens: int) -> Iterator[str]:
    """Yield flags with which L2 alone, or the pool alone, holds ``tokens``.

    Nothing for a tier that is missing or of unknown size, and for L2 of several caches.
    """
    host, store, size = server.tiers.host, server.tiers.store, server.capacity.bytes_per_token
    if host is not None and server.deployment.groups == 1:
        l2_tokens, taken = host.tokens, host.bytes
        if isinstance(l2_tokens, Bounds) and isinstance(taken, Bounds):
            each = taken.most / l2_tokens.most / server.deployment.ranks
            yield f"as L2 alone: --hicache-size {ceil(tokens * each / 1e9)} (of each rank)"
    if store is None or isinstance(store.tokens, Unknown) or isinstance(size, Unknown):
        return
    if not isinstance(server.eviction, Unknown) and (limit := server.eviction.watermark):
        whole = format_bytes(ceil(tokens * size / limit))
        yield f"as the pool alone: segments of {whole} in all, which evict above {limit:g}"


def trace_object(capacity: CapacityAnswer, answer: TraceAnswer) -> dict[str, Any]:
    """Return the answer as the JSON object ``trace`` of ``schemas/capacity-v1.schema.json``."""
    curve, block, wanted = answer.curve, answer.block_tokens, None
    if (rate := answer.query.hit_rate) is not None:
        need = curve.size_for(rate)
        wanted = {"rate": rate, "tokens": None if need is None else need * block}
    return {
        **fields(answer.trace, "name", "format"),
        "block_tokens": block,
        **fields(answer, "requests", "input_tokens", "output_tokens", "span_seconds"),
        **fields(curve, "accesses", "distinct", "ceiling"),
        "knee_tokens": curve.knee * block,
        "sampled": curve.sampled,
        "sampling_error": curve.error,
        "curve": [
            {"tokens": size * block, "lru": curve.rate(size), "best": best}
            for size, best in sorted(dict(answer.best).items())
        ],
        "wanted": wanted,
        "servers": [
            {"unknown": replay.reason} if isinstance(replay, Unknown) else _replay(server, replay)
            for server, replay in zip(capacity.servers, answer.servers, strict=True)
        ],
        "notes": list(answer.notes),
    }


def _replay(server: ServerCapacity, replay: ServerReplay) -> dict[str, Any]:
    """Return the JSON object of one server's replay, with the least and most its tiers may hold."""
    rules = replay.rules
    return {
        "subjects": subjects([server.subject]),
        **fields(rules, "write_policy", "caches"),
        "routing": rules.routing.how,
        "l1_with_l2": replay.l1_with_l2,
        "least": _flows(replay.least),
        "most": _flows(replay.most),
        "notes": list(replay.notes),
    }


def _flows(flows: Flows) -> dict[str, Any]:
    """Return the JSON object of one replay: hit rates, tokens saved, blocks evicted and moved."""
    keys = "name", "rate", "saved_tokens", "evicted_blocks"
    each = ((name, flows.rate(name), flows.saved[name], flows.evicted[name]) for name in TIERS)
    return {
        "tiers": [dict(zip(keys, tier, strict=True)) for tier in each],
        "missed": flows.missed,
        "moved": [{"from": a, "to": b, "blocks": flows.moved[a, b]} for a, b in _MOVES],
        "too_long": flows.too_long,
    }
