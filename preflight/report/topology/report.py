"""The answer of ``topology``: drawing, matrix, Mooncake's choice, what is wrong; and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from checks.framework.finding import Finding, Status
from checks.framework.fold import fold, join_names
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.placement.mooncake_topology import Location, View
from preflight.base.envelope import finding_object
from preflight.base.one_line import clean, shortened
from preflight.base.plain_data import fields, plain
from preflight.base.text import can_encode, headed, wrapped
from preflight.report.topology.answer import (
    Engine,
    MooncakeView,
    Topology,
    TopologyAnswer,
    TopologyDevice,
    TopologyNode,
    natural,
)
from preflight.verdict.report import amounts

COLOURS = {Status.FAIL: "red", Status.UNKNOWN: "magenta", Status.WARN: "yellow"}
# Wide enough for the matrix of eight NICs, and what most terminals have.
MOST_COLUMNS = 80


def answer_text(answer: TopologyAnswer, paint: Paint, width: int, ascii_only: bool) -> str:
    """Write the answer for a terminal, at most 80 columns wide, without a final newline."""
    width = min(width, MOST_COLUMNS)
    parts = [
        _verdict(answer, paint, width),
        boxes(answer.topology, width, ASCII if ascii_only else LINES),
        matrix(answer.topology, preferred_nics(answer), paint, width),
        _choice_lines(answer, paint, width),
        _finding_lines(answer, paint, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


_MEANINGS = {
    Status.FAIL: "a device that the launch needs is missing, or none is left to it",
    Status.UNKNOWN: "what decides cannot be known, or was not measured",
    Status.WARN: "something is not as it should be",
    Status.PASS: "nothing is wrong in how GPUs and NICs sit",
}
_NEAREST = "Mooncake takes the nearest of the NICs in use"


def _verdict(answer: TopologyAnswer, paint: Paint, width: int) -> list[str]:
    """Return one text: the status, its meaning, and how many findings and notes follow below."""
    status, shown = answer.status, _shown_findings(answer)
    text = _NEAREST if status is Status.PASS and answer.views else _MEANINGS[status]
    if status is Status.PASS and not answer.topology.nics:
        text = "no NIC is here, and nothing is wrong in how the rest sits"
    counts = ((len(shown), "finding"), (len(answer.notes), "note"))
    parts = [f"{number} {word}{'s' * (number > 1)}" for number, word in counts if number]
    below = f" ({', '.join(parts)} below)" if parts else ""
    word = status.value.upper()
    return [headed(word, f"{text}{below}", width, paint(word, COLOURS.get(status, "green")))]


def _shown_findings(answer: TopologyAnswer) -> list[Finding]:
    """Return the findings that are not fine, the worst first, without evidence and settings."""
    plain = (findings._replace(evidence=(), settings=()) for findings in answer.findings)
    findings = fold(plain)
    return [each for status in COLOURS for each in findings if each.status is status]


def preferred_nics(answer: TopologyAnswer) -> dict[str, tuple[str, ...]]:
    """Return the NICs that Mooncake prefers for each GPU, by GPU name.

    If several processes have a GPU, the first one's NICs are taken. A GPU without a known choice is
    left out.
    """
    names = {gpu.address: gpu.name for gpu in answer.topology.gpus}
    chosen: dict[str, tuple[str, ...]] = {}
    for group in answer.views:
        if isinstance(group.view, Unknown) or isinstance(group.view.gpus, Unknown):
            continue
        for index, address in enumerate(group.view.gpus):
            place = group.view.at(f"cuda:{index}")
            if place is not None and not isinstance(place.preferred, Unknown):
                chosen.setdefault(names.get(address, ""), place.preferred)
    return chosen


def _choice_lines(answer: TopologyAnswer, paint: Paint, width: int) -> list[str]:
    """Return the lines on the NICs that Mooncake prefers, for each group of processes."""
    if not answer.views:
        return wrapped("Mooncake: no process of the launch uses RDMA", width)
    lines: list[str] = []
    for group in answer.views:
        rule = f"Mooncake {group.release}" if group.release else "the newest Mooncake known"
        who = clean(join_names(group.processes))
        lines += wrapped(f"{who}: the NICs that {rule} prefers, and those for another try", width)
        if isinstance(group.view, Unknown):
            lines += wrapped(f"  not known: {clean(group.view.reason)}", width)
        else:
            lines += _view_lines(group.view, width)
        lines += _compare(answer, group, paint, width)
    return lines


def _view_lines(view: View, width: int) -> list[str]:
    """Return the lines of a predicted choice; locations with the same NICs share a line."""
    groups: dict[Location, list[str]] = {}
    for place in view.locations:
        groups.setdefault(place._replace(name=""), []).append(place.name)
    rows = [(join_names(names), place) for place, names in groups.items()]
    first = max((len(name) for name, _ in rows), default=0)
    lines = [line for name, place in rows for line in _lines_at(name.ljust(first), place, width)]
    if isinstance(view.gpus, Unknown):
        lines += wrapped(f"  memory of GPUs: not known: {clean(view.gpus.reason)}", width)
    return lines or ["  none: it has no location for any memory"]


def _lines_at(name: str, place: Location, width: int) -> list[str]:
    """Return the lines of one location.

    Args:
        name: The location's, padded to its column.
    """
    if isinstance(place.preferred, Unknown):
        return wrapped(f"  {name}  not known: {clean(place.preferred.reason)}", width)
    if not place.preferred and not place.others:
        return [f"  {name}  no NIC"]
    if not place.preferred:
        return wrapped(f"  {name}  none; any of {_nics(place.others)}", width)
    others = f"; then {_nics(place.others)}" if place.others else ""
    return wrapped(f"  {name}  {_nics(place.preferred)}{others}", width)


def _nics(names: Iterable[str]) -> str:
    return clean(join_names(sorted(names, key=natural)))


def _compare(answer: TopologyAnswer, group: MooncakeView, paint: Paint, width: int) -> list[str]:
    """Compare the installed Mooncake's answer with the prediction, in lines; [] if not asked."""
    if not answer.measures:
        return []
    if isinstance(group.measured, Unknown):
        why = f"{paint('not measured', 'magenta')}: {clean(group.measured.reason)}"
        return wrapped(f"  {why}", width)
    who = "the installed Mooncake"
    if isinstance(answer.engine, Engine) and answer.engine.wheel:
        who = f"{answer.engine.wheel} {answer.engine.version}"
    if not group.differs:
        unpredicted = "" if isinstance(group.view, View) else ", for which nothing was predicted"
        return wrapped(f"  measured: {who} agrees{unpredicted}", width)
    lines = wrapped(f"  {paint('measured', 'yellow')}: {who} says otherwise", width)
    for name, foretold, measured in group.differs:
        lines += wrapped(f"  {clean(name)}: {clean(measured)} (foretold: {clean(foretold)})", width)
    return lines


