"""Pictures of a page: memory, now and with the launch; what processes register and may lock; the
tiers of the cache, and how much of a workload they serve; a host's devices, and the paths between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from checks.framework.needs import LaunchNeeds
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.memlock.demand import Demand, grant
from checks.memlock.judge import demand_on
from checks.releases.mooncake import release_of
from checks.run_checks.facts import Facts
from preflight.base.html_page import Html, Keyed, element, join, table
from preflight.report.pictures.memory_map import (
    KINDS,
    Bar,
    MemoryMap,
    MemoryPlace,
    known_bars,
    table_rows,
)
from preflight.report.topology.answer import Topology, TopologyDevice
from preflight.verdict.report import fold

# A part narrower than this has no room for its letter, in per cent of the bar, on a phone.
LETTERED_PERCENT = 4.0
BAR_HEIGHT = 30
_PALE = ("pool", "free", "reserve", "closed", "unknown")


def memory_figure(memory_map: MemoryMap) -> Html:
    """Draw the bars of every place with their notes, and one table of all parts in bytes."""
    places = (_place(memory_map, place) for place in memory_map.places)
    return join([_patterns(), *places, _table(memory_map)], "\n")


def _place(memory_map: MemoryMap, place: MemoryPlace) -> Html:
    """Draw the two bars of one place, now and with the launch, with notes.

    In place of an unknown bar a sentence says why.
    """
    if isinstance(place.now, Unknown):
        return element("p", element("strong", place.name), f": unknown: {place.now.reason}")
    total = place.now.total_bytes
    size = "bound to no node" if total is None else format_bytes(total)
    lines = [element("h3", f"{place.name}: {size}")]
    for label, bar in (("now", place.now), ("with the launch", place.after)):
        if isinstance(bar, Unknown):
            lines.append(element("p", f"With the launch: unknown: {bar.reason}"))
        elif bar is not None and (bar.parts or bar is place.after):
            drawn = _bar_svg(f"{place.name} {label}", bar, memory_map.share(bar))
            head = element("span", label, class_="small muted")
            lines.append(element("div", head, drawn, class_="bar"))
    if not isinstance(place.shown, Unknown):
        lines += [element("p", note, class_="small") for note in place.shown.notes]
    return element("div", *lines, class_="place")


def _bar_svg(label: str, bar: Bar, share: float) -> Html:
    """Draw one bar.

    Args:
        label: For a screen reader.
        share: How wide, as a part of the page (0 to 1).
    """
    size = bar.parts_bytes
    parts = ", ".join(f"{KINDS[p.key].name} {format_bytes(p.bytes)}" for p in bar.parts)
    shapes, at = [], 0
    for part in bar.parts:
        about = KINDS[part.key]
        inner = [_rect(at, part.bytes, size, f"k-{part.key}")]
        if about.pattern:
            inner.append(_rect(at, part.bytes, size, f"p-{about.pattern}"))
        if part.bytes * 100 / size >= LETTERED_PERCENT and part.key != "free":
            inner.append(_letter(part.key, _percent(2 * at + part.bytes, 2 * size), 20))
        title = element("title", f"{about.name}: {format_bytes(part.bytes)}")
        shapes.append(element("g", title, *inner))
        at += part.bytes
    if bar.over_bytes:
        parts += f"; {format_bytes(bar.over_bytes)} of it is not there"
        shapes += _excess(size - bar.over_bytes, size)
    return _membar(f"{label}: {parts}", share, shapes)


def _membar(label: str, share: float, shapes: Sequence[Html]) -> Html:
    """Draw a bar from its shapes.

    Args:
        share: How wide, as a part of the page (0 to 1), 1% at least.
        label: Its text for a screen reader.
    """
    width = f"{max(1.0, share * 100):.4f}%"
    about = {"role": "img", "aria_label": label}
    return element("svg", *shapes, class_="membar", width=width, height=BAR_HEIGHT, **about)


def _excess(end: int, size: int) -> list[Html]:
    """Draw what is missing of a bar of ``size``: the part behind ``end``, and a line at ``end``."""
    place = _percent(end, size)
    line = element("line", x1=place, x2=place, y1=0, y2=BAR_HEIGHT, class_="end")
    return [_rect(end, size - end, size, "p-over"), line]


def _letter(key: str, x: str | int, y: int) -> Html:
    return svg_text(KINDS[key].letter, x, y, "ink-dark" if key in _PALE else "ink", "middle")


def _rect(at: int, size: int, total: int, style: str) -> Html:
    x, width = _percent(at, total), _percent(size, total)
    return element("rect", x=x, y=0, width=width, height=BAR_HEIGHT, class_=style)


def _percent(part: int, total: int) -> str:
    return f"{part * 100 / total:.4f}%"


def _table(memory_map: MemoryMap) -> Html:
    """Return the table of all parts of the memory in bytes; empty if no part is known."""
    bars = known_bars(memory_map.places)
    rows = [
        [
            row.name if row.key is None else join([_swatch(row.key), row.name]),
            *(Keyed(format_bytes(size), size) if size else "" for size in row.sizes),
        ]
        for row in table_rows(bars.values())
    ]
    if not rows:
        return Html("")
    caption = "Memory with this launch" if memory_map.with_launch else "Memory of this host"
    numeric = range(1, len(bars) + 1)
    return table(["part", *bars], rows, caption=caption, numeric_columns=numeric)


def _swatch(key: str) -> Html:
    """Return the sample of one kind of memory: its colour, pattern and letter."""
    pattern = KINDS[key].pattern
    fills = [f"k-{key}", *([f"p-{pattern}"] if pattern else [])]
    shapes = [element("rect", width=22, height=18, class_=fill) for fill in fills]
    label = {"role": "img", "aria_label": KINDS[key].letter}
    svg = {"class_": "swatch", "width": "22", "height": "18", **label}
    return element("svg", *shapes, _letter(key, 11, 14), **svg)


def _patterns() -> Html:
    """Return the patterns to which fills of the page refer; a page must have them exactly once."""

    def pattern(name: str, *inner: Html) -> Html:
        # Presentation attributes keep their capitals in HTML's parser.
        about = f'id="{name}" width="8" height="8" patternUnits="userSpaceOnUse"'
        return Html(f"<pattern {about}>{join(inner)}</pattern>")

    rising = "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4"
    up = element("path", d=rising, class_="hatch")
    down = element("path", d="M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4", class_="hatch")
    dot = element("circle", cx="4", cy="4", r="1.2", class_="dot")
    over = pattern("over", element("path", d=rising, class_="hatch-over"))
    hatched = pattern("stripes", up), pattern("cross", up, down), pattern("dots", dot)
    defs = element("defs", over, *hatched)
    return element("svg", defs, class_="defs", width="0", height="0", aria_hidden="true")


class LockedMemory(NamedTuple):
    """What equal processes register, and may lock.

    Attributes:
        names: Of the processes.
        wanted: Bytes to register.
        limit_bytes: Bytes they may lock; None for no limit.
        have: The limit in words.
    """

    names: tuple[str, ...]
    wanted: Demand | Unknown
    limit_bytes: int | Unknown | None
    have: str


def locked_of(facts: Facts, needs: LaunchNeeds | None) -> list[LockedMemory]:
    """Return the memory that each process registers and may lock, as memlock.limit judges it.

    Equal processes share one entry.

    Returns:
        [] without a launch.
    """
    by_key: dict[object, LockedMemory] = {}
    if needs is None:
        return []
    for process in needs.rdma_processes:
        granted = grant(facts.system, facts.limits, process)
        release = release_of(needs.mooncake_version)
        wanted = demand_on(facts.system, facts.rdma, process, release)
        limit = granted.limit
        may = None if granted.void is True else limit if isinstance(limit, Unknown) else limit.soft
        key = (wanted if isinstance(wanted, Demand) else wanted.reason, granted.have)
        before = by_key.get(key, LockedMemory((), wanted, may, granted.have))
        by_key[key] = before._replace(names=(*before.names, process.name))
    return list(by_key.values())


def locked_figure(locked: Sequence[LockedMemory]) -> Html:
    """Draw the registered memory and the limit of each process, to one scale."""
    if not locked:
        return element("p", "No process of the launch registers memory with a NIC.")
    sizes = [each.wanted.bytes for each in locked if isinstance(each.wanted, Demand)]
    return join([_locked(each, max(sizes, default=0)) for each in locked], "\n")


def _locked(each: LockedMemory, whole: int) -> Html:
    """Draw the registered memory of equal processes, with a line at their limit if that is less.

    Args:
        whole: Bytes that fill the width.
    """
    name = fold(each.names)
    head = element("h3", name)
    if isinstance(each.wanted, Unknown):
        text = element("p", f"Not known: {each.wanted.reason}")
        return element("div", head, text, class_="place")
    size, may = each.wanted.bytes, each.limit_bytes
    message = f"registers {format_bytes(size)}, may lock {each.have}"
    shapes = [element("title", message), _rect(0, size, size, "k-l2")] if size else []
    if isinstance(may, int) and may < size:
        shapes += _excess(may, size)
    share = size / whole if whole else 0
    bar = _membar(f"{name}: {message}", share, [element("g", *shapes)])
    text = element("p", f"{message}; {each.wanted.formula}", class_="small")
    return element("div", head, bar, text, class_="place")


def svg_text(
    shown: str, x: str | float, y: str | float, style: str, anchor: str | None = None
) -> Html:
    return element("text", shown, x=x, y=y, text_anchor=anchor, class_=style)


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


def topology_figure(topology: Topology) -> Html:
    """Draw a box for each NUMA node, the key of the lines, the devices, and the matrix of paths."""
    groups: list[tuple[str, int | None]] = [
        (f"node {x.numa_node}", x.numa_node) for x in topology.nodes
    ]
    if any(_box_of(topology, device) is None for device in (*topology.gpus, *topology.nics)):
        groups.append(("on no known node", None))
    boxes = [_node_box(topology, name, numa_node) for name, numa_node in groups]
    parts = [element("div", *boxes, class_="nodes"), _key(topology)]
    return join([*parts, _devices(topology), _matrix(topology)], "\n")


def _box_of(topology: Topology, device: TopologyDevice) -> int | None:
    """Return the node whose box a device stands in; None if that node is not shown."""
    shown = any(numa_node.numa_node == device.numa_node for numa_node in topology.nodes)
    return device.numa_node if shown and isinstance(device.numa_node, int) else None


def nearest(topology: Topology, gpu: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the nearest level (a key of ``LEVELS``) of a GPU's paths to NICs, and the NICs at that
    level.

    Returns:
        None if no path is known.
    """
    paths = {nic: path for (its, nic), path in topology.paths.items() if its == gpu}
    known = [path for path in paths.values() if isinstance(path, str)]
    for level in (level for level in LEVELS if level in known):
        return level, tuple(nic for nic, path in paths.items() if path == level)
    return None


