"""The answer of ``capacity``: for a person, what follows from it in sentences, and as JSON.

The curve has a line for each tier: the part of a round's reusable tokens that tiers up to it still
hold, at least. Where lines meet, the tier nearest to the GPU is shown: it is enough by itself.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from preflight.base.envelope import subjects
from preflight.base.one_line import clean
from preflight.base.plain_data import fields, plain
from preflight.base.text import filled, fitted_table
from preflight.cache_sizing.capacity.answer import CapacityAnswer, ServerCapacity, rate_sentence
from preflight.cache_sizing.capacity.deployment import Bounds, Keys, Round, Tier
from preflight.cache_sizing.capacity.workload import MultiTurnWorkload


def capacity_text(answer: CapacityAnswer, width: int, paint: Paint, ascii_only: bool) -> str:
    """Return the whole answer without a final newline.

    Args:
        ascii_only: No other characters.
    """
    blocks = (_server_blocks(each, answer, width, paint, ascii_only) for each in answer.servers)
    parts = ["\n\n".join(filter(None, block)) for block in blocks]
    parts += [filled(note, width) for note in (*answer.notes, *answer.unread)]
    return "\n\n".join(parts)


def _server_blocks(
    server: ServerCapacity, answer: CapacityAnswer, width: int, paint: Paint, ascii_only: bool
) -> Iterator[str]:
    """Yield one server's blocks of text: head, tiers, formulas, then rounds with their curve,
    conclusions, notes.

    A block may be empty; the rounds are left out without a workload.
    """
    capacity = server.capacity
    size = server.capacity.bytes_per_token
    each = "" if isinstance(size, Unknown) else f", {format_bytes(size)} per token"
    page = "" if server.page_tokens is None else f", pages of {server.page_tokens}"
    yield filled(f"{server.subject}: {server.model}{each}{page}", width)
    yield _tiers(capacity.tiers, width)
    lines = [f"{tier.name}: {tier.formula}" for tier in capacity.tiers if tier.formula]
    if isinstance(keys := capacity.keys, Keys):
        memory = format_bytes(keys.master_bytes)
        text = f"master: {keys.number:,} keys when the pool is full, about {memory} of its memory"
        lines.append(text)
    if capacity.prefetch is not None:
        most = _bounds_text(capacity.prefetch)
        lines.append(f"prefetch: L3 is read for up to {most} tokens at a time in each cache")
    if (speed := answer.new_tokens_per_second) is not None:
        lines += [rate_sentence(tier, speed) for tier in capacity.tiers]
    yield "\n".join(filled(line, width) for line in lines)
    if isinstance(answer.workload, MultiTurnWorkload) and capacity.rounds:
        yield filled(_workload_sentence(answer.workload), width)
        yield _rounds_table(capacity.rounds, width)
        yield curve_text(capacity.rounds, paint, width, ascii_only)
    yield "\n".join(filled(line, width) for line in summarize_rounds(server, answer.workload))
    yield "\n".join(filled(f"note: {note}", width) for note in server.notes)


def _tiers(tiers: Sequence[Tier], width: int) -> str:
    """Return the table of tiers as text; it has a column of conversations if any were counted."""
    heads, rows = ["tier", "", "bytes", "tokens", "conversations"], []
    for tier in tiers:
        counted = "" if tier.conversations is None else _bounds_text(tier.conversations)
        size = _bounds_text(tier.bytes, format_bytes)
        rows.append([tier.name, tier.what, size, _bounds_text(tier.tokens), counted])
    if all(tier.conversations is None for tier in tiers):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return fitted_table(rows, heads, width, right=range(2, len(heads)))


def _rounds_table(rounds: Sequence[Round], width: int) -> str:
    """Format the table of rounds; ``?`` after a tier's name says that the tier may have evicted."""
    heads = ["round", "tokens held", "seen before"]
    heads += [f"to {name}" if at else name for at, (name, _, _) in enumerate(rounds[0].hits)]
    rows: list[list[str]] = []
    for each in rounds:
        numbers = [str(each.number), f"{each.held_tokens:,}", f"{each.reusable_tokens:,}"]
        hits = (share(a, b) if each.reusable_tokens else "-" for _, a, b in each.hits)
        evicting = (*each.evicting, *(f"{name}?" for name in each.may_evict_too))
        rows.append([*numbers, *hits, " ".join(evicting)])
    return fitted_table(rows, [*heads, "evicting"], width, right=range(len(heads)))