def _finding_lines(answer: TopologyAnswer, paint: Paint, width: int) -> list[str]:
    """Return the lines of the findings that are neither pass nor skip, and of the notes."""
    lines: list[str] = []
    for finding in _shown_findings(answer):
        have_need = amounts(finding)
        word, colour = finding.status.value, COLOURS[finding.status]
        head = f"{finding.check}, {clean(finding.subject)}{f': {have_need}' if have_need else ''}"
        lines.append(headed(word, head, width, paint(word, colour)))
        if finding.text:
            lines += wrapped(f"    {clean(finding.text)}", width)
        if finding.advice:
            lines += wrapped(f"    to do: {clean(finding.advice)}", width)
    for note in answer.notes:
        lines += wrapped(f"note: {clean(note)}", width)
    return lines


def answer_object(answer: TopologyAnswer) -> dict[str, Any]:
    """Return the answer as JSON data of schemas/topology-v1.schema.json, passes and skips too."""
    topology = answer.topology
    return {
        "numa_nodes": [
            {"numa_node": plain(item.numa_node), **fields(item, "cpus", "memory_bytes")}
            for item in topology.nodes
        ],
        "gpus": [_device_object(gpu) for gpu in topology.gpus],
        "nics": [_device_object(nic) for nic in topology.nics],
        "paths": [
            {"gpu": gpu, "nic": nic, "path": plain(path)}
            for (gpu, nic), path in topology.paths.items()
        ],
        "installed": plain(answer.engine),
        "mooncake": [_view_object(group) for group in answer.views],
        "findings": [
            finding_object(item, **fields(item, "text", "advice")) for item in answer.findings
        ],
        "notes": plain(answer.notes),
    }


