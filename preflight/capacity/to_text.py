"""The answer of ``capacity`` for a person: a table of tiers, one of rounds, and what follows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.capacity.answer import Answer, ServerAnswer
from preflight.capacity.conclusions import conclusions, share, span
from preflight.capacity.curve import Paint, curve_text
from preflight.capacity.records import Bounds, Keys, Round, Tier
from preflight.capacity.workload import Workload


def capacity_text(found: Answer, width: int, paint: Paint, plain: bool) -> str:
    """The whole answer without a final newline. plain: characters of ASCII alone."""
    parts = [
        "\n\n".join(part for part in _server(server, found, width, paint, plain) if part)
        for server in found.servers
    ]
    parts += [_filled(note, width) for note in found.notes]
    return "\n\n".join(parts)


def _server(
    server: ServerAnswer, found: Answer, width: int, paint: Paint, plain: bool
) -> Iterator[str]:
    capacity = server.capacity
    yield _filled(_head(server), width)
    yield _table(_tier_lines(capacity.tiers))
    formulas = [f"{tier.name}: {tier.formula}" for tier in capacity.tiers if tier.formula]
    yield "\n".join(_filled(line, width) for line in (*formulas, *_keys(capacity.keys)))
    if isinstance(found.workload, Workload) and capacity.rounds:
        yield _filled(_workload(found.workload), width)
        yield _table(_round_lines(capacity.rounds))
        yield curve_text(capacity.rounds, paint, width, plain)
    yield "\n".join(_filled(line, width) for line in conclusions(server, found.workload))
    yield "\n".join(_filled(f"note: {note}", width) for note in server.notes)


def _head(server: ServerAnswer) -> str:
    size = server.capacity.bytes_per_token
    each = "" if isinstance(size, Unknown) else f", {format_bytes(size)} per token"
    page = "" if server.page_tokens is None else f", pages of {server.page_tokens}"
    return f"{server.subject}: {server.model}{each}{page}"


def _keys(keys: Keys | Unknown | None) -> Iterator[str]:
    if isinstance(keys, Keys):
        yield (
            f"master: {keys.number:,} keys when the pool is full, about "
            f"{format_bytes(keys.master_bytes)} of its memory"
        )


def _tier_lines(tiers: Sequence[Tier]) -> list[list[str]]:
    counted = any(tier.conversations is not None for tier in tiers)
    heads = ["tier", "", "bytes", "tokens", *(["conversations"] if counted else [])]
    lines = [heads]
    for tier in tiers:
        line = [tier.name, tier.what, _bytes(tier.bytes), _count(tier.tokens)]
        lines.append([*line, _count(tier.conversations)] if counted else line)
    return lines


def _round_lines(rounds: Sequence[Round]) -> list[list[str]]:
    names = [name for name, _, _ in rounds[0].hits]
    heads = ["round", "tokens held", "seen before"]
    heads += [name if index == 0 else f"to {name}" for index, name in enumerate(names)]
    lines = [[*heads, "evicting"]]
    for each in rounds:
        parts = [
            share(least, most) if each.reusable_tokens else "-" for _, least, most in each.hits
        ]
        held, seen = f"{each.held_tokens:,}", f"{each.reusable_tokens:,}"
        lines.append([str(each.number), held, seen, *parts, _evicting(each)])
    return lines


def _evicting(each: Round) -> str:
    maybe = [f"{name}?" for name in each.may_evict if name not in each.evicting]
    return " ".join((*each.evicting, *maybe))


def _workload(workload: Workload) -> str:
    length = f"{workload.first_tokens:,}"
    if workload.next_tokens != workload.first_tokens:
        length = f"{length}, then {workload.next_tokens:,}"
    return (
        f"{workload.clients} clients x {length} tokens x {workload.rounds} rounds, answers of "
        f"{workload.output_tokens} ({workload.origin}); the part of what was seen before that is "
        "still there:"
    )


def _bytes(bounds: Bounds | Unknown) -> str:
    if isinstance(bounds, Unknown):
        return "unknown"
    least, most = format_bytes(bounds.least), format_bytes(bounds.most)
    return least if least == most else f"{least} to {most}"


def _count(bounds: Bounds | Unknown | None) -> str:
    if bounds is None or isinstance(bounds, Unknown):
        return "unknown" if bounds is not None else ""
    return span(bounds)


def _table(lines: list[list[str]]) -> str:
    from tabulate import tabulate

    align = [
        "left" if index < 2 and lines[0][1] == "" else "right" for index in range(len(lines[0]))
    ]
    if lines[0][-1] == "evicting":
        align[-1] = "left"
    text = tabulate(
        lines[1:], lines[0], tablefmt="simple", disable_numparse=True, colalign=tuple(align)
    )
    return "\n".join(line.rstrip() for line in text.splitlines())


def _filled(text: str, width: int) -> str:
    return textwrap.fill(
        text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
