"""Nodes as boxes with what sits on them, within a width, in ASCII where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.base.one_line import clean
from preflight.topology.names import folded
from preflight.topology.records import Device, Node, Topology


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
    try:
        "─│┌┐└┘".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