def _device_object(device: TopologyDevice) -> dict[str, Any]:
    uses = fields(device, "what", "used_by")
    return {**fields(device, "name", "address"), "numa_node": plain(device.numa_node), **uses}


def _view_object(group: MooncakeView) -> dict[str, Any]:
    """Build the JSON data of one group of processes."""
    view = group.view
    return {
        **fields(group, "processes"),
        "mooncake_version": plain(group.release),
        "devices": plain(group.devices.names),
        "chosen_by": group.devices.how,
        "lost": [
            {**fields(lost, "name", "cause"), "reason": lost.why} for lost in group.devices.lost
        ],
        "predicted": _locations(view if isinstance(view, Unknown) else view.locations),
        "measured": _locations(group.measured),
        "differs": [
            {"location": name, "predicted": foretold, "measured": measured}
            for name, foretold, measured in group.differs
        ],
    }


def _locations(places: Iterable[Location] | Unknown | None) -> Any:
    if places is None or isinstance(places, Unknown):
        return plain(places)
    return [{"location": place.name, **fields(place, "preferred", "others")} for place in places]


# What a frame is drawn with: across, down, and its four corners.
ASCII, LINES = tuple("-|++++"), tuple("─│┌┐└┘")


def boxes(topology: Topology, width: int, strokes: tuple[str, ...]) -> list[str]:
    """Draw a box for each NUMA node with devices, one for all other nodes, one for devices without
    a node.

    Args:
        strokes: The characters of a frame, ``ASCII`` or ``LINES``.
    """
    devices = (*topology.gpus, *topology.nics)
    only = topology.nodes[0].numa_node if len(topology.nodes) == 1 else None
    # On a host with one node that is where everything is, named or not.
    sits = ((each.name, each.numa_node) for each in devices)
    at = {name: numa_node if isinstance(numa_node, int) else only for name, numa_node in sits}
    shown = {numa.numa_node for numa in topology.nodes}
    gaps = _columns(devices, width)
    lines: list[str] = []
    empty: list[TopologyNode] = []
    for numa in topology.nodes:
        here = [device for device in devices if at[device.name] == numa.numa_node]
        if here:
            rows = [_row(device, gaps) for device in _in_order(here)]
            lines += box(_heading(numa), rows, width, strokes)
        else:
            empty.append(numa)
    if empty:
        title, rows = "nodes without GPU and NIC", [_heading(numa) for numa in empty]
        if len(rows) == 1:
            title, rows = rows[0], ["no GPU, no NIC"]
        lines += box(title, rows, width, strokes)
    left = [device for device in devices if at[device.name] not in shown]
    if left:
        title = "no NUMA node named" if shown else "host without NUMA nodes"
        lines += box(title, [_row(device, gaps) for device in _in_order(left)], width, strokes)
    return lines or box("no NUMA nodes, no GPU, no NIC", [], width, strokes)


def _in_order(devices: Sequence[TopologyDevice]) -> list[TopologyDevice]:
    """Return devices in the order of their PCI addresses; those without one last."""
    return sorted(devices, key=lambda device: (not device.address, device.address))


def _heading(numa: TopologyNode) -> str:
    size = numa.memory_bytes
    memory = "memory not known" if isinstance(size, Unknown) else format_bytes(size)
    known = "not known" if isinstance(numa.cpus, Unknown) else numa.cpus
    cpus = f"CPUs {known}" if known else "no CPU"
    return f"node {numa.numa_node}  {memory}  {cpus}"


