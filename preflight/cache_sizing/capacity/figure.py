"""Pictures of the tiers of a cache, and of how much of a workload they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from preflight.base.html_page import Html, element, facts_list, join, table
from preflight.cache_sizing.capacity.answer import CapacityRequest
from preflight.cache_sizing.capacity.deployment import Bounds, Capacity, Round
from preflight.cache_sizing.capacity.report import (
    CAPTION,
    drawn_tiers,
    evicting_text,
    hit_of,
    hit_text,
    letter_of,
    reusing,
    spans_are_known,
    summarize_rounds,
    thinned,
    tiers_of,
)
from preflight.cache_sizing.capacity.rounds import replayed_capacity
from preflight.command_inputs.host_source import Sized
from preflight.report.pictures.figures import svg_text
from preflight.verdict.judge_host import JudgedHost

# More marks than these would lie on top of each other.
MOST_MARKS = 24

_CURVE_WIDTH, _CURVE_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 230, 42, 12, 10, 36


def capacity_figure(capacity: Capacity) -> Html:
    """Draw a server's tiers, then the curve and the table of a workload's rounds.

    Without rounds a sentence says why no curve is drawn.
    """
    parts = [_tiers(capacity)]
    if not capacity.rounds:
        caption_text = (
            "No curve: the launch starts no benchmark of many rounds; mooncake-preflight capacity "
            "takes one (--clients, --rounds, --request-length, --output-length)."
        )
        return join([*parts, element("p", caption_text)], "\n")
    shown = thinned(reusing(capacity.rounds), MOST_MARKS)
    if names := drawn_tiers(shown):
        text = CAPTION
        if any(_has_span(shown, name) for name in names):
            text += "; the pale area is from the least to the most"
        drawn = _curve(shown, names), _curve_key(shown, names), element("figcaption", text)
        parts.append(element("figure", *drawn, class_="curve"))
    return join([*parts, _rounds(capacity.rounds)], "\n")


def _tiers(capacity: Capacity) -> Html:
    """Return the list of tiers, each with its size and its formula."""
    items = []
    for tier in capacity.tiers:
        holds = [_bounds(tier.bytes, format_bytes)]
        if not isinstance(tier.tokens, Unknown):
            holds.append(f"{_bounds(tier.tokens)} tokens")
        elif not isinstance(tier.bytes, Unknown):
            holds.append(f"tokens {_bounds(tier.tokens)}")
        if tier.conversations is not None and not isinstance(tier.conversations, Unknown):
            holds.append(f"{_bounds(tier.conversations)} conversations")
        about = [element("strong", ", ".join(holds))]
        if tier.formula:
            about.append(element("div", tier.formula, class_="small muted"))
        items.append((f"{tier.name}, {tier.what}", join(about)))
    return facts_list(items)


def _bounds(bounds: Bounds | Unknown, shown: Callable[[int], str] = "{:,}".format) -> str:
    return f"unknown: {bounds.reason}" if isinstance(bounds, Unknown) else bounds.text(shown)


def _curve(rounds: Sequence[Round], tiers: Sequence[str]) -> Html:
    """Draw one line for each of ``tiers`` over the rounds, with its span as a pale area.

    The nearest tier is drawn last, so it is on top if lines meet.
    """
    shapes = _grid(rounds)
    for tier in reversed(tiers):
        at = _colour(rounds, tier)
        hits = [hit_of(each, tier) for each in rounds]
        line, high = (
            [(_x(rounds, number), _y(height)) for number, height in enumerate(heights)]
            for heights in zip(*hits, strict=True)
        )
        if _has_span(rounds, tier):
            area = _points([*high, *reversed(line)])
            shapes.append(element("polygon", points=area, class_=f"area t{at}"))
        shapes.append(element("polyline", points=_points(line), class_=f"line t{at}"))
        for x, y in line:
            place = {"cx": f"{x:.1f}", "cy": f"{y:.1f}"}
            shapes.append(element("circle", **place, r=6, class_=f"mark t{at}"))
            shapes.append(
                svg_text(letter_of(tier), f"{x:.1f}", f"{y + 3.5:.1f}", "letter", "middle")
            )
    last = rounds[-1]
    rates = "; ".join(f"{name} {hit_text(hit_of(last, name))}" for name in tiers)
    label = f"Reuse that is left in round {last.number}: {rates}"
    size = f"0 0 {_CURVE_WIDTH} {_CURVE_HEIGHT}"
    return element("svg", *shapes, viewBox=size, width="100%", role="img", aria_label=label)


def _colour(rounds: Sequence[Round], tier: str) -> int:
    """Return the number (0 to 3) of a tier's colour, the same whichever tiers are drawn."""
    return tiers_of(rounds).index(tier) % 4


