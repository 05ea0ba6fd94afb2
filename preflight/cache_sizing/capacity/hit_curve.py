"""Hits by the size of one cache, drawn: for a terminal, for a page, and as an SVG by itself.

The axis of sizes doubles from mark to mark. Both lines are of one cache: what the least recently
used keep, and the best that could be. A letter is a tier of the launch, by its size.
"""

from collections.abc import Callable, Sequence
from math import hypot, log2
from typing import NamedTuple

from checks.framework.unknown import Unknown
from preflight.base.html_page import Html, element, join, page, table
from preflight.base.output import say
from preflight.base.text import wrapped
from preflight.cache_sizing.capacity.answer import CapacityAnswer
from preflight.cache_sizing.capacity.report import COLOURS, MOST_PLOT, ROWS, letter_of
from preflight.cache_sizing.capacity.trace_answer import TraceAnswer
from preflight.cache_sizing.capacity.trace_report import (
    curve_rows,
    curve_sentences,
    moves,
    percent,
    tier_rows,
    tier_sizes,
    trace_head,
)
from preflight.report.pictures.check_page import page_style
from preflight.report.pictures.figures import svg_text

Paint = Callable[[str, str], str]
# "100 % |"
_AXIS = 7
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 270, 46, 16, 12, 40
_MARK = 7  # the radius of a tier's mark


class _Mark(NamedTuple):
    """A tier of the launch on the plot.

    Attributes:
        letter: Its sign.
        across: Its size, as a place from 0 to 1 on the axis.
        rate: Hits of one cache of that size, 0 to 1.
    """

    letter: str
    name: str
    across: float
    rate: float


