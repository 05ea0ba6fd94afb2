"""Runs the measuring process and listens to it; it is gone when this returns or raises."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from preflight.probes.child import Measurement, Order, child
from preflight.probes.limits import Limit

Progress = Callable[[dict[str, Any]], None]


class ProbeError(Exception):
    """Nothing was measured; the message is a sentence. met: the limit that stopped it, if any."""

    def __init__(self, message: str, met: Limit | None = None) -> None:
        super().__init__(message)
        self.met = met


def measure(order: Order, progress: Progress) -> Measurement:
    """Raises ProbeError, and KeyboardInterrupt once the process is gone."""
    reading, writing = Pipe(duplex=False)
    parent = os.getpid()
    process = os.fork()
    if not process:
        _become_child(order, parent, reading, writing)
    writing.close()
    status: int | None = None
    events: dict[str, dict[str, Any]] = {}
    try:
        # It ends where the process does, though that be in the middle of a word.
        with reading, contextlib.suppress(EOFError):
            while True:
                event = reading.recv()
                events[event["event"]] = event
                progress(event)
        status = os.waitpid(process, 0)[1]
    finally:
        if status is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    failed = events.get("error")
    if failed is not None:
        if failed.get("defect"):
            raise RuntimeError(failed["error"])
        raise ProbeError(failed["error"], failed["met"])
    if "found" not in events:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        raise ProbeError(f"the measuring process {how} before it had an answer")
    measured: Measurement = events["found"]["measured"]
    return measured._replace(left=events["released"]["left"] if "released" in events else None)


def _become_child(order: Order, parent: int, reading: Connection, writing: Connection) -> None:
    """Never returns."""
    code = 70
    try:
        reading.close()
        # Its end says nothing on the terminal: what it has to say goes through the pipe.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = child(order, parent, writing.send)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        writing.send({"event": "error", "error": message, "defect": True})
    finally:
        os._exit(code)
