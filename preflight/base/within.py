"""Waiting for files that a user or a launch names, but no longer than the command's time."""

import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TypeVar

from preflight.base.usage_error import UsageError

Result = TypeVar("Result")
# Where no --timeout was given: some commands wait longer for what they start.
LIMIT_SECONDS = 10.0


# One limit for all that a command opens: whether it has a --timeout, and what that was given.
HAS_TIMEOUT: ContextVar[bool] = ContextVar("HAS_TIMEOUT", default=False)
GIVEN_SECONDS: ContextVar[float | None] = ContextVar("GIVEN_SECONDS", default=None)


def limit_seconds(usual: float = LIMIT_SECONDS) -> float:
    """Return how long the command that runs waits for what it opens: --timeout, else ``usual``."""
    seconds = GIVEN_SECONDS.get()
    return usual if seconds is None else seconds


class LateError(UsageError):
    """No answer in time: a mount that is gone, a pipe to which nobody writes, a long text."""


def within(limit_seconds: float, name: str, work: Callable[[], Result]) -> Result:
    """Run ``work`` in a thread and return its value, or raise its error.

    Args:
        name: What is opened, for the message. If no thread can be started, ``work`` runs without a
            limit.

    Raises:
        LateError: After ``limit_seconds``; the thread is then left behind.
    """
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # raised again where it can be told
            failed.append(error)

    thread = threading.Thread(target=copy_context().run, args=(run,), daemon=True)
    try:
        thread.start()
        thread.join(limit_seconds)
    except RuntimeError:  # no thread is to be had (pids.max, ulimit -u or -v): without a limit
        run()
    if failed:
        raise failed[0]
    if not done:
        longer = " (--timeout gives it longer)" if HAS_TIMEOUT.get() else ""
        raise LateError(
            f"{name}: no answer in {limit_seconds:g} s: a mount that is gone, a pipe to which "
            f"nobody writes, or more than is read in that time{longer}"
        )
    return done[0]


def save(name: str, path: str, content: bytes, mode: int, limit_seconds: float) -> None:
    """Write a file with the permission bits ``mode``, whole or not at all.

    Raises UsageError; ``name`` begins the message.
    """
    from checks.framework.archive import write_whole

    try:
        if path == "/dev/stdout":  # whose reader may take its time
            write_whole(path, content, mode)
        else:
            within(limit_seconds, name, lambda: write_whole(path, content, mode))
    except LateError:  # which says what was opened
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