def _workload_sentence(workload: MultiTurnWorkload) -> str:
    """Return the sentence above the table of rounds: the workload, and what the table shows."""
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
    """Yield a sentence for each tier of known size on when it starts to evict, then some on what is
    lost.

    Nothing without rounds or workload.
    """
    rounds, tiers, kept = server.capacity.rounds, server.capacity.tiers, server.capacity.kept
    if not rounds or not isinstance(workload, MultiTurnWorkload):
        return
    fates = [_fate(each, each.tokens, rounds) for each in tiers if isinstance(each.tokens, Bounds)]
    yield from (*fates, *(_losses(rounds) if fates else ()))
    if kept is not None and kept[0] < 1:
        yield f"of what is asked again in all {_rounds(len(rounds))}, {share(*kept)} is kept"


def first_evicting(rounds: tuple[Round, ...], name: str) -> int | None:
    """Return the number of the first round by whose end the tier has certainly evicted, or None."""
    return next((each.number for each in rounds if name in each.evicting), None)


def first_may_evict(rounds: tuple[Round, ...], name: str) -> int | None:
    """Return the number of the first round by whose end the tier may have evicted, or None."""
    return next((each.number for each in rounds if name in each.may_evict), None)


def _fate(tier: Tier, tokens: Bounds, rounds: tuple[Round, ...]) -> str:
    """Say in which round the tier starts, or may start, to evict, or that it never does.

    Args:
        tokens: Those that the tier holds.
    """
    lead = f"{tier.name} ({tier.what}), {tokens.text()} tokens"
    maybe, certain = first_may_evict(rounds, tier.name), first_evicting(rounds, tier.name)
    last = rounds[-1]
    if maybe is None:
        never = f"{lead}: never evicts in {_rounds(last.number)}"
        return f"{never}, which come to {last.held_tokens:,} tokens"
    tokens_then = rounds[maybe - 1].held_tokens
    before = "holds no whole round"
    if maybe > 1:
        before = f"holds {'round 1' if maybe == 2 else f'rounds 1 to {maybe - 1}'}"
    if certain == maybe:
        return f"{lead}: {before} and starts to evict in round {maybe} ({tokens_then:,} tokens)"
    ends = f"has in round {certain}" if certain else f"may never in {_rounds(last.number)}"
    return f"{lead}: {before}, may start to evict in round {maybe} ({tokens_then:,} tokens), {ends}"


def _losses(rounds: tuple[Round, ...]) -> Iterator[str]:
    """Yield a sentence on the first and one on the last round in which not all reusable tokens are
    certainly kept; a single sentence if all are kept.
    """
    lost = [each for each in rounds if each.hits and each.hits[-1][1] < 1 and each.reusable_tokens]
    if not lost:
        yield "no token that was seen before is computed again"
        return
    for each in dict.fromkeys((lost[0], lost[-1])):
        _, least, most = each.hits[-1]
        yield (
            f"in round {each.number}, of {each.reusable_tokens:,} tokens seen before, "
            f"{share(least, most)} are still there"
        )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _bounds_text(bounds: Bounds | Unknown, shown: Callable[[int], str] = "{:,}".format) -> str:
    return "unknown" if isinstance(bounds, Unknown) else bounds.text(shown)


def share(least: float, most: float) -> str:
    """Return two parts (0 to 1) as ``40 to 79%``, or as one number if both round to the same."""
    low, high = whole_percent(least), whole_percent(most)
    return f"{low}%" if low == high else f"{low} to {high}%"


def capacity_object(answer: CapacityAnswer) -> dict[str, Any]:
    """Return the answer as the JSON object of ``schemas/capacity-v1.schema.json``."""
    servers = [_server_object(server, answer) for server in answer.servers]
    return {"servers": servers, **fields(answer, "workload", "notes", "unread")}


