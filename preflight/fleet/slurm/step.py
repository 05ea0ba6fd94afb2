"""One job step of Slurm that runs the same program once on each node, ended whatever happens."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

from preflight.base.usage_error import UsageError
from preflight.fleet.base.signals import caught_signals

if TYPE_CHECKING:
    from subprocess import Popen

# How long the tasks may take to end once their standard input does (their script allows one second
# between SIGTERM and SIGKILL), and srun once it is told to (slurmd waits for KillWait, 30 s).
_CLOSING_SECONDS = 4.0
_ENDING_SECONDS = 40.0
# How often it is looked whether time is up.
_TICK_SECONDS = 0.1


class Limits(NamedTuple):
    """start_seconds: until the first task begins. task_seconds: from when the last one began."""

    start_seconds: float
    task_seconds: float


class Step(NamedTuple):
    """What srun printed. out_of_time: it was ended by us."""

    output: bytes
    errors: bytes
    out_of_time: bool


class StepInterruptedError(Exception):
    """The step is ended. signal: what came; step: what it had said until then."""

    def __init__(self, number: int, step: Step) -> None:
        super().__init__(number)
        self.signal = number
        self.step = step


def srun_words(
    nodes: str,
    count: int,
    in_allocation: bool,
    queue_seconds: int,
    options: Sequence[str],
    program: Sequence[str],
) -> list[str]:
    """``nodes``: a node set of ``count`` names. ``options``: the user's own, which may win."""
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


def run_step(words: Sequence[str], content: bytes, begun: bytes, limits: Limits) -> Step:
    """Run srun with ``content`` on standard input; end its step when its time is up.

    begun: what each task prints when it has its standard input. Raises UsageError where there is
    no srun, and on a signal StepInterruptedError, once the step is ended.
    """
    import subprocess

    with caught_signals() as caught, _Input(content) as standard_input:
        try:
            # A session of its own: Ctrl-C is to reach this program alone, which ends srun.
            process = subprocess.Popen(
                list(words),
                stdin=standard_input.reading,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(
                f"{words[0]}: {error.strerror}: this machine has no commands of Slurm; run it on a "
                "login node or in a job, or use fleet check, which asks over ssh"
            ) from None
        output, errors = _Stream(process.stdout, begun), _Stream(process.stderr, b"")
        first = time.monotonic()
        out_of_time = False
        while process.poll() is None and not caught:
            limit = limits.task_seconds if output.begun else limits.start_seconds
            if time.monotonic() > (output.begun or first) + limit:
                out_of_time = True
                break
            time.sleep(_TICK_SECONDS)
        if process.poll() is None:
            _end(process, standard_input, caught)
        step = Step(output.content(), errors.content(), out_of_time)
    if caught:
        raise StepInterruptedError(caught[0], step)
    return step


def _end(process: Popen[bytes], standard_input: _Input, caught: list[int]) -> None:
    """Ask the tasks, by the end of their standard input; then srun, by SIGTERM; then the kernel.

    Slurm ends tasks by SIGKILL, which leaves what they made. A second signal hurries this up.
    """
    standard_input.closing.set()
    signals = len(caught)
    for seconds, go_on in ((_CLOSING_SECONDS, process.terminate), (_ENDING_SECONDS, process.kill)):
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until and len(caught) == signals:
            time.sleep(_TICK_SECONDS)
        if process.poll() is None:
            go_on()
    process.wait()


class _Stream:
    """What comes out of a pipe, read as it comes. begun: when ``mark`` was last seen, or 0."""

    def __init__(self, pipe: IO[bytes] | None, mark: bytes) -> None:
        assert pipe is not None
        self.begun = 0.0
        self._mark = mark
        self._pipe = pipe
        self._parts: list[bytes] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while part := os.read(self._pipe.fileno(), 1 << 16):
            self._parts.append(part)
            if self._mark and self._mark in part:
                self.begun = time.monotonic()

    def content(self) -> bytes:
        """All of it, once the other side is closed."""
        self._thread.join()
        self._pipe.close()
        return b"".join(self._parts)


class _Input:
    """A standard input that has ``content``, and ends only when it is told to."""

    def __init__(self, content: bytes) -> None:
        self.reading, self._writing = os.pipe()
        self._content = content
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def __enter__(self) -> _Input:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        # Of the last reader: a write that waits ends with it.
        os.close(self.reading)
        self.closing.set()
        self._thread.join()

    def _feed(self) -> None:
        left = memoryview(self._content)
        try:
            while left:
                left = left[os.write(self._writing, left) :]
        except OSError:  # srun is gone, and its exit says why
            pass
        self.closing.wait()
        os.close(self._writing)
