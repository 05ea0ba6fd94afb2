"""The plan of a rehearsal, its prediction and its results: plain records."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from checks.framework.installed import installed_mooncake
from checks.framework.pages import Spot
from checks.framework.unknown import Unknown
from checks.rdma.fork import Forking
from preflight.base.within import limit_seconds, within
from preflight.engines.mooncake.allocations import Allocation, Outcome
from preflight.engines.mooncake.replay import ProcessReplay
from preflight.engines.programs.memory_records import Launch, MappedProcess

# Pages by size and node; under node None those of the whole host.
Pages = Mapping[Spot, int]


class Member(NamedTuple):
    """One process that will run.

    Attributes:
        program: Sglang (a rank), store_service, mooncake_client.
        arguments: mooncake_client's own flags.
        nics: Names of the RDMA devices that it uses.
        pinned_bytes: Predicted to be pinned for it in all, over its NICs.
        more_bytes: May be pinned on top, depending on where the memory lies.
        forking: How it registers memory if libibverbs asks for whole huge pages; None if it does
            not ask.
        number: Its place among the plan's members.
    """

    name: str
    program: str
    process: MappedProcess
    environment: Mapping[str, str]
    devices: str = ""
    arguments: tuple[str, ...] = ()
    nics: tuple[str, ...] | Unknown = ()
    pinned_bytes: int | Unknown = 0
    more_bytes: int = 0
    forking: Forking | None = None
    number: int = 0


class RehearsalStep(NamedTuple):
    """One thing that one process does.

    Attributes:
        what: Its name for a person.
        order: What is sent to the process.
        asked: What it maps if pages never run short.
        taken: What it is predicted to map here; None if it is predicted not to be reached.
        refused: Why a registration is predicted to fail, "" if none is.
    """

    member: Member
    action: str  # pool, setup, dummy, program, register
    what: str
    order: Mapping[str, Any]
    asked: tuple[Allocation, ...] = ()
    taken: tuple[Allocation, ...] | None = ()
    refused: str = ""

    @property
    def failure(self) -> Allocation | None:
        """The allocation that is predicted to fail and end the process; None if none is."""
        last = (self.taken or ())[-1:]
        return last[0] if last and last[0].outcome is Outcome.FAILED else None


class RehearsalPlan(NamedTuple):
    """A rehearsal before it begins.

    Attributes:
        launch: The one that is run, scaled.
        replayed: Its predicted allocations; None if a pool of huge pages cannot be read.
        may_fail: Why it fails in some order of its processes, "" if in none.
        full_size: Status and reason of the launch as it was written.
        refused: Why the launch does not start, whatever its memory; "" if no reason is known.
        notes: Parts that are not rehearsed, or in another way.
    """

    library: Library
    scale: int
    launch: Launch
    members: tuple[Member, ...]
    steps: tuple[RehearsalStep, ...]
    replayed: tuple[ProcessReplay, ...] | None
    may_fail: str = ""
    full_size: tuple[str, str] = ("", "")
    refused: str = ""
    notes: tuple[str, ...] = ()


class StepResult(NamedTuple):
    """The result of one step.

    Attributes:
        error: The call and its message, or the signal; "" if it succeeded.
        pages: Taken meanwhile, by anybody.
        seconds: In all.
        populated_seconds: Until the last huge page was mapped, None if none was.
        registered_seconds: From then until the last memory was pinned, None if none was.
        lines: Of the log, if it failed, as ``worst_lines``.
        resident_bytes: By how much the process's regular memory grew; None if the process is gone.
        ended: The exit code of a process that is gone, or minus the signal; its pages are gone,
            too.
        pinned_bytes: Of the launch's processes together, after the step.
        huge_bytes: By how much these processes' own huge pages grew.
    """

    step: RehearsalStep
    error: str
    seconds: float
    pages: Pages
    populated_seconds: float | None = None
    registered_seconds: float | None = None
    lines: tuple[str, ...] = ()
    resident_bytes: int | None = None
    pinned_bytes: int = 0
    ended: int | None = None
    huge_bytes: int | None = None


class ProcessMemory(NamedTuple):
    """The memory of one process at the end, by /proc/PID/status; None if the process is gone."""

    member: Member
    pinned_bytes: int | None
    locked_bytes: int | None
    resident_bytes: int | None


class Transfer(NamedTuple):
    """A value that was put by one process and got by another.

    Attributes:
        put, got: Names of these processes.
        error: What failed, "" if nothing did.
        skipped: Why no value was put, "" if one was.
    """

    put: str
    got: str
    bytes: int
    error: str = ""
    skipped: str = ""
    seconds: float = 0.0


class RehearsalRun(NamedTuple):
    """A rehearsal that has run.

    Attributes:
        done: A result for each step that was begun and not stopped.
        stopped: Why it ended early (memory that must be left, a time limit), "" if it did not.
        pages: That were in use by it when all was mapped.
        left: Pages that were not back after it, by page size in bytes.
        lowest_room_bytes: The least memory that might still be taken during the run.
    """

    done: tuple[StepResult, ...]
    processes: tuple[ProcessMemory, ...]
    pages: Pages
    transfer: Transfer
    stopped: str
    left: Mapping[int, int]
    lowest_room_bytes: int | None = None


PIP = "python3 -m pip install mooncake-transfer-engine "
PIP += "(-cuda13 for CUDA 13, -non-cuda without a GPU)"
# Asks another interpreter for its import path, which is all that its packages are found by.
_PATH = "import sys; print('\\n'.join(sys.path))"
# A cold start from a network file system.
_LIMIT_SECONDS = 20


class Library(NamedTuple):
    """An installed Mooncake.

    Attributes:
        python: The interpreter.
        folder: The one that holds the package ``mooncake``.
        distribution: The name of the wheel.
    """

    python: str
    folder: str
    distribution: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.distribution} {self.version}"

    def program(self, name: str) -> str:
        """Return the path of a program that the wheel brings, such as ``mooncake_master``."""
        return os.path.join(self.folder, "mooncake", name)


def find_library(python: str | None) -> Library | Unknown:
    """Find the Mooncake of the interpreter ``python``, or of the running one if None.

    Unknown, with the reason, if it has none or cannot be run.

    Raises:
        UsageError: If it does not answer.
    """
    path: tuple[str, ...] | Unknown = tuple(sys.path)
    if python is not None:  # on a mount that is gone, it never starts
        limit = limit_seconds(_LIMIT_SECONDS + 1)
        path = within(limit, f"--python {python}", partial(_path_of, python))
    if isinstance(path, Unknown):
        return path
    who = "the Python that runs this" if python is None else python
    for folder in (os.path.abspath(each or ".") for each in path):
        if not os.path.isfile(os.path.join(folder, "mooncake", "__init__.py")):
            continue
        wheels = installed_mooncake([folder]) or installed_mooncake(path)
        if not wheels:
            return Unknown(f"{folder}/mooncake is of no wheel: its version is not known")
        return Library(python or sys.executable, folder, *wheels[0])
    how = f"{PIP}, or name the interpreter that has it with --python"
    return Unknown(f"Mooncake is not installed in {who}, so it cannot be run: {how}")


def _path_of(python: str) -> tuple[str, ...] | Unknown:
    """Ask the interpreter ``python`` for its import path; Unknown if it cannot be run."""
    import subprocess

    try:
        if os.sep in python:
            os.stat(python)  # a child that hangs at its start could be left behind by nobody
        argv, limit = [python, "-c", _PATH], _LIMIT_SECONDS
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Unknown(f"--python {python}: cannot be run: {error}")
    if done.returncode:
        return Unknown(f"--python {python}: is no Python: {done.stderr.strip()[-200:]}")
    return tuple(line for line in done.stdout.splitlines() if line)