def _node_box(topology: Topology, name: str, numa_node: int | None) -> Html:
    """Draw the box of one NUMA node: its GPUs, its NICs, and lines to the nearest.

    Args:
        numa_node: None for devices on no known node.
    """
    gpus = [gpu for gpu in topology.gpus if _box_of(topology, gpu) == numa_node]
    nics = [nic for nic in topology.nics if _box_of(topology, nic) == numa_node]
    about = [name]
    for each in topology.nodes:
        if each.numa_node == numa_node:
            about += [f"CPUs {each.cpus}"] if each.cpus else []
            if isinstance(each.memory_bytes, int):
                about.append(format_bytes(each.memory_bytes))
    rows = max(len(gpus), len(nics))
    caption = element("figcaption", ", ".join(about))
    if not rows:
        return element("figure", caption, element("p", "No GPU and no NIC", class_="small"))
    shapes, sentences = _lines(topology, gpus, nics)
    for devices, left, width in ((gpus, 0, _GPU), (nics, _WIDTH - _NIC, _NIC)):
        for at, device in enumerate(devices):
            shapes.append(_device(device, left, _top(at, len(devices), rows), width))
    names = ", ".join(device.name for device in (*gpus, *nics))
    # The parser of HTML gives viewBox its capital back.
    size = {"viewBox": f"0 0 {_WIDTH} {rows * _ROW}", "width": "100%"}
    label = f"{name}: {names}. {'; '.join(sentences)}"
    return element("figure", caption, element("svg", *shapes, **size, role="img", aria_label=label))


