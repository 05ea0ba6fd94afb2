"""The memory map for a page: two bars for each place, now and with the launch, and their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from checks.memlock.demand import Demand, grant
from checks.memlock.judge import demand_on
from checks.releases.mooncake import release_of
from checks.run.facts import Facts
from preflight.capacity.curve import (
    caption,
    drawn_tiers,
    evicting_text,
    hit_of,
    hit_text,
    letter_of,
    reusing,
    spans_are_known,
    thinned,
    tiers_of,
)
from preflight.capacity.deployment import Bounds, Capacity, Round
from preflight.check.report import fold
from preflight.pictures.memory_map import KINDS, Bar, MemoryMap, MemoryPlace, known_bars, table_rows
from preflight.render.html_page import Html, Keyed, element, facts_list, join, table
from preflight.topology.build import Topology, TopologyDevice

# A part narrower than this has no room for its letter, in per cent of the bar, on a phone.
LETTERED_PERCENT = 4.0
BAR_HEIGHT = 30
_PALE = ("pool", "free", "reserve", "closed", "unknown")


def memory_figure(found: MemoryMap) -> Html:
    """Draw every bar with its notes, and one table of all parts in bytes."""
    return join(
        [_patterns(), *(_place(found, place) for place in found.places), _table(found)], "\n"
    )


def _place(found: MemoryMap, place: MemoryPlace) -> Html:
    if isinstance(place.now, Unknown):
        return element("p", element("strong", place.name), f": unknown: {place.now.reason}")
    shown = place.shown
    total = place.now.total_bytes
    size = "bound to no node" if total is None else format_bytes(total)
    lines = [element("h3", f"{place.name}: {size}")]
    if place.now.parts:
        lines.append(_row(found, "now", place.name, place.now))
    if isinstance(place.after, Unknown):
        lines.append(element("p", f"With the launch: unknown: {place.after.reason}"))
    elif place.after is not None:
        lines.append(_row(found, "with the launch", place.name, place.after))
    if not isinstance(shown, Unknown):
        lines += [element("p", note, class_="small") for note in shown.notes]
    return element("div", *lines, class_="place")


def _row(found: MemoryMap, label: str, name: str, bar: Bar) -> Html:
    drawn = _svg(f"{name} {label}", bar, found.share(bar))
    return element("div", element("span", label, class_="small muted"), drawn, class_="bar")


def _svg(label: str, bar: Bar, share: float) -> Html:
    """Draw with widths in per cent, so that neither letters nor patterns are stretched."""
    size = bar.parts_bytes
    said = ", ".join(f"{KINDS[p.kind].name} {format_bytes(p.bytes)}" for p in bar.parts)
    if bar.over_bytes:
        said += f"; {format_bytes(bar.over_bytes)} of it is not there"
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
    about = {"role": "img", "aria_label": f"{label}: {said}"}
    return element("svg", *shapes, class_="membar", width=width, height=BAR_HEIGHT, **about)


def _letter(kind: str, x: str | int, y: int) -> Html:
    ink = "ink-dark" if kind in _PALE else "ink"
    return element("text", KINDS[kind].letter, x=x, y=y, text_anchor="middle", class_=ink)


def _rect(at: int, size: int, total: int, kind: str) -> Html:
    x, width = _percent(at, total), _percent(size, total)
    return element("rect", x=x, y=0, width=width, height=BAR_HEIGHT, class_=kind)


def _percent(part: int, total: int) -> str:
    return f"{part * 100 / total:.4f}%"


def _table(found: MemoryMap) -> Html:
    known = known_bars(found.places)
    rows = [
        [
            row.name if row.kind is None else join([_swatch(row.kind), row.name]),
            *map(_cell, row.sizes),
        ]
        for row in table_rows(known.values())
    ]
    if not rows:
        return Html("")
    caption = "Memory with this launch" if found.with_launch else "Memory of this host"
    numeric = range(1, len(known) + 1)
    return table(["part", *known], rows, caption=caption, numeric_columns=numeric)


def _cell(size: int) -> Keyed | str:
    return Keyed(format_bytes(size), size) if size else ""


def _swatch(kind: str) -> Html:
    pattern = KINDS[kind].pattern
    fills = [f"k-{kind}", *([f"p-{pattern}"] if pattern else [])]
    shapes = [element("rect", width=22, height=18, class_=fill) for fill in fills]
    label = {"role": "img", "aria_label": KINDS[kind].letter}
    svg = {"class_": "swatch", "width": "22", "height": "18", **label}
    return element("svg", *shapes, _letter(kind, 11, 14), **svg)


def _patterns() -> Html:
    """Return what the page's fills refer to; once on a page."""

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
    """Return what each process registers, as memlock.limit judges it; processes alike are one."""
    found: dict[object, Locked] = {}
    if needs is None:
        return []
    for process in needs.rdma_processes:
        granted = grant(facts.system, facts.limits, process)
        release = release_of(needs.mooncake_version)
        wanted = demand_on(facts.system, facts.rdma, process, release)
        limit = granted.limit
        may = None if granted.void is True else limit if isinstance(limit, Unknown) else limit.soft
        key = (wanted if isinstance(wanted, Demand) else wanted.reason, granted.have)
        before = found.get(key, Locked((), wanted, may, granted.have))
        found[key] = before._replace(names=(*before.names, process.name))
    return list(found.values())