def _server_object(server: ServerCapacity, answer: CapacityAnswer) -> dict[str, Any]:
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
        "kept": capacity.kept and dict(zip(("least", "most"), capacity.kept, strict=True)),
        "rounds": [_round_object(each) for each in capacity.rounds],
        "conclusions": list(summarize_rounds(server, answer.workload)),
        "notes": plain(server.notes),
    }


def _round_object(each: Round) -> dict[str, Any]:
    """Build one entry of ``rounds`` in ``schemas/capacity-v1.schema.json``."""
    rows = [(*hit, hit[1] if hit[1] == hit[2] else None) for hit in each.hits]
    keys = "up_to", "least", "most", "likely"
    numbers = fields(each, "number", "held_tokens", "reusable_tokens")
    hits = [dict(zip(keys, row, strict=True)) for row in rows]
    return {**numbers, "hits": hits, **fields(each, "evicting", "may_evict")}


Paint = Callable[[str, str], str]

# What the lines of the plot show.
CAPTION = "Reuse that is left, by round, with all tiers up to each, at least"

# Rows of the plot; eleven show every ten per cent.
ROWS = 11
# "100 % |"
_AXIS = 7
# A plot wider than this is only longer lines.
MOST_PLOT = 72
COLOURS = ("yellow", "blue", "green", "magenta")
# A braille cell is two dots wide and four high; the bit of each.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def tiers_of(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the names of the tiers in the rounds' hits, nearest to the GPU first."""
    return tuple(dict.fromkeys(name for each in rounds for name, _, _ in each.hits))


