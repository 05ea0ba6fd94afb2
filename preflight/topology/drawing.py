"""Nodes as boxes with what sits on them, within a width, in ASCII where asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.base.one_line import clean
from preflight.render.names import folded
from preflight.render.text import can_encode
from preflight.topology.build import Device, Node, Topology


class Strokes(NamedTuple):
    """What a frame is drawn with."""

    across: str
    down: str
    top_left: str
    top_right: str
    bottom_left: str
    bottom_right: str


ASCII = Strokes("-", "|", "+", "+", "+", "+")
LINES = Strokes("─", "│", "┌", "┐", "└", "┘")


def boxes(topology: Topology, width: int, strokes: Strokes) -> list[str]:
    """One box per node that has a device, one for the other nodes, one for devices on none."""
    devices = (*topology.gpus, *topology.nics)
    only = topology.nodes[0].node if len(topology.nodes) == 1 else None
    # On a host with one node that is where everything is, named or not.
    at = {device.name: only if device.node is None else device.node for device in devices}
    shown = {node.node for node in topology.nodes}
    gaps = _columns(devices, width)
    lines: list[str] = []
    empty: list[Node] = []
    for node in topology.nodes:
        here = [device for device in devices if at[device.name] == node.node]
        if here:
            rows = [_row(device, gaps) for device in _in_order(here)]
            lines += box(_heading(node), rows, width, strokes)
        else:
            empty.append(node)
    if empty:
        heads = [_heading(node) for node in empty]
        rows = heads[1:] if len(heads) == 1 else heads
        title = heads[0] if len(heads) == 1 else "nodes without GPU and NIC"
        lines += box(title, rows or ["no GPU, no NIC"], width, strokes)
    left = [device for device in devices if at[device.name] not in shown]
    if left:
        title = "no NUMA node named" if shown else "host without NUMA nodes"
        lines += box(title, [_row(device, gaps) for device in _in_order(left)], width, strokes)
    return lines or box("no NUMA nodes, no GPU, no NIC", [], width, strokes)


def _in_order(devices: Sequence[Device]) -> list[Device]:
    """As they stand on PCI, so that neighbours there are neighbours here; the others last."""
    return sorted(devices, key=lambda device: (not device.address, device.address))


def _heading(node: Node) -> str:
    size = node.memory_bytes
    memory = "memory not known" if isinstance(size, Unknown) else format_bytes(size)
    cpus = "no CPU" if not node.cpus else f"CPUs {node.cpus}"
    return f"node {node.node}  {memory}  {cpus}"


def _columns(devices: Sequence[Device], width: int) -> tuple[int, int, int]:
    """Widths of name, address and kind: a name is whole up to a third of the line."""
    name = min(width // 3, max((len(device.name) for device in devices), default=0))
    address = max((len(device.address) for device in devices), default=0)
    users = any(device.used_by for device in devices)
    rest = width - 4 - name - address - 4
    kind = max((len(device.what) for device in devices), default=0)
    return name, address, min(kind, rest - 14 if users else rest)


def _row(device: Device, gaps: tuple[int, int, int]) -> str:
    cells = (device.name, device.address, device.what)
    words = [shortened(clean(cell), gap).ljust(gap) for cell, gap in zip(cells, gaps, strict=True)]
    return "  ".join((*words, clean(folded(device.used_by)))).rstrip()


def box(title: str, rows: Sequence[str], width: int, strokes: Strokes) -> list[str]:
    """``rows`` in a frame of ``width`` columns with ``title`` in its upper edge."""
    room = width - 4
    head = f"{strokes.across} {shortened(title, room - 2)} "
    top = head + strokes.across * (width - 2 - len(head))
    return [
        f"{strokes.top_left}{top}{strokes.top_right}",
        *(f"{strokes.down} {shortened(row, room):<{room}} {strokes.down}" for row in rows),
        f"{strokes.bottom_left}{strokes.across * (width - 2)}{strokes.bottom_right}",
    ]


def shortened(text: str, most: int) -> str:
    """``text``, or its beginning and three dots."""
    return text if len(text) <= most else f"{text[: max(0, most - 3)]}..."[: max(0, most)]


def chunks(cells: Sequence[str], first: int, width: int) -> Iterator[range]:
    """Which of ``cells`` fit on a line behind ``first`` columns, line by line; two spaces apart."""
    start, used = 0, first
    for at, cell in enumerate(cells):
        if at > start and used + 2 + len(cell) > width:
            yield range(start, at)
            start, used = at, first
        used += 2 + len(cell)
    if start < len(cells):
        yield range(start, len(cells))


def draws_lines(encoding: str | None) -> bool:
    """Return whether an encoding has the characters of the frames."""
    return can_encode("─│┌┐└┘", encoding)


Paint = Callable[[str, str], str]

COLOURS = {"PIX": "green", "PXB": "green", "NODE": "yellow", "SYS": "red", "?": "magenta"}
MEANINGS = {
    "PIX": "one PCIe switch at most",
    "PXB": "several switches",
    "PHB": "the CPU's host bridge",
    "NODE": "several host bridges of a node",
    "SYS": "the link between nodes",
    "-": "no PCI device",
    "?": "not known",
    "*": "preferred by Mooncake",
}
# A host of which a matrix is read at a glance: below this nothing is folded.
UNFOLDED_NICS = 8


def matrix(
    topology: Topology, preferred: Mapping[str, tuple[str, ...]], paint: Paint, width: int
) -> list[str]:
    """Lines; none without both GPUs and NICs. ``preferred``: GPU -> NICs that get a star."""
    gpus = [gpu.name for gpu in topology.gpus]
    nics = [nic.name for nic in topology.nics]
    if not gpus or not nics:
        return []
    cells = {
        (gpu, nic): _cell(topology.paths[gpu, nic], nic in preferred.get(gpu, ()))
        for gpu in gpus
        for nic in nics
    }
    many = len(nics) > UNFOLDED_NICS or len(gpus) > UNFOLDED_NICS
    rows = _grouped(gpus, lambda gpu: tuple(cells[gpu, nic] for nic in nics))
    columns = (
        _grouped(nics, lambda nic: tuple(cells[gpu, nic] for gpu in gpus))
        if many
        else [[nic] for nic in nics]
    )
    names = [clean(folded(group)) for group in rows]
    heads = [
        max(clean(folded(group)), *(cells[row[0], group[0]] for row in rows), key=len)
        for group in columns
    ]
    first = max(map(len, names))
    lines: list[str] = []
    for part in chunks(heads, first, width):
        if lines:
            lines.append("")
        titles = [clean(folded(columns[at])).ljust(len(heads[at])) for at in part]
        lines.append("  ".join((" " * first, *titles)).rstrip())
        for row, name in zip(rows, names, strict=True):
            found = [cells[row[0], columns[at][0]] for at in part]
            painted = [
                paint(cell, COLOURS[cell.rstrip("*")]) + " " * (len(heads[at]) - len(cell))
                if cell.rstrip("*") in COLOURS
                else cell.ljust(len(heads[at]))
                for cell, at in zip(found, part, strict=True)
            ]
            lines.append("  ".join((name.ljust(first), *painted)).rstrip())
    return [*lines, *_legend(cells.values(), width)]


def _cell(path: str | Unknown, starred: bool) -> str:
    word = path if isinstance(path, str) else "-" if path.absent else "?"
    return f"{word}*" if starred else word


def _grouped(names: Iterable[str], key: Callable[[str], Hashable]) -> list[list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return list(groups.values())


def _legend(cells: Iterable[str], width: int) -> list[str]:
    """What the words that stand there mean, two spaces apart."""
    seen = {cell.rstrip("*") for cell in cells}
    if any(cell.endswith("*") for cell in cells):
        seen.add("*")
    words = [f"{word} {meaning}" for word, meaning in MEANINGS.items() if word in seen]
    return ["  " + "  ".join(words[at] for at in part) for part in chunks(words, 0, width)]
