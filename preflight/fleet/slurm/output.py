"""What ``srun --label`` prints, taken apart: who said what, and whom srun itself gave up.

A labelled line is cut after 1024 bytes, and each piece is labelled as a line of its own (Slurm
22.05: ``0: <1024 bytes>``, ``0: <the rest>``), between those of other tasks. Pieces of one task
keep their order, and a report has no line feed in it: its pieces are joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from preflight.base.usage_error import UsageError
from preflight.fleet.base.node_sets import expand
from preflight.fleet.node.records import START as REPORT_START
from preflight.fleet.node.reply import quoted
from preflight.fleet.node.script import SAYS

# The first line of each task: which node it runs on. Tasks are numbered, nodes are asked by name.
ON_NODE = f"{SAYS} on-node "

_LABEL = re.compile(rb" *([0-9]+): ?(.*)", re.DOTALL)
_NOT_LAUNCHED = re.compile(r"srun: error: Task launch for \S+ failed on node ([^\s:]+): (.*)")
_ENDED = re.compile(r"srun: error: (\S+): tasks? [0-9,\-]+: (.*)")
# Words of srun after which the tasks of the other nodes were ended too, whatever they did.
_ABORTED = ("Application launch failed", "Job step aborted", "Force Terminated")


class Complaints(NamedTuple):
    """What srun said: of single nodes, and of all.

    not_launched: node -> why no task started there. ended: node -> how its task ended (``Killed``).
    aborted: srun ended the tasks of the others. general: its last error that names no node.
    """

    not_launched: Mapping[str, str]
    ended: Mapping[str, str]
    aborted: bool
    general: str


class Said(NamedTuple):
    """What one node printed, line by line as it wrote them, and its standard error."""

    lines: tuple[bytes, ...]
    error: tuple[bytes, ...]


def by_node(output: bytes, errors: bytes) -> dict[str, Said]:
    """What each node said that said at least its name."""
    error: dict[int, list[bytes]] = {}
    for task, line in _labelled(errors):
        error.setdefault(task, []).append(line)
    pieces: dict[int, list[bytes]] = {}
    nodes: dict[int, str] = {}
    named = ON_NODE.encode()
    for task, line in _labelled(output):
        if task not in nodes and line.startswith(named):
            nodes[task] = line.removeprefix(named).strip().decode("utf-8", "replace")
        else:
            pieces.setdefault(task, []).append(line)
    return {
        node: Said(_joined(pieces.get(task, ())), tuple(error.get(task, ())))
        for task, node in nodes.items()
    }


def _joined(pieces: Iterable[bytes]) -> tuple[bytes, ...]:
    """Lines, the report in one: it ends at an empty line, or at one of the script's own."""
    lines: list[bytes] = []
    report: list[bytes] = []
    for piece in pieces:
        if report and piece and not piece.startswith(SAYS.encode()):
            report.append(piece)
            continue
        if report:
            lines.append(b"".join(report))
            report = []
        if piece.startswith(REPORT_START):
            report.append(piece)
        else:
            lines.append(piece)
    return (*lines, b"".join(report)) if report else tuple(lines)


def _labelled(output: bytes) -> list[tuple[int, bytes]]:
    found = []
    for line in output.split(b"\n"):
        match = _LABEL.fullmatch(line)
        if match is not None:
            found.append((int(match[1]), match[2]))
    return found


def complaints(errors: bytes) -> Complaints:
    """Of srun's standard error, in which the tasks' own lines are labelled."""
    not_launched: dict[str, str] = {}
    ended: dict[str, str] = {}
    aborted = False
    general = ""
    for raw in errors.split(b"\n"):
        line = quoted(raw)
        aborted = aborted or any(words in line for words in _ABORTED)
        if match := _NOT_LAUNCHED.fullmatch(line):
            not_launched[match[1]] = match[2]
        elif match := _ENDED.fullmatch(line):
            for node in _names(match[1]):
                ended[node] = match[2]
        elif line.startswith("srun: error: "):
            general = line.removeprefix("srun: error: ")
        elif line.startswith("srun: ") and not general and "option" in line:
            general = line.removeprefix("srun: ")  # srun: unrecognized option '--x'
    return Complaints(not_launched, ended, aborted, general)


def _names(text: str) -> list[str]:
    try:
        return expand(text)
    except UsageError:
        return [text]