def _top(at: int, count: int, rows: int) -> float:
    """Return the upper edge of box ``at`` of ``count``, spread evenly over ``rows`` rows."""
    return (at + 0.5) * rows * _ROW / count - _BOX / 2


def _lines(
    topology: Topology, gpus: Sequence[TopologyDevice], nics: Sequence[TopologyDevice]
) -> tuple[list[Html], list[str]]:
    """Return lines from each GPU to its nearest NICs among ``nics``, and a sentence for each GPU.

    GPUs without a known path are left out.
    """
    rows = max(len(gpus), len(nics))
    lines, sentences = [], []
    for at, gpu in enumerate(gpus):
        best = nearest(topology, gpu.name)
        if best is None:
            continue
        level, names = best
        sentences.append(f"{gpu.name} to {', '.join(names)}: {level}")
        y1 = f"{_top(at, len(gpus), rows) + _BOX / 2:g}"
        for to, nic in enumerate(nics):
            if nic.name in names:
                y2 = f"{_top(to, len(nics), rows) + _BOX / 2:g}"
                style = f"path {level.lower()}"
                lines.append(element("line", x1=_GPU, y1=y1, x2=_WIDTH - _NIC, y2=y2, class_=style))
    return lines, sentences


def _device(device: TopologyDevice, left: float, top: float, width: int) -> Html:
    """Draw a GPU or NIC as a box with name and kind; one that the launch uses looks different."""
    used = f", used by {fold(device.used_by)}" if device.used_by else ""
    address = f", {device.address}" if device.address else ""
    style = f"device {device.device_kind}{' taken' if device.used_by else ''}"
    box = {"x": left + 1, "y": top, "width": width - 2, "height": _BOX, "rx": 5}
    return element(
        "g",
        element("title", f"{device.name}: {device.what}{address}{used}"),
        element("rect", **box, class_=style),
        element("text", _short(device.name), x=left + 9, y=top + 16, class_="name"),
        element("text", _short(device.what), x=left + 9, y=top + 30, class_="what"),
    )


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _key(topology: Topology) -> Html:
    """Return the key of the lines that are drawn, then sentences on GPUs whose nearest NICs are all
    on another node.
    """
    drawn, far = set(), []
    for gpu in topology.gpus:
        best = nearest(topology, gpu.name)
        if best is None:
            continue
        level, names = best
        drawn.add(level)
        here = [nic for nic in topology.nics if nic.name in names]
        if all(_box_of(topology, nic) != _box_of(topology, gpu) for nic in here):
            far.append(f"{gpu.name}: its nearest NIC ({', '.join(names)}) is not on its node")
    items = []
    for level in (level for level in LEVELS if level in drawn):
        line = element("line", x1="0", y1="6", x2="34", y2="6", class_=f"path {level.lower()}")
        size = {"width": "34", "height": "12", "aria_hidden": "true"}
        sample = element("svg", line, class_="sample", **size)
        items.append(element("li", sample, f" {level}: through {LEVELS[level]}"))
    if any(device.used_by for device in (*topology.gpus, *topology.nics)):
        items.append(element("li", "Thick border: used by the launch"))
    parts = [element("ul", *items, class_="key")] if items else []
    return join([*parts, *(element("p", text) for text in far)], "\n")