def _has_span(rounds: Sequence[Round], tier: str) -> bool:
    """Tell whether least and most differ in any round, and are known."""
    hits = [hit_of(each, tier) for each in rounds]
    return any(hit.least != hit.most for hit in hits) and spans_are_known(rounds, tier)


def _grid(rounds: Sequence[Round]) -> list[Html]:
    """Return the curve's grid lines, with per cent on one axis and round numbers on the other."""
    shapes = []
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        ends = {"y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        shapes.append(element("line", x1=_LEFT, x2=_CURVE_WIDTH - _RIGHT, **ends, class_="grid"))
        shapes.append(svg_text(f"{percent} %", _LEFT - 5, f"{y + 4:.1f}", "tick", "end"))
    bottom = _CURVE_HEIGHT - _BOTTOM + 20
    for at in range(0, len(rounds), -(-len(rounds) // 12)):
        x = f"{_x(rounds, at):.1f}"
        shapes.append(svg_text(str(rounds[at].number), x, bottom, "tick", "middle"))
    return [*shapes, svg_text("round", _LEFT, _CURVE_HEIGHT - 3, "tick")]


def _x(rounds: Sequence[Round], at: int) -> float:
    room = _CURVE_WIDTH - _LEFT - _RIGHT - 12
    return _LEFT + 6 + (room * at / (len(rounds) - 1) if len(rounds) > 1 else room / 2)


def _y(height: float) -> float:
    return round(_TOP + (1 - min(1.0, max(0.0, height))) * (_CURVE_HEIGHT - _TOP - _BOTTOM), 1)


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _curve_key(rounds: Sequence[Round], tiers: Sequence[str]) -> Html:
    """Return the key of the curve: mark and name of each tier.

    Args:
        rounds: All that are drawn, which give each tier its colour.
    """
    items = []
    for name in tiers:
        at = _colour(rounds, name)
        circle = element("circle", cx=8, cy=8, r=7, class_=f"mark t{at}")
        letter = svg_text(letter_of(name), 8, 12, "letter", "middle")
        size = {"width": 16, "height": 16}
        mark = element("svg", circle, letter, class_="sample", **size, aria_hidden="true")
        before = "" if at == 0 else " and the tiers before it"
        items.append(element("li", mark, f" {name}{before}"))
    return element("ul", *items, class_="key")


def _rounds(rounds: Sequence[Round]) -> Html:
    """Return the table of all rounds: tokens, hits up to each tier, and tiers that evict."""
    tiers = tiers_of(rounds)
    rows = []
    for each in rounds:
        numbers = (str(each.number), f"{each.held_tokens:,}", f"{each.reusable_tokens:,}")
        reused = each.reusable_tokens > 0
        hits = (hit_text(hit_of(each, tier)) if reused else "" for tier in tiers)
        rows.append((*numbers, *hits, evicting_text(each)))
    names = [tier if at == 0 else f"+ {tier}" for at, tier in enumerate(tiers)]
    heads = ["round", "tokens held", "reusable", *names, "evicting"]
    numeric = range(1, 3 + len(tiers))
    return table(heads, rows, caption="Round by round", numeric_columns=numeric)


def draw_tiers(judged_host: JudgedHost, sized: Sized) -> Html:
    """Draw each server's tiers, with the curve of the benchmark that the launch
    starts, if any.

    Raises:
        UsageError: As ``replayed_capacity`` does.
    """
    folders = judged_host.facts.storage.folders
    inputs, root = sized.sizing.inputs, judged_host.host.root
    answer = replayed_capacity(inputs, sized.options, root, CapacityRequest(), folders)
    parts: list[Html] = []
    for server in answer.servers:
        heading = f"{server.subject}, {server.model}" if server.model else server.subject
        parts += [element("h3", heading), capacity_figure(server.capacity)]
        sentences = (*summarize_rounds(server, answer.workload), *server.notes)
        if sentences:
            parts.append(element("ul", *(element("li", note) for note in sentences)))
    return join([*parts, *(element("p", note) for note in answer.notes)], "\n")