def drawn_tiers(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the names of the tiers to draw a line for: not those of which nothing is known."""
    return tuple(tier for tier in tiers_of(rounds) if not _is_unknown(rounds, tier))


def spans_are_known(rounds: Sequence[Round], tier: str) -> bool:
    """Return whether the most that tiers up to ``tier`` may serve is more than a guess."""
    names = tiers_of(rounds)
    return not any(_is_unknown(rounds, name) for name in names[: names.index(tier) + 1])


def _is_unknown(rounds: Sequence[Round], tier: str) -> bool:
    """Return whether nothing of a tier is certain, though it may serve something."""
    spans = {(low, high) for each in rounds for name, low, high in each.hits if name == tier}
    return all(low == 0 for low, _ in spans) and any(high > 0 for _, high in spans)


def reusing(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Return the rounds in which something was seen before; the first has nothing."""
    return tuple(each for each in rounds if each.reusable_tokens > 0)


def thinned(rounds: Sequence[Round], most: int) -> tuple[Round, ...]:
    """Return at most ``most`` of the rounds, evenly, the first and the last among them."""
    if len(rounds) <= most:
        return tuple(rounds)
    return tuple(rounds[at * (len(rounds) - 1) // (most - 1)] for at in range(most))


def letter_of(tier: str) -> str:
    """Return the letter of a tier: ``L2`` is ``2``, ``SSD`` is ``S``."""
    return tier[1] if tier[:1] == "L" and tier[1:2].isdigit() else tier[:1] or "?"


class Hit(NamedTuple):
    """Parts of a round's reusable tokens, 0 to 1."""

    least: float
    most: float


def hit_of(each: Round, tier: str) -> Hit:
    """Return the parts that tiers up to ``tier`` serve in a round; zeros if the round lacks it."""
    hits = (Hit(least, most) for name, least, most in each.hits if name == tier)
    return next(hits, Hit(0.0, 0.0))


def whole_percent(part: float) -> int:
    """Return a part (0 to 1) in per cent.

    It is 0 only for nothing, and 100 only for everything.
    """
    whole = round(part * 100)
    return min(99, max(1, whole)) if 0 < part < 1 else whole


def hit_text(hit: Hit) -> str:
    """Return ``96 %`` or ``50 to 100 %``."""
    return share(*hit).replace("%", " %")


def evicting_text(each: Round) -> str:
    """Return the tiers that evict in a round as ``L1, L2, perhaps L3``."""
    return ", ".join((*each.evicting, *(f"perhaps {name}" for name in each.may_evict_too)))


def curve_text(rounds: Sequence[Round], paint: Paint, width: int, plain: bool) -> str:
    """Return the plot of hits by round without a final newline; a sentence if there is nothing to
    plot.

    Args:
        plain: Draw with ASCII characters only.
    """
    shown = reusing(rounds)
    if not shown:
        return textwrap.fill("Nothing is reused in these rounds: there is no curve to draw", width)
    tiers = drawn_tiers(shown)
    if not tiers:
        return textwrap.fill("What the tiers hold is not known: there is no curve to draw", width)
    lines = textwrap.wrap(CAPTION, width)
    # The last round's number begins below its mark.
    room = min(MOST_PLOT, width - _AXIS - len(str(shown[-1].number)) + 1)
    shown = thinned(shown, room)
    plotted = _plot(shown, tiers, room, plain)
    for row, cells in enumerate(plotted):
        label = f"{100 - 10 * row:3d} %" if row % 2 == 0 else "     "
        text = "".join(paint(char, COLOURS[at % 4]) if at >= 0 else char for char, at in cells)
        lines.append(f"{label} |{text}".rstrip())
    lines += _axis(shown, len(plotted[0]))
    first, margin = tiers_of(shown)[0], " " * _AXIS
    named = [f"{letter_of(t)} {'' if t == first else 'up to '}{clean(t)}" for t in tiers]
    legend = ", ".join(named)
    lines += textwrap.wrap(legend, width, initial_indent=margin, subsequent_indent=margin)
    return "\n".join(lines)


def _plot(
    rounds: Sequence[Round], tiers: Sequence[str], width: int, plain: bool
) -> list[list[tuple[str, int]]]:
    """Return the plot's rows of (character, index of the character's tier, or -1 for a blank), the
    top row first.

    Args:
        width: Most columns.
    """
    across, down = (1, 1) if plain else (2, 4)
    columns = _columns(rounds, width)
    size = columns[-1] + 1
    colours = [tiers_of(rounds).index(tier) for tier in tiers]
    cells: list[list[tuple[str, int]]] = [[(" ", -1)] * size for _ in range(ROWS)]
    dots: dict[tuple[int, int], int] = {}
    # The nearest tier last: its marks stand on top.
    for at in reversed(range(len(tiers))):
        heights = [hit_of(each, tiers[at]).least for each in rounds]
        for (x0, h0), (x1, h1) in pairwise(zip(columns, heights, strict=True)):
            for step in range((x1 - x0) * across + 1):
                share = step / ((x1 - x0) * across)
                y = (1 - (h0 + (h1 - h0) * share)) * (ROWS - 1) * down + (down - 1) / 2
                x, row = divmod(x0 * across + step, across)[0], int(y) // down
                bit = _DOTS[int(y) % down][(x0 * across + step) % across]
                same = cells[row][x][1] == colours[at]
                dots[row, x] = bit | (dots.get((row, x), 0) if same else 0)
                cells[row][x] = ("." if plain else chr(0x2800 + dots[row, x]), colours[at])
        for column, height in zip(columns, heights, strict=True):
            row = int((1 - height) * (ROWS - 1) + 0.5)
            cells[row][column] = (letter_of(tiers[at]), colours[at])
    return cells


def _columns(rounds: Sequence[Round], width: int) -> list[int]:
    """Return the plot's column of each round, evenly apart, below ``width``."""
    if len(rounds) == 1:
        return [0]
    step = max(1, min(8, (width - 1) // (len(rounds) - 1)))
    last = min(width - 1, step * (len(rounds) - 1))
    return [at * last // (len(rounds) - 1) for at in range(len(rounds))]


def _axis(rounds: Sequence[Round], size: int) -> list[str]:
    """Return the two lines below the plot: its lower edge, and as many round numbers as fit.

    Args:
        size: The width of the plot, in columns.
    """
    row = [" "] * (size + 8)
    free = 0
    for column, each in zip(_columns(rounds, size), rounds, strict=True):
        number = str(each.number)
        if column >= free:
            row[column : column + len(number)] = number
            free = column + len(number) + 1
    return [f"      +{'-' * size}", f"round  {''.join(row).rstrip()}"]