def _devices(topology: Topology) -> Html:
    """Return the table of all GPUs and NICs, folded; a sentence if no device is seen."""
    rows = []
    for device in (*topology.gpus, *topology.nics):
        numa_node = str(device.numa_node) if isinstance(device.numa_node, int) else "unknown"
        users = fold(device.used_by) if device.used_by else ""
        rows.append((device.name, device.what, device.address or "none", numa_node, users))
    if not rows:
        return element("p", "No GPU and no RDMA device is seen here")
    heads = ["device", "what", "PCI address", "node", "used by"]
    whole = table(heads, rows, caption="GPUs and NICs")
    return element("details", element("summary", f"{len(rows)} GPUs and NICs"), whole)


def _matrix(topology: Topology) -> Html:
    """Return the folded table of paths from each GPU to each NIC; empty without GPUs or NICs."""
    if not topology.gpus or not topology.nics:
        return Html("")
    rows = []
    for gpu in topology.gpus:
        paths = [topology.paths.get((gpu.name, nic.name)) for nic in topology.nics]
        rows.append([gpu.name, *(path if isinstance(path, str) else "unknown" for path in paths)])
    caption = "How each GPU reaches each NIC"
    whole = table(["GPU", *(nic.name for nic in topology.nics)], rows, caption=caption)
    return element("details", element("summary", caption), whole)
