"""A child that does the work, and can be left behind where what it opened never answers.

An open on a mount that is gone, or a call of a driver that hangs, may hold its process for ever,
even against SIGKILL: whoever waits for that process waits for ever too. So the work is done in a
child, and this process, which has opened nothing, ends or becomes another program without it.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from mooncake_preflight import DEFECT, SAME_SIGNAL, interrupted_code

# Seconds that a child which was told twice to end, or has answered, may take for it.
LAST_WAIT = 1.0


def apart(
    work: Callable[[], bytes], handed_on: Iterable[int] = (), limit_seconds: float = math.inf
) -> bytes:
    """Return the few bytes that ``work`` returns in a child; b"" where it has none in time.

    The child dies with this process. Of one that ended without an answer it is its exit code, as
    b"143". handed_on: signals that are the child's to answer.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    parent = os.getpid()
    told = {number for number in handed_on if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*told, signal.SIGCHLD})
    ends: list[int] = []
    try:
        ends += _pipe()
        ends += _pipe()  # nothing is ever written: it ends with this process
        child = os.fork()
    except OSError:  # no descriptor or process is to be had (ulimit -n, -u, pids.max): then here
        for end in ends:
            os.close(end)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        answer = work()
        _flush()  # whoever has the answer may end at once
        return answer
    reader, writer, held, life = ends
    if child == 0:
        os.close(reader)
        os.close(held)
        _answer(work, parent, writer, life, before)
    os.close(writer)
    os.close(life)
    os.set_blocking(reader, False)
    until, first = time.monotonic() + limit_seconds, math.inf
    late = b""
    try:
        while (left := until - time.monotonic()) > 0:
            seen = signal.sigtimedwait({*told, signal.SIGCHLD}, min(left, 1.0))
            if seen is not None and seen.si_signo in told:
                if seen.si_code <= 0:  # of a process; a terminal tells the child itself
                    os.kill(child, seen.si_signo)
                if time.monotonic() - first > SAME_SIGNAL:
                    until = min(until, time.monotonic() + LAST_WAIT)
                    late = b"%d" % (128 + seen.si_signo)
                first = min(first, time.monotonic())
                continue
            ended = _ended(child)
            answer = _read(reader)
            if answer or ended is not None:
                if ended is None and not told:  # whom this process becomes has no child
                    _wait_for(child)
                return answer or ended or b""
        return late
    finally:
        os.close(reader)
        os.close(held)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pipe() -> tuple[int, int]:
    """Return a pipe that takes the place of no standard stream, which may be closed."""
    low = os.pipe()
    ends: list[int] = []
    try:
        for end in low:
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))
    except OSError:
        for end in ends:
            os.close(end)
        raise
    finally:
        for end in low:
            os.close(end)
    return ends[0], ends[1]


def _answer(
    work: Callable[[], bytes], parent: int, writer: int, life: int, mask: set[Any]
) -> NoReturn:
    """Do all the work of the child of ``apart``: call ``work``, write its answer, and end."""
    code = DEFECT
    try:
        # The kernel kills this process where the other end of the pipe is closed.
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC)
        if os.getppid() != parent:
            os._exit(code)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            answer = work()
        except KeyboardInterrupt as error:
            answer = b"%d" % interrupted_code(error)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        _flush()
        # A thread that never ends keeps what is open, and the reader of a pipe waiting.
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.write(writer, answer)
        os.kill(parent, signal.SIGCHLD)
        code = 0
    finally:
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()


def _ended(child: int) -> bytes | None:
    """Return the exit code of a process as a shell has it, None where it has not ended."""
    try:
        pid, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:  # whoever started this one has SIGCHLD ignored
        return b""
    code = os.waitstatus_to_exitcode(status) if pid else 0
    return b"%d" % (code if code >= 0 else 128 - code) if pid else None


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 2**16)
    except BlockingIOError:
        return b""


def _wait_for(child: int) -> None:
    until = time.monotonic() + LAST_WAIT
    while _ended(child) is None and time.monotonic() < until:
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