def _columns(devices: Sequence[TopologyDevice], width: int) -> tuple[int, int, int]:
    """Return the widths of name, address and type; a name may take a third of the line."""
    name = min(width // 3, max((len(device.name) for device in devices), default=0))
    address = max((len(device.address) for device in devices), default=0)
    users = any(device.used_by for device in devices)
    rest = width - 4 - name - address - 4
    text_columns = max((len(device.what) for device in devices), default=0)
    return name, address, min(text_columns, rest - 14 if users else rest)


def _row(device: TopologyDevice, gaps: tuple[int, int, int]) -> str:
    cells = (device.name, device.address, device.what)
    texts = [shortened(cell, gap).ljust(gap) for cell, gap in zip(cells, gaps, strict=True)]
    return "  ".join((*texts, clean(join_names(device.used_by)))).rstrip()


def box(title: str, rows: Sequence[str], width: int, strokes: tuple[str, ...]) -> list[str]:
    """Draw ``rows`` in a frame of ``width`` columns with ``title`` in its upper edge."""
    across, down, top_left, top_right, bottom_left, bottom_right = strokes
    room = width - 4
    head = f"{across} {shortened(title, room - 2)} "
    return [
        f"{top_left}{head}{across * (width - 2 - len(head))}{top_right}",
        *(f"{down} {shortened(row, room):<{room}} {down}" for row in rows),
        f"{bottom_left}{across * (width - 2)}{bottom_right}",
    ]


def chunks(cells: Sequence[str], first: int, width: int) -> Iterator[range]:
    """Yield ranges of cells that fit into ``width`` columns behind ``first`` columns of name."""
    start, used = 0, first
    for at, cell in enumerate(cells):
        if at > start and used + 2 + len(cell) > width:
            yield range(start, at)
            start, used = at, first
        used += 2 + len(cell)
    if start < len(cells):
        yield range(start, len(cells))


def draws_lines(encoding: str | None) -> bool:
    """Tell whether an encoding has the characters of ``LINES``."""
    return can_encode("".join(LINES), encoding)


Paint = Callable[[str, str], str]

_LEVEL_COLOURS = {"PIX": "green", "PXB": "green", "NODE": "yellow", "SYS": "red", "?": "magenta"}
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
    """Draw the matrix of PCI paths between GPUs and NICs, with a legend; [] without a GPU or a NIC.

    Args:
        preferred: By GPU name, the NICs that get a star. Alike rows are joined; alike columns as
            well on a host with many devices. The matrix is split if it is too wide.
    """
    gpus = [gpu.name for gpu in topology.gpus]
    nics = [nic.name for nic in topology.nics]
    if not gpus or not nics:
        return []
    cells = {
        (gpu, nic): f"{_word(topology.paths[gpu, nic])}{'*' * (nic in preferred.get(gpu, ()))}"
        for gpu in gpus
        for nic in nics
    }
    many = len(nics) > UNFOLDED_NICS or len(gpus) > UNFOLDED_NICS
    rows = _grouped(gpus, lambda gpu: tuple(cells[gpu, nic] for nic in nics))
    columns = [[nic] for nic in nics]
    if many:
        columns = _grouped(nics, lambda nic: tuple(cells[gpu, nic] for gpu in gpus))
    names = [clean(join_names(group)) for group in rows]
    heads = [
        max(clean(join_names(group)), *(cells[row[0], group[0]] for row in rows), key=len)
        for group in columns
    ]
    first = max(map(len, names))
    lines: list[str] = []
    for part in chunks(heads, first, width):
        if lines:
            lines.append("")
        titles = [clean(join_names(columns[at])).ljust(len(heads[at])) for at in part]
        lines.append("  ".join((" " * first, *titles)).rstrip())
        for row, name in zip(rows, names, strict=True):
            shown = [cells[row[0], columns[at][0]] for at in part]
            painted = [
                (paint(cell, colour) if (colour := _LEVEL_COLOURS.get(cell.rstrip("*"))) else cell)
                + " " * (len(heads[at]) - len(cell))
                for cell, at in zip(shown, part, strict=True)
            ]
            lines.append("  ".join((name.ljust(first), *painted)).rstrip())
    return [*lines, *_legend(cells.values(), width)]


def _word(path: str | Unknown) -> str:
    return path if isinstance(path, str) else "-" if path.absent else "?"


def _grouped(names: Iterable[str], key: Callable[[str], Hashable]) -> list[list[str]]:
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return list(groups.values())


def _legend(cells: Iterable[str], width: int) -> list[str]:
    """Return the lines that explain the words in ``cells`` of the matrix."""
    seen = {cell.rstrip("*") for cell in cells}
    if any(cell.endswith("*") for cell in cells):
        seen.add("*")
    meanings = [f"{word} {meaning}" for word, meaning in MEANINGS.items() if word in seen]
    return ["  " + "  ".join(meanings[at] for at in part) for part in chunks(meanings, 0, width)]
