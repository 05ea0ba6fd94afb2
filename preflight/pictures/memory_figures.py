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
    return join(
        [
            _patterns(),
            *(_place(memory_map, place) for place in memory_map.places),
            _table(memory_map),
        ],
        "\n",
    )


def _place(memory_map: MemoryMap, place: MemoryPlace) -> Html:
    """Draw the bars of one place: now, and with the launch."""
    if isinstance(place.now, Unknown):
        return element("p", element("strong", place.name), f": unknown: {place.now.reason}")
    shown = place.shown
    total = place.now.total_bytes
    size = "bound to no node" if total is None else format_bytes(total)
    lines = [element("h3", f"{place.name}: {size}")]
    if place.now.parts:
        lines.append(_row(memory_map, "now", place.name, place.now))
    if isinstance(place.after, Unknown):
        lines.append(element("p", f"With the launch: unknown: {place.after.reason}"))
    elif place.after is not None:
        lines.append(_row(memory_map, "with the launch", place.name, place.after))
    if not isinstance(shown, Unknown):
        lines += [element("p", note, class_="small") for note in shown.notes]
    return element("div", *lines, class_="place")


def _row(memory_map: MemoryMap, label: str, name: str, bar: Bar) -> Html:
    drawn = _svg(f"{name} {label}", bar, memory_map.share(bar))
    return element("div", element("span", label, class_="small muted"), drawn, class_="bar")


def _svg(label: str, bar: Bar, share: float) -> Html:
    """Draw a bar with widths in per cent, so that letters are not stretched."""
    size = bar.parts_bytes
    parts = ", ".join(f"{KINDS[p.kind].name} {format_bytes(p.bytes)}" for p in bar.parts)
    if bar.over_bytes:
        parts += f"; {format_bytes(bar.over_bytes)} of it is not there"
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
        end = size - bar.over_bytes
        shapes.append(_rect(end, bar.over_bytes, size, "p-over"))
        place = _percent(end, size)
        shapes.append(element("line", x1=place, x2=place, y1=0, y2=BAR_HEIGHT, class_="end"))
    width = f"{max(1.0, share * 100):.4f}%"
    about = {"role": "img", "aria_label": f"{label}: {parts}"}
    return element("svg", *shapes, class_="membar", width=width, height=BAR_HEIGHT, **about)


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
    known = known_bars(memory_map.places)
    rows = [
        [
            row.name if row.kind is None else join([_swatch(row.kind), row.name]),
            *map(_cell, row.sizes),
        ]
        for row in table_rows(known.values())
    ]
    if not rows:
        return Html("")
    caption = "Memory with this launch" if memory_map.with_launch else "Memory of this host"
    numeric = range(1, len(known) + 1)
    return table(["part", *known], rows, caption=caption, numeric_columns=numeric)


def _cell(size: int) -> Keyed | str:
    return Keyed(format_bytes(size), size) if size else ""


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

    up = element("path", d="M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="hatch")
    down = element("path", d="M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4", class_="hatch")
    dot = element("circle", cx="4", cy="4", r="1.2", class_="dot")
    over = element("path", d="M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", class_="hatch-over")
    defs = element(
        "defs",
        pattern("over", over),
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
    whole = max(
        (each.wanted.bytes for each in locked if isinstance(each.wanted, Demand)), default=0
    )
    return join([_locked(each, whole) for each in locked], "\n")


def _locked(each: Locked, whole: int) -> Html:
    """Draw the registered memory of one process, and the end of its limit."""
    name = fold(each.names)
    head = element("h3", name)
    if isinstance(each.wanted, Unknown):
        return element(
            "div", head, element("p", f"Not known: {each.wanted.reason}"), class_="place"
        )
    size, may = each.wanted.bytes, each.may_bytes
    message = f"registers {format_bytes(size)}, may lock {each.have}"
    shapes = [element("title", message), _rect(0, size, size, "k-l2")] if size else []
    if isinstance(may, int) and may < size:
        end = _percent(may, size)
        shapes.append(_rect(may, size - may, size, "p-over"))
        shapes.append(element("line", x1=end, x2=end, y1=0, y2=BAR_HEIGHT, class_="end"))
    bar = element(
        "svg",
        element("g", *shapes),
        class_="membar",
        width=f"{max(1.0, size * 100 / whole if whole else 0):.4f}%",
        height=BAR_HEIGHT,
        role="img",
        aria_label=f"{name}: {message}",
    )
    text = f"{message}; {each.wanted.formula}"
    return element("div", head, bar, element("p", text, class_="small"), class_="place")
