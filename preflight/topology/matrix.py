"""How far each GPU is from each NIC; rows and columns that are alike are one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from checks.base.unknown import Unknown
from preflight.base.one_line import clean
from preflight.topology.drawing import chunks
from preflight.topology.names import folded
from preflight.topology.records import Topology

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
