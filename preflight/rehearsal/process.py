"""The processes of a rehearsal, as the command has them: started, asked, ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHILD = Path(__file__).with_name("child.py")
# How often memory is looked at while a step runs: at 10 GB/s, 200 MB come in meanwhile.
LOOK_SECONDS = 0.02
_LOG_BYTES = 65536
_MOST_LINES = 4
_MOST_COLUMNS = 300


class Reply(NamedTuple):
    """error: the call and what it said, or how the process ended; "" where it went well."""

    error: str
    seconds: float


class StoppedError(Exception):
    """A step was broken off: the reason is a sentence. The process may be in the middle of it."""


Look = Callable[[], None]


def _no_look() -> None:
    """Where nothing is to be looked at."""


class Running:
    """One process of the rehearsal, its orders, its answers, and what its library wrote."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        log: Path,
        node: int | None = None,
        program: Sequence[str] = (),
    ) -> None:
        """program: becomes this instead of taking orders. Raises OSError."""
        self.log = log
        self._ended: int | None = None
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._unread = b""
        order = {
            "parent": os.getpid(),
            "node": node,
            "program": list(program),
            "orders": orders,
            "answers": answers,
        }
        # What becomes a program needs no packages, and starts in half the time without them.
        flags = ["-I", "-S"] if program else []
        try:
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    [python, *flags, str(CHILD), json.dumps(order)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=dict(environment),
                    pass_fds=() if program else (orders, answers),
                )
        except BaseException:
            os.close(self._orders)
            os.close(self._answers)
            raise
        finally:
            os.close(orders)
            os.close(answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, order: Mapping[str, Any], limit_seconds: float, look: Look = _no_look) -> Reply:
        """Do one thing. ``look`` is called meanwhile, and raises StoppedError to break it off."""
        self.order(order)
        return self.answer(limit_seconds, look)

    def order(self, order: Mapping[str, Any]) -> None:
        """Have it begin; its answer is for ``answer``. One that is gone says so there."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, f"{json.dumps(order)}\n".encode())

    def answer(self, limit_seconds: float, look: Look = _no_look) -> Reply:
        """What came of the oldest order without an answer."""
        began = time.monotonic()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], LOOK_SECONDS)
            if ready:
                more = os.read(self._answers, 65536)
                if not more:
                    return Reply(self.how_it_ended(), time.monotonic() - began)
                self._unread += more
            look()
            if time.monotonic() - began > limit_seconds:
                raise StoppedError(f"it took more than {limit_seconds:g} s")
        line, _, self._unread = self._unread.partition(b"\n")
        answer = json.loads(line)
        return Reply(answer["error"], answer["seconds"])

    def wait_until(
        self, ready: Callable[[], bool], limit_seconds: float, look: Look = _no_look
    ) -> Reply:
        """A program is up once ``ready``, or has failed once it is gone."""
        began = time.monotonic()
        while True:
            if self._process.poll() is not None:
                return Reply(self.how_it_ended(), time.monotonic() - began)
            if ready():
                return Reply("", time.monotonic() - began)
            look()
            if time.monotonic() - began > limit_seconds:
                raise StoppedError(f"it took more than {limit_seconds:g} s")
            time.sleep(LOOK_SECONDS)

    def how_it_ended(self) -> str:
        """``SIGBUS (exit code 135)``, or ``exit code 1``."""
        code = self._process.wait()
        if code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"{signal.Signals(-code).name} (exit code {128 - code})"
        return f"signal {-code} (exit code {128 - code})"

    def last_lines(self) -> tuple[str, ...]:
        """What the library wrote last: its errors, or where there is none its last words."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_BYTES))
            return worst_lines(file.read().decode(errors="replace"))
        return ()

    def end(self) -> None:
        """Kill it and wait: the kernel takes back all that it had. More than once is no harm."""
        for descriptor in (self._orders, self._answers):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._orders = self._answers = -1
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def worst_lines(text: str) -> tuple[str, ...]:
    """The last lines of errors, which glog begins with E or F; else the last lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if is_error(line)]
    warned = [line for line in lines if line[:1] == "W" and line[1:5].isdigit()]
    chosen = errors or warned or lines
    return tuple(line[:_MOST_COLUMNS] for line in chosen[-_MOST_LINES:])


def is_error(line: str) -> bool:
    """Whether glog wrote it as one."""
    return line[:1] in ("E", "F") and line[1:5].isdigit()