def locked_figure(found: Sequence[Locked]) -> Html:
    """Draw what each process registers, and the end of what it may lock, to one scale."""
    if not found:
        return element("p", "No process of the launch registers memory with a NIC.")
    whole = max((each.wanted.bytes for each in found if isinstance(each.wanted, Demand)), default=0)
    return join([_locked(each, whole) for each in found], "\n")


def _locked(each: Locked, whole: int) -> Html:
    name = fold(each.names)
    head = element("h3", name)
    if isinstance(each.wanted, Unknown):
        return element(
            "div", head, element("p", f"Not known: {each.wanted.reason}"), class_="place"
        )
    size, may = each.wanted.bytes, each.may_bytes
    said = f"registers {format_bytes(size)}, may lock {each.have}"
    shapes = [element("title", said), _rect(0, size, size, "k-l2")] if size else []
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
        aria_label=f"{name}: {said}",
    )
    text = f"{said}; {each.wanted.formula}"
    return element("div", head, bar, element("p", text, class_="small"), class_="place")


# As nvidia-smi topo -m calls them, the nearest first.
LEVELS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's PCIe host bridge",
    "NODE": "several host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
# One box, in its own units; it is shown as wide as a phone.
_WIDTH, _GPU, _NIC, _ROW, _BOX = 340, 146, 146, 46, 38
# A line of text in a box: so many characters fit.
_LETTERS = 22


def topology_figure(found: Topology) -> Html:
    """Draw boxes, what the lines mean, the devices, and the whole matrix as a table."""
    groups = [(f"node {node.node}", node.node) for node in found.nodes]
    loose = any(_box_of(found, device) is None for device in (*found.gpus, *found.nics))
    if loose:
        groups.append(("on no known node", -1))
    boxes = [_node(found, name, None if node < 0 else node) for name, node in groups]
    parts = [element("div", *boxes, class_="nodes"), _key(found)]
    return join([*parts, _devices(found), _matrix(found)], "\n")


def _box_of(found: Topology, device: TopologyDevice) -> int | None:
    """Return the box that a device stands in: None for one on no node that is shown."""
    return device.node if any(node.node == device.node for node in found.nodes) else None