class _Plot(NamedTuple):
    """The hit curve with its axes.

    Attributes:
        least, most: Blocks at the left and right end.
        top: The rate at the upper end.
        marks: The launch's tiers.
    """

    answer: TraceAnswer
    least: int
    most: int
    top: float
    marks: tuple[_Mark, ...]

    def size(self, across: float) -> float:
        return self.least * 2 ** (across * log2(self.most / self.least))

    def across(self, blocks: float) -> float:
        part = log2(max(blocks, 1) / self.least) / log2(self.most / self.least)
        return min(1.0, max(0.0, part))

    def rate(self, across: float) -> float:
        return self.answer.curve.rate(self.size(across))

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The marks of the axis: (place from 0 to 1, tokens as text), for every second doubling."""
        count = round(log2(self.most / self.least))
        sizes = [self.least << at for at in range(0, count + 1, 2)]
        return [(self.across(size), _short(size * self.answer.block_tokens)) for size in sizes]


def _plot(capacity: CapacityAnswer, answer: TraceAnswer) -> _Plot | None:
    """Return the plot of the curve with the tiers' marks; None if nothing hits, or only one size is
    known.
    """
    sizes = [size for size, _ in answer.best]
    ceiling = answer.curve.ceiling
    if not ceiling or len(sizes) < 2:
        return None
    least, most = sizes[0], sizes[-1]
    doublings = max(1, (-(-most // least) - 1).bit_length())
    top = min(1.0, (int(ceiling * 10) + 1) / 10)  # the next ten per cent
    plot = _Plot(answer, least, least << doublings, top, ())
    marks = [
        _Mark(letter_of(name), name, plot.across(blocks), answer.curve.rate(blocks))
        for name, blocks in tier_sizes(capacity, answer)
    ]
    return plot._replace(marks=tuple(marks))


def _short(tokens: int) -> str:
    """Return a number of tokens by thousands: ``64K``, ``4.1M``."""
    for unit, scale in (("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if tokens >= scale:
            return f"{tokens / scale:.3g}{unit}"
    return str(tokens)


def plot_text(
    capacity: CapacityAnswer, answer: TraceAnswer, paint: Paint, width: int, plain: bool
) -> str:
    """Return the curve as text for a terminal; "" if there is nothing to draw.

    Args:
        paint: Colours a mark, (text, colour).
        width: In columns.
        plain: Use ASCII characters only.
    """
    plot = _plot(capacity, answer)
    if plot is None:
        return ""
    room = min(MOST_PLOT, width - _AXIS - 6)
    cells = [[(" ", "")] * room for _ in range(ROWS)]

    def place(across: float, rate: float) -> tuple[int, int]:
        return round((1 - rate / plot.top) * (ROWS - 1)), round(across * (room - 1))

    def put(at: tuple[int, int], mark: str, colour: str) -> None:
        cells[at[0]][at[1]] = (mark, colour)

    best = [(plot.across(size), rate) for size, rate in answer.best if rate is not None]
    for column in range(room):
        across = column / (room - 1)
        if best:
            put(place(across, _height_at(best, across)), "-" if plain else "·", "")
        put(place(across, plot.rate(across)), "." if plain else "•", COLOURS[0])
    # Tiers of about one size are one mark, which the legend gives all their names.
    together: dict[tuple[int, int], list[_Mark]] = {}
    for mark in plot.marks:
        together.setdefault(place(mark.across, mark.rate), []).append(mark)
    for at, (cell, marks) in enumerate(together.items()):
        put(cell, marks[0].letter, COLOURS[(at + 1) % len(COLOURS)])
    about = "Hits of one cache, by the tokens that it holds (each mark is 4 times as many)"
    lines = wrapped(about, width)
    for row, line in enumerate(cells):
        label = f"{100 * plot.top * (1 - row / (ROWS - 1)):3.0f} %" if row % 2 == 0 else "     "
        text = "".join(paint(char, colour) if colour else char for char, colour in line)
        lines.append(f"{label} |{text}".rstrip())
    axis = [" "] * (room + 8)
    for across, tick in plot.ticks:
        at = round(across * (room - 1))
        if "".join(axis[max(0, at - 1) : at + len(tick)]).strip() == "":
            axis[at : at + len(tick)] = tick
    lines += [f"      +{'-' * room}", f"{'tokens':<{_AXIS}}{''.join(axis).rstrip()}"]
    key = [". LRU" if plain else "• LRU", "- the best possible" if plain else "· the best possible"]
    key = key if best else key[:1]
    named = ((x[0].letter, " and ".join(mark.name for mark in x)) for x in together.values())
    key += [f"{letter} as large as {names}" for letter, names in named]
    return "\n".join([*lines, *wrapped(" " * _AXIS + ", ".join(key), width, 0)])


def _height_at(points: Sequence[tuple[float, float]], across: float) -> float:
    """Return the height at ``across`` on the lines between ``points``, level beyond both ends."""
    before = points[0]
    for point in points:
        if point[0] >= across:
            width = point[0] - before[0]
            part = (across - before[0]) / width if width else 1.0
            return before[1] + (point[1] - before[1]) * part
        before = point
    return before[1]


def plot_figure(
    capacity: CapacityAnswer, answer: TraceAnswer, *style: Html, **attributes: str
) -> Html:
    """Return the curve as an SVG element; empty if there is nothing to draw.

    Args:
        style, attributes: Elements and attributes to add to the SVG.
    """
    plot = _plot(capacity, answer)
    if plot is None:
        return Html("")

    def x(across: float) -> float:
        return round(_LEFT + across * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(rate: float) -> float:
        return round(_TOP + (1 - rate / plot.top) * (_HEIGHT - _TOP - _BOTTOM), 1)

    def line(points: Sequence[tuple[float, float]], colour: str) -> Html:
        shown = " ".join(f"{x(across):g},{y(rate):g}" for across, rate in points)
        return element("polyline", points=shown, class_=f"line {colour}")

    shapes = []
    for step in range(round(plot.top * 10) + 1):
        at = y(step / 10)
        shapes.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at, class_="grid"))
        shapes.append(svg_text(f"{step * 10} %", _LEFT - 6, at + 4, "tick", "end"))
    ticks = plot.ticks
    for across, tick in ticks[:: -(-len(ticks) // 7)]:
        shapes.append(svg_text(tick, x(across), _HEIGHT - _BOTTOM + 18, "tick", "middle"))
    shapes.append(svg_text("tokens in one cache", _LEFT, _HEIGHT - 6, "tick", "start"))
    best = [(plot.across(size), rate) for size, rate in answer.best if rate is not None]
    if best:
        shapes.append(line(best, "t2"))
    shapes.append(line([(at / 120, plot.rate(at / 120)) for at in range(121)], "t1 whole"))
    places: list[tuple[float, float]] = []
    for number, mark in enumerate(plot.marks):
        look = f"mark t{number % 4}"
        title = element("title", f"as large as {mark.name}: {percent(mark.rate)}")
        place = x(mark.across), y(mark.rate)
        while any(hypot(place[0] - a, place[1] - b) < 2 * _MARK for a, b in places):
            # Above the one that stands there; at the picture's edge left of it.
            above, left = place[1] - 2 * _MARK - 1, place[0] - 2 * _MARK - 1
            place = (place[0], above) if above >= _MARK else (left, y(mark.rate))
        places.append(place)
        circle = element("circle", title, cx=place[0], cy=place[1], r=_MARK, class_=look)
        shapes += [circle, svg_text(mark.letter, place[0], place[1] + 3.5, "letter", "middle")]
    marks = "; ".join(f"as large as {mark.name} {percent(mark.rate)}" for mark in plot.marks)
    label = f"Hits of one cache by its size: ceiling {percent(answer.curve.ceiling)}; {marks}"
    size = f"0 0 {_WIDTH} {_HEIGHT}"
    about = {"role": "img", "aria_label": label, **attributes}
    return element("svg", *style, *shapes, viewBox=size, width="100%", **about)


# What the page's style says, for a picture by itself.
_ALONE = """
svg { font-family: system-ui, sans-serif; background: #fff; --text: #1f2328; --line: #d0d7de; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; --text: #e6edf3; --line: #30363d; }
}
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 2; }
.t1.line { stroke: #2f81f7; } .t2.line { stroke: #3fb950; stroke-dasharray: 4 3; }
.mark { fill: #2f81f7; } .tick { fill: var(--text); font-size: 11px; }
.letter { fill: #fff; font-size: 9.5px; font-weight: 700; }
"""


def trace_parts(capacity: CapacityAnswer, answer: TraceAnswer) -> list[Html]:
    """Return the parts of a page about a trace: its sentence, each server's tiers, then the curve
    with its table and notes.
    """
    parts = [element("p", trace_head(answer))]
    for server, replay in zip(capacity.servers, answer.servers, strict=True):
        parts.append(element("h2", server.subject))
        if isinstance(replay, Unknown):
            parts.append(element("p", f"not replayed: {replay.reason}"))
            continue
        heads, rows = tier_rows(server, replay, answer)
        parts.append(_table(heads, rows, f"{server.model}, {replay.rules.write_policy}"))
        sentences = (*moves(server, replay, answer), *replay.notes)
        parts.append(element("ul", *(element("li", each) for each in sentences)))
    heads, rows = curve_rows(capacity, answer)
    key = "Blue: the least recently used are evicted. Dashed: the best possible."
    drawn = element(
        "figure", plot_figure(capacity, answer), element("figcaption", key), class_="curve"
    )
    parts += [element("h2", "One cache of any size"), drawn, _table(heads, rows, "By size")]
    sentences = (*curve_sentences(capacity, answer), *answer.notes)
    return [*parts, element("ul", *(element("li", each) for each in sentences))]


def say_picture(format_: str, capacity: CapacityAnswer, answer: TraceAnswer) -> None:
    """Print the answer to standard output: as ``html`` the page with all that the text says, as
    ``svg`` only the curve.

    An empty curve is told on standard error.
    """
    if format_ == "html":
        title = f"{answer.trace.name.rpartition('/')[2]}: hits by tier"
        body = join([element("h1", title), *trace_parts(capacity, answer)], "\n")
        say(page(title, body, style=page_style()).rstrip("\n"))
        return
    style = Html(f"<style>{_ALONE}</style>")
    drawn = plot_figure(capacity, answer, style, xmlns="http://www.w3.org/2000/svg")
    if drawn:
        say(drawn)
    else:
        say("--format svg: not written: nothing is asked for twice", err=True)


def _table(heads: list[str], rows: list[list[str]], caption: str) -> Html:
    return table(heads, rows, caption=caption, numeric_columns=range(1, len(heads)))
