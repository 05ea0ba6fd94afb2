"""One job step of Slurm: the same program once on each node, ended whatever happens, and heard.

A labelled line is cut after 1024 bytes, and each piece is labelled as a line of its own (Slurm
22.05: ``0: <1024 bytes>``, ``0: <the rest>``), between those of other tasks. Pieces of one task
keep their order, and a report has no line feed in it: its pieces are joined.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

from preflight.base.usage_error import UsageError
from preflight.fleet.base.node_sets import expand
from preflight.fleet.base.signals import caught_signals
from preflight.fleet.node.records import START as REPORT_START
from preflight.fleet.remote.program import SAYS, SAYS_START
from preflight.fleet.remote.reply import quoted

if TYPE_CHECKING:
    from subprocess import Popen

# How long the tasks may take to end once their standard input does (their script allows one second
# between SIGTERM and SIGKILL), and srun once it is told to (slurmd waits for KillWait, 30 s).
_CLOSING_SECONDS = 4.0
_ENDING_SECONDS = 40.0
# How often it is looked whether time is up.
_TICK_SECONDS = 0.1

# The first line of each task: which node it runs on. Tasks are numbered, nodes are asked by name.
ON_NODE = f"{SAYS} on-node "

_LABEL = re.compile(rb" *([0-9]+): ?(.*)", re.DOTALL)
_NOT_LAUNCHED = re.compile(r"srun: error: Task launch for \S+ failed on node ([^\s:]+): (.*)")
_ENDED = re.compile(r"srun: error: (\S+): tasks? [0-9,\-]+: (.*)")
# Words of srun after which the tasks of the other nodes were ended too, whatever they did.
_ABORTED = ("Application launch failed", "Job step aborted", "Force Terminated")


class SrunOutput(NamedTuple):
    """What srun printed. out_of_time: it was ended by us."""

    output: bytes
    errors: bytes
    out_of_time: bool


class StepInterruptedError(Exception):
    """The step is ended. signal: what came; printed: what it had said until then."""

    def __init__(self, number: int, printed: SrunOutput) -> None:
        super().__init__(number)
        self.signal = number
        self.printed = printed


def srun_words(
    nodes: str,
    count: int,
    in_allocation: bool,
    queue_seconds: int,
    options: Sequence[str],
    program: Sequence[str],
) -> list[str]:
    """Return the command of srun.

    nodes: a node set of ``count`` names. options: the user's own, which may win.
    """
    allocation = ["--overlap"] if in_allocation else [f"--immediate={queue_seconds}"]
    return [
        "srun",
        f"--nodelist={nodes}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--job-name=mooncake-preflight",
        "--input=all",
        "--label",
        # A node that dies, and a verdict that is no 0, leave the other nodes to their answers.
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        *allocation,
        *options,
        *program,
    ]


def run_step(
    words: Sequence[str], content: bytes, start_seconds: float, task_seconds: float
) -> SrunOutput:
    """Run srun with ``content`` on standard input; end its step when its time is up.

    start_seconds: until the first task begins. task_seconds: from when the last one began. Raises
    UsageError where there is no srun, and on a signal StepInterruptedError, once the step is ended.
    """
    import subprocess

    with caught_signals() as caught:
        try:
            # A session of its own: Ctrl-C is to reach this program alone, which ends srun.
            process = subprocess.Popen(
                list(words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"{words[0]}: {error.strerror}: this machine has no commands of Slurm; run it on a "
                "login node or in a job, or use fleet check, which asks over ssh"
            ) from None
        closing = threading.Event()
        output, errors, begun = list[bytes](), list[bytes](), list[float]()
        threads = [
            threading.Thread(target=_feed, args=(process.stdin, content, closing), daemon=True),
            threading.Thread(target=_gather, args=(process.stdout, output, begun), daemon=True),
            threading.Thread(target=_gather, args=(process.stderr, errors, []), daemon=True),
        ]
        for thread in threads:
            thread.start()
        first = time.monotonic()
        out_of_time = False
        while process.poll() is None and not caught and not out_of_time:
            time.sleep(_TICK_SECONDS)
            until = begun[-1] + task_seconds if begun else first + start_seconds
            out_of_time = time.monotonic() > until and process.poll() is None
        closing.set()
        _end(process, caught)
        for thread in threads:
            thread.join()
    printed = SrunOutput(b"".join(output), b"".join(errors), out_of_time)
    if caught:
        raise StepInterruptedError(caught[0], printed)
    return printed


def _feed(pipe: IO[bytes], content: bytes, closing: threading.Event) -> None:
    """Write ``content`` to standard input, and end it only when ``closing`` is set."""
    with contextlib.suppress(OSError), pipe:  # srun is gone, and its exit says why
        pipe.write(content)
        pipe.flush()
        closing.wait()


def _gather(pipe: IO[bytes], lines: list[bytes], begun: list[float]) -> None:
    """Read the pipe to its end. begun: when tasks said that they have their standard input."""
    with pipe:
        for line in pipe:
            lines.append(line)
            if SAYS_START in line:
                begun.append(time.monotonic())


def _end(process: Popen[bytes], caught: list[int]) -> None:
    """Ask the tasks, by the end of their standard input; then srun, by SIGTERM; then the kernel.

    Slurm ends tasks by SIGKILL, which leaves what they made. A second signal hurries this up.
    """
    signals = len(caught)
    for seconds, go_on in ((_CLOSING_SECONDS, process.terminate), (_ENDING_SECONDS, process.kill)):
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until and len(caught) == signals:
            time.sleep(_TICK_SECONDS)
        if process.poll() is None:
            go_on()
    process.wait()


class SrunErrors(NamedTuple):
    """What srun said: of single nodes, and of all.

    not_launched: node -> why no task started there. ended: node -> how its task ended (``Killed``).
    aborted: srun ended the tasks of the others. general: its last error that names no node.
    """

    not_launched: Mapping[str, str]
    ended: Mapping[str, str]
    aborted: bool
    general: str


class TaskOutput(NamedTuple):
    """What one node printed, line by line as it wrote them, and its standard error."""

    lines: tuple[bytes, ...]
    error: tuple[bytes, ...]


def by_node(output: bytes, errors: bytes) -> dict[str, TaskOutput]:
    """Return the output of each node that printed at least its name."""
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
        node: TaskOutput(_joined(pieces.get(task, ())), tuple(error.get(task, ())))
        for task, node in nodes.items()
    }


def _joined(pieces: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the lines, the report as one: it ends at an empty line, or at one of the script's."""
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


def complaints(errors: bytes) -> SrunErrors:
    """Read srun's standard error, in which the tasks' own lines are labelled."""
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
    return SrunErrors(not_launched, ended, aborted, general)


def _names(text: str) -> list[str]:
    try:
        return expand(text)
    except UsageError:
        return [text]
