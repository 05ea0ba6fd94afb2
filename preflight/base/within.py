"""Waiting for what a user or a launch names no longer than the command's time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from preflight.base.usage_error import UsageError

Result = TypeVar("Result")
# Of a command that has no --timeout, or one that means something else.
LIMIT_SECONDS = 10.0


class LateError(UsageError):
    """No answer in time: a mount that is gone, a pipe to which nobody writes."""


def within(limit_seconds: float, name: str, work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns, or raise what it raises; LateError where it takes too long.

    name: what is opened. What hangs is left to a thread that dies with the process (see ``apart``).
    """
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # raised again where it can be told
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        thread.join(limit_seconds)
    except RuntimeError:  # no thread is to be had (pids.max, ulimit -u or -v): without a limit
        run()
    if failed:
        raise failed[0]
    if not done:
        raise LateError(
            f"{name}: no answer in {limit_seconds:g} s: a mount that is gone, or a pipe to which "
            "nobody writes (--timeout gives it longer)"
        )
    return done[0]


def save(name: str, path: str, content: bytes, mode: int, limit_seconds: float) -> None:
    """Write a file that is there whole or not at all. Raises UsageError; ``name`` begins it."""
    from checks.base.archive import write_whole

    try:
        if path == "/dev/stdout":  # whose reader may take its time
            write_whole(path, content, mode)
        else:
            within(limit_seconds, name, lambda: write_whole(path, content, mode))
    except LateError:  # which says what was opened
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
