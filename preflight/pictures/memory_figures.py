"""Memory for a page: each place now and with the launch; what processes register and may lock."""

from collections.abc import Sequence
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.memlock.demand import Demand, grant
from checks.memlock.judge import demand_on
from checks.releases.mooncake import release_of
from checks.run.facts import Facts
from preflight.check.report import fold
from preflight.pictures.memory_map import KINDS, Bar, MemoryMap, MemoryPlace, known_bars, table_rows
from preflight.render.html_page import Html, Keyed, element, join, table

# A part narrower than this has no room for its letter, in per cent of the bar, on a phone.
LETTERED_PERCENT = 4.0
BAR_HEIGHT = 30
_PALE = ("pool", "free", "reserve", "closed", "unknown")


def memory_figure(memory_map: MemoryMap) -> Html:
    """Draw every bar with its notes, and one table of all parts in bytes."""
    places = (_place(memory_map, place) for place in memory_map.places)
    return join([_patterns(), *places, _table(memory_map)], "\n")


def _place(memory_map: MemoryMap, place: MemoryPlace) -> Html:
    """Draw the bars of one place: now, and with the launch."""
    if isinstance(place.now, Unknown):
        return element("p", element("strong", place.name), f": unknown: {place.now.reason}")
    total = place.now.total_bytes
    size = "bound to no node" if total is None else format_bytes(total)
    lines = [element("h3", f"{place.name}: {size}")]
    for label, bar in (("now", place.now), ("with the launch", place.after)):
        if isinstance(bar, Unknown):
            lines.append(element("p", f"With the launch: unknown: {bar.reason}"))
        elif bar is not None and (bar.parts or bar is place.after):
            drawn = _svg(f"{place.name} {label}", bar, memory_map.share(bar))
            head = element("span", label, class_="small muted")
            lines.append(element("div", head, drawn, class_="bar"))
    if not isinstance(place.shown, Unknown):
        lines += [element("p", note, class_="small") for note in place.shown.notes]
    return element("div", *lines, class_="place")


def _svg(label: str, bar: Bar, share: float) -> Html:
    """Draw a bar with widths in per cent, so that letters are not stretched."""
    size = bar.parts_bytes
    parts = ", ".join(f"{KINDS[p.kind].name} {format_bytes(p.bytes)}" for p in bar.parts)
    shapes, at = [], 0
    for part in bar.parts:
        kind = KINDS[part.kind]
        inner = [_rect(at, part.bytes, size, f"k-{part.kind}")]
        if kind.pattern:
            inner.append(_rect(at, part.bytes, size, f"p-{kind.pattern}"))
        if part.bytes * 100 / size >= LETTERED_PERCENT and part.kind != "free":
            inner.append(_letter(part.kind, _percent(2 * at + part.bytes, 2 * size), 20))
        title = element("title", f"{kind.name}: {format_bytes(part.bytes)}")
        shapes.append(element("g", title, *inner))
        at += part.bytes
    if bar.over_bytes:
        parts += f"; {format_bytes(bar.over_bytes)} of it is not there"
        shapes += _over(size - bar.over_bytes, size)
    return _membar(f"{label}: {parts}", share, shapes)


def _membar(label: str, share: float, shapes: Sequence[Html]) -> Html:
    """Draw a bar that is ``share`` of the page wide, and two pixels at least."""
    width = f"{max(1.0, share * 100):.4f}%"
    about = {"role": "img", "aria_label": label}
    return element("svg", *shapes, class_="membar", width=width, height=BAR_HEIGHT, **about)


def _over(end: int, size: int) -> list[Html]:
    """Draw what is over the end, and the end."""
    place = _percent(end, size)
    line = element("line", x1=place, x2=place, y1=0, y2=BAR_HEIGHT, class_="end")
    return [_rect(end, size - end, size, "p-over"), line]


def _letter(kind: str, x: str | int, y: int) -> Html:
    ink = "ink-dark" if kind in _PALE else "ink"
    return element("text", KINDS[kind].letter, x=x, y=y, text_anchor="middle", class_=ink)


def _rect(at: int, size: int, total: int, kind: str) -> Html:
    x, width = _percent(at, total), _percent(size, total)
    return element("rect", x=x, y=0, width=width, height=BAR_HEIGHT, class_=kind)


