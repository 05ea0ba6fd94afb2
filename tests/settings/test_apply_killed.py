"""SIGKILL at steps of apply, and of undo: after apply --undo all is as it was before."""

from __future__ import annotations

import io
import itertools
import os
import signal
import stat
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from preflight.settings.apply import undo_changes
from preflight.settings.commands import LIMITS_FILE, SYSCTL_FILE
from preflight.settings.undo import Writer
from tests.builders.examples import some
from tests.settings.test_apply import MEMLOCK, YES, applied, host, machine, planned

__all__ = ("host",)

pytestmark = pytest.mark.slow

# What makes, changes or takes away a file; each is one step, and a write is two halves.
CALLS = ("fchmod", "fchown", "fsync", "makedirs", "open", "replace", "symlink", "unlink")
MOST_STEPS = 400


def _killed(work: Callable[[], int], last: int) -> bool:
    """Do it in a child that is killed behind its step ``last``; whether it came so far."""
    child = os.fork()
    if child == 0:
        steps = itertools.count()

        def step() -> None:
            if next(steps) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def done(*given: Any, **named: Any) -> Any:
                found = call(*given, **named)
                step()
                return found

            return done

        class Halves(io.FileIO):
            def write(self, content: Any) -> int:
                for half in (content[: len(content) // 2], content[len(content) // 2 :]):
                    super().write(half)
                    step()
                return len(content)

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        os.fdopen = Halves  # type: ignore[assignment]
        # A kernel's file is written in one piece.
        Writer.value = counted(_value)  # type: ignore[method-assign]
        code = 70
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = int(work())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1, -signal.SIGKILL)
    return code == -signal.SIGKILL


def _value(self: Writer, path: str, text: str) -> None:
    Path(self.locate(path)).write_text(f"{text}\n")


def _state(folder: Path) -> dict[str, tuple[str, int, int, int]]:
    """Each file and link below a folder: content, permissions, owner."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            text = os.readlink(path) if path.is_symlink() else path.read_text().strip()
            owner = (status.st_uid, status.st_gid)
            found[str(path.relative_to(folder))] = (text, stat.S_IMODE(status.st_mode), *owner)
    return found


def test_a_kill_at_any_step_leaves_nothing_that_undo_does_not_take_back(host: Path) -> None:
    """The host's own files have another owner and mode; undo is killed too, and run again."""
    for name, mode in ((SYSCTL_FILE, 0o600), (LIMITS_FILE, 0o640)):
        place = host / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("# mine\n")
        place.chmod(mode)
        if os.geteuid() == 0:
            os.chown(place, 1234, 4321)
    before = _state(host)
    wrong = {}

    plan = planned(host, MEMLOCK)

    def apply() -> int:
        return applied(YES, plan, machine(host), persist=True, force=True)

    def undo() -> int:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return undo_changes(machine(host), YES)

    def look(said: str) -> None:
        undo()
        after, left = _state(host), sorted(os.listdir(host.parent / "state"))
        differ = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        if differ or len(left) > 1:
            wrong[said] = ({name: (before.get(name), after.get(name)) for name in differ}, left)
        assert len(wrong) < 5, wrong

    for last in some(range(MOST_STEPS), 3):
        killed = _killed(apply, last)
        look(f"apply, step {last}")
        if not killed:
            break
    assert 40 < last < MOST_STEPS - 1
    for last in some(range(MOST_STEPS), 3):
        assert not _killed(apply, MOST_STEPS)
        assert _state(host) != before
        killed = _killed(undo, last)
        look(f"undo, step {last}")
        if not killed:
            break
    assert 20 < last < MOST_STEPS - 1
    assert wrong == {}