def nearest(found: Topology, gpu: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the nearest level of a GPU's paths, and the NICs there.

    None where no path is known.
    """
    levels: dict[str, list[str]] = {}
    for (its, nic), path in found.paths.items():
        if its == gpu and isinstance(path, str):
            levels.setdefault(path, []).append(nic)
    for level in LEVELS:
        if level in levels:
            return level, tuple(levels[level])
    return None


def _node(found: Topology, name: str, node: int | None) -> Html:
    gpus = [gpu for gpu in found.gpus if _box_of(found, gpu) == node]
    nics = [nic for nic in found.nics if _box_of(found, nic) == node]
    about = [name]
    for each in found.nodes:
        if each.node == node:
            about += [f"CPUs {each.cpus}"] if each.cpus else []
            if isinstance(each.memory_bytes, int):
                about.append(format_bytes(each.memory_bytes))
    rows = max(len(gpus), len(nics))
    caption = element("figcaption", ", ".join(about))
    if not rows:
        return element("figure", caption, element("p", "No GPU and no NIC", class_="small"))
    lines, told = _lines(found, gpus, nics)
    shapes = [*lines]
    shapes += [_device(gpu, 0, _top(at, len(gpus), rows), _GPU) for at, gpu in enumerate(gpus)]
    shapes += [
        _device(nic, _WIDTH - _NIC, _top(at, len(nics), rows), _NIC) for at, nic in enumerate(nics)
    ]
    names = ", ".join(device.name for device in (*gpus, *nics))
    # The parser of HTML gives viewBox its capital back.
    size = {"viewBox": f"0 0 {_WIDTH} {rows * _ROW}", "width": "100%"}
    label = f"{name}: {names}. {'; '.join(told)}"
    return element("figure", caption, element("svg", *shapes, **size, role="img", aria_label=label))


def _top(at: int, count: int, rows: int) -> float:
    """Return the upper edge of a box, of devices that are spread evenly over more rows."""
    return (at + 0.5) * rows * _ROW / count - _BOX / 2


def _lines(
    found: Topology, gpus: Sequence[TopologyDevice], nics: Sequence[TopologyDevice]
) -> tuple[list[Html], list[str]]:
    """Draw lines from each GPU to its nearest NICs in this box, and say the same in words."""
    rows = max(len(gpus), len(nics))
    lines, told = [], []
    for at, gpu in enumerate(gpus):
        best = nearest(found, gpu.name)
        if best is None:
            continue
        level, names = best
        told.append(f"{gpu.name} to {', '.join(names)}: {level}")
        y1 = f"{_top(at, len(gpus), rows) + _BOX / 2:g}"
        for to, nic in enumerate(nics):
            if nic.name in names:
                y2 = f"{_top(to, len(nics), rows) + _BOX / 2:g}"
                kind = f"path {level.lower()}"
                lines.append(element("line", x1=_GPU, y1=y1, x2=_WIDTH - _NIC, y2=y2, class_=kind))
    return lines, told


def _device(device: TopologyDevice, left: float, top: float, width: int) -> Html:
    used = f", used by {fold(device.used_by)}" if device.used_by else ""
    address = f", {device.address}" if device.address else ""
    kind = f"device {device.kind}{' taken' if device.used_by else ''}"
    box = {"x": left + 1, "y": top, "width": width - 2, "height": _BOX, "rx": 5}
    return element(
        "g",
        element("title", f"{device.name}: {device.what}{address}{used}"),
        element("rect", **box, class_=kind),
        element("text", _short(device.name), x=left + 9, y=top + 16, class_="name"),
        element("text", _short(device.what), x=left + 9, y=top + 30, class_="what"),
    )


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _key(found: Topology) -> Html:
    """Explain the lines that are drawn, and name GPUs whose nearest NIC is in another box."""
    drawn, far = [], []
    for gpu in found.gpus:
        best = nearest(found, gpu.name)
        if best is None:
            continue
        level, names = best
        here = [nic for nic in found.nics if nic.name in names]
        if level not in drawn:
            drawn.append(level)
        if all(_box_of(found, nic) != _box_of(found, gpu) for nic in here):
            far.append(f"{gpu.name}: its nearest NIC ({', '.join(names)}) is not on its node")
    items = [
        element("li", _sample(level), f" {level}: through {LEVELS[level]}")
        for level in LEVELS
        if level in drawn
    ]
    if any(device.used_by for device in (*found.gpus, *found.nics)):
        items.append(element("li", "Thick border: used by the launch"))
    parts = [element("ul", *items, class_="key")] if items else []
    return join([*parts, *(element("p", text) for text in far)], "\n")


def _sample(level: str) -> Html:
    line = element("line", x1="0", y1="6", x2="34", y2="6", class_=f"path {level.lower()}")
    return element("svg", line, class_="sample", width="34", height="12", aria_hidden="true")


def _devices(found: Topology) -> Html:
    rows = [
        (
            device.name,
            device.what,
            device.address or "none",
            "unknown" if device.node is None else str(device.node),
            fold(device.used_by) if device.used_by else "",
        )
        for device in (*found.gpus, *found.nics)
    ]
    if not rows:
        return element("p", "No GPU and no RDMA device is seen here")
    whole = table(
        ["device", "what", "PCI address", "node", "used by"], rows, caption="GPUs and NICs"
    )
    return element("details", element("summary", f"{len(rows)} GPUs and NICs"), whole)


def _matrix(found: Topology) -> Html:
    if not found.gpus or not found.nics:
        return Html("")
    rows = []
    for gpu in found.gpus:
        paths = [found.paths.get((gpu.name, nic.name)) for nic in found.nics]
        rows.append([gpu.name, *(path if isinstance(path, str) else "unknown" for path in paths)])
    caption = "How each GPU reaches each NIC"
    whole = table(["GPU", *(nic.name for nic in found.nics)], rows, caption=caption)
    return element("details", element("summary", caption), whole)


# More marks than these would lie on top of each other.
MOST_MARKS = 24

_CURVE_WIDTH, _CURVE_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 230, 42, 12, 10, 36


def capacity_figure(found: Capacity) -> Html:
    """Draw tiers, and with a workload the curve and its numbers."""
    parts = [_tiers(found)]
    if not found.rounds:
        said = (
            "No curve: the launch starts no benchmark of many rounds; mooncake-preflight capacity "
            "takes one (--clients, --rounds, --request-length, --output-length)."
        )
        return join([*parts, element("p", said)], "\n")
    shown = thinned(reusing(found.rounds), MOST_MARKS)
    if drawn_tiers(shown):
        said = caption(shown)
        if any(_spread(shown, name) for name in drawn_tiers(shown)):
            said += "; the pale area is from the least to the most"
        names = drawn_tiers(shown)
        drawn = (_curve(shown, names), _curve_key(shown, names), element("figcaption", said))
        parts.append(element("figure", *drawn, class_="curve"))
    return join([*parts, _rounds(found.rounds)], "\n")


def _tiers(found: Capacity) -> Html:
    """Draw a list: formulas are long, and a table of them would be wider than any window."""
    items = []
    for tier in found.tiers:
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


def _bounds(found: Bounds | Unknown, shown: Callable[[int], str] = "{:,}".format) -> str:
    return f"unknown: {found.reason}" if isinstance(found, Unknown) else found.text(shown)


def _curve(rounds: Sequence[Round], tiers: Sequence[str]) -> Html:
    """Draw the nearest tier last: where lines meet, it is enough by itself."""
    shapes = _grid(rounds)
    for tier in reversed(tiers):
        at = _colour(rounds, tier)
        hits = [hit_of(each, tier) for each in rounds]
        low, line, high = (
            [_point(rounds, number, height) for number, height in enumerate(heights)]
            for heights in zip(*hits, strict=True)
        )
        if _spread(rounds, tier):
            area = " ".join([*high, *reversed(low)])
            shapes.append(element("polygon", points=area, class_=f"area t{at}"))
        shapes.append(element("polyline", points=" ".join(line), class_=f"line t{at}"))
        for point in line:
            x, _, y = point.partition(",")
            shapes.append(element("circle", cx=x, cy=y, r=6, class_=f"mark t{at}"))
            below = f"{float(y) + 3.5:.1f}"
            shapes.append(_text(letter_of(tier), x, below, "letter", "middle"))
    last = rounds[-1]
    said = "; ".join(f"{name} {hit_text(hit_of(last, name))}" for name in tiers)
    label = f"Reuse that is left in round {last.number}: {said}"
    size = f"0 0 {_CURVE_WIDTH} {_CURVE_HEIGHT}"
    return element("svg", *shapes, viewBox=size, width="100%", role="img", aria_label=label)


def _text(shown: str, x: str | int, y: str | int, kind: str, anchor: str | None = None) -> Html:
    return element("text", shown, x=x, y=y, text_anchor=anchor, class_=kind)


def _colour(rounds: Sequence[Round], tier: str) -> int:
    """Return the number of a tier's colour, whichever others are drawn."""
    return tiers_of(rounds).index(tier) % 4


def _spread(rounds: Sequence[Round], tier: str) -> bool:
    """Return whether least and most differ, and both are known."""
    hits = [hit_of(each, tier) for each in rounds]
    return any(hit.least != hit.most for hit in hits) and spans_are_known(rounds, tier)


def _grid(rounds: Sequence[Round]) -> list[Html]:
    shapes = []
    for percent in (0, 25, 50, 75, 100):
        y = f"{_y(percent / 100):.1f}"
        shapes.append(
            element("line", x1=_LEFT, x2=_CURVE_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        )
        shapes.append(_text(f"{percent} %", _LEFT - 5, f"{float(y) + 4:.1f}", "tick", "end"))
    bottom = _CURVE_HEIGHT - _BOTTOM + 20
    for at in range(0, len(rounds), -(-len(rounds) // 12)):
        x = f"{_x(rounds, at):.1f}"
        shapes.append(_text(str(rounds[at].number), x, bottom, "tick", "middle"))
    return [*shapes, _text("round", _LEFT, _CURVE_HEIGHT - 3, "tick")]


def _x(rounds: Sequence[Round], at: int) -> float:
    room = _CURVE_WIDTH - _LEFT - _RIGHT - 12
    return _LEFT + 6 + (room * at / (len(rounds) - 1) if len(rounds) > 1 else room / 2)


def _y(height: float) -> float:
    return _TOP + (1 - min(1.0, max(0.0, height))) * (_CURVE_HEIGHT - _TOP - _BOTTOM)


def _point(rounds: Sequence[Round], at: int, height: float) -> str:
    return f"{_x(rounds, at):.1f},{_y(height):.1f}"


def _curve_key(rounds: Sequence[Round], tiers: Sequence[str]) -> Html:
    items = []
    for name in tiers:
        at = _colour(rounds, name)
        circle = element("circle", cx=8, cy=8, r=7, class_=f"mark t{at}")
        letter = _text(letter_of(name), 8, 12, "letter", "middle")
        size = {"width": 16, "height": 16}
        mark = element("svg", circle, letter, class_="sample", **size, aria_hidden="true")
        before = "" if at == 0 else " and the tiers before it"
        items.append(element("li", mark, f" {name}{before}"))
    return element("ul", *items, class_="key")


def _rounds(rounds: Sequence[Round]) -> Html:
    tiers = tiers_of(rounds)
    rows = [
        (
            str(each.number),
            f"{each.held_tokens:,}",
            f"{each.reusable_tokens:,}",
            *(hit_text(hit_of(each, t)) if each.reusable_tokens > 0 else "" for t in tiers),
            evicting_text(each),
        )
        for each in rounds
    ]
    heads = [tier if at == 0 else f"+ {tier}" for at, tier in enumerate(tiers)]
    return table(
        ["round", "tokens held", "reusable", *heads, "evicting"],
        rows,
        caption="Round by round",
        numeric_columns=range(1, 3 + len(tiers)),
    )