def _percent(part: int, total: int) -> str:
    return f"{part * 100 / total:.4f}%"


def _table(memory_map: MemoryMap) -> Html:
    """Return a table of all parts in bytes; empty if no part is known."""
    bars = known_bars(memory_map.places)
    rows = [
        [
            row.name if row.kind is None else join([_swatch(row.kind), row.name]),
            *(Keyed(format_bytes(size), size) if size else "" for size in row.sizes),
        ]
        for row in table_rows(bars.values())
    ]
    if not rows:
        return Html("")
    caption = "Memory with this launch" if memory_map.with_launch else "Memory of this host"
    numeric = range(1, len(bars) + 1)
    return table(["part", *bars], rows, caption=caption, numeric_columns=numeric)


def _swatch(kind: str) -> Html:
    """Return the sample of one kind of memory: its colour, pattern and letter."""
    pattern = KINDS[kind].pattern
    fills = [f"k-{kind}", *([f"p-{pattern}"] if pattern else [])]
    shapes = [element("rect", width=22, height=18, class_=fill) for fill in fills]
    label = {"role": "img", "aria_label": KINDS[kind].letter}
    svg = {"class_": "swatch", "width": "22", "height": "18", **label}
    return element("svg", *shapes, _letter(kind, 11, 14), **svg)


def _patterns() -> Html:
    """Return the patterns that the page's fills refer to; once on a page."""

    def pattern(name: str, *inner: Html) -> Html:
        # Presentation attributes keep their capitals in HTML's parser.
        return Html(
            f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f"{join(inner)}</pattern>"
        )

    rising = "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4"
    up = element("path", d=rising, class_="hatch")
    down = element("path", d="M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4", class_="hatch")
    dot = element("circle", cx="4", cy="4", r="1.2", class_="dot")
    defs = element(
        "defs",
        pattern("over", element("path", d=rising, class_="hatch-over")),
        pattern("stripes", up),
        pattern("cross", up, down),
        pattern("dots", dot),
    )
    return element("svg", defs, class_="defs", width="0", height="0", aria_hidden="true")


class Locked(NamedTuple):
    """What processes alike register, and may lock: bytes. may_bytes: None for no limit."""

    names: tuple[str, ...]
    wanted: Demand | Unknown
    may_bytes: int | Unknown | None
    have: str


def locked_of(facts: Facts, needs: LaunchNeeds | None) -> list[Locked]:
    """Return each process's registered memory, as memlock.limit judges it; alike ones as one."""
    by_key: dict[object, Locked] = {}
    if needs is None:
        return []
    for process in needs.rdma_processes:
        granted = grant(facts.system, facts.limits, process)
        release = release_of(needs.mooncake_version)
        wanted = demand_on(facts.system, facts.rdma, process, release)
        limit = granted.limit
        may = None if granted.void is True else limit if isinstance(limit, Unknown) else limit.soft
        key = (wanted if isinstance(wanted, Demand) else wanted.reason, granted.have)
        before = by_key.get(key, Locked((), wanted, may, granted.have))
        by_key[key] = before._replace(names=(*before.names, process.name))
    return list(by_key.values())


def locked_figure(locked: Sequence[Locked]) -> Html:
    """Draw the registered memory and the limit of each process, to one scale."""
    if not locked:
        return element("p", "No process of the launch registers memory with a NIC.")
    sizes = [each.wanted.bytes for each in locked if isinstance(each.wanted, Demand)]
    return join([_locked(each, max(sizes, default=0)) for each in locked], "\n")


def _locked(each: Locked, whole: int) -> Html:
    """Draw the registered memory of one process, and the end of its limit."""
    name = fold(each.names)
    head = element("h3", name)
    if isinstance(each.wanted, Unknown):
        text = element("p", f"Not known: {each.wanted.reason}")
        return element("div", head, text, class_="place")
    size, may = each.wanted.bytes, each.may_bytes
    message = f"registers {format_bytes(size)}, may lock {each.have}"
    shapes = [element("title", message), _rect(0, size, size, "k-l2")] if size else []
    if isinstance(may, int) and may < size:
        shapes += _over(may, size)
    share = size / whole if whole else 0
    bar = _membar(f"{name}: {message}", share, [element("g", *shapes)])
    text = element("p", f"{message}; {each.wanted.formula}", class_="small")
    return element("div", head, bar, text, class_="place")
