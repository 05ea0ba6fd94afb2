"""Runs the measuring process and listens to it; it is gone when this returns or raises."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from preflight.probes.child import Order, child, refusal_of
from preflight.probes.limits import Met, Refusal, limit_met

Progress = Callable[[dict[str, Any]], None]


class Measurement(NamedTuple):
    """What was held on each device at once, and what kept one region more from being held.

    stopped: why the search ended before a limit ("" where it met one, or held all that was asked).
    met: the limit, None where none was met. left: regions that were not given back.
    """

    held_bytes: int
    held_regions: int
    region_bytes: int
    range_bytes: int
    largest_bytes: int
    registrations: int
    spent_bytes: int
    memory_drop_bytes: int | None
    stopped: str
    refusal: Refusal | None
    met: Met | None
    left: int | None


class ProbeError(Exception):
    """Nothing was measured; the message is a sentence. met: the limit that stopped it, if any."""

    def __init__(self, message: str, met: Met | None = None) -> None:
        super().__init__(message)
        self.met = met


def measure(order: Order, progress: Progress) -> Measurement:
    """Raises ProbeError, and KeyboardInterrupt once the process is gone."""
    reading, writing = os.pipe()
    parent = os.getpid()
    process = os.fork()
    if not process:
        _become_child(order, parent, reading, writing)
    os.close(writing)
    status: int | None = None
    events: dict[str, dict[str, Any]] = {}
    try:
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    break  # it died in the middle of a word
                event = json.loads(line)
                events[event["event"]] = event
                progress(event)
        status = os.waitpid(process, 0)[1]
    finally:
        if status is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    if "error" in events:
        raise _error(events["error"])
    if "found" not in events:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        raise ProbeError(f"the measuring process {how} before it had an answer")
    return _measurement(events["found"], events.get("released"))


def _become_child(order: Order, parent: int, reading: int, writing: int) -> None:
    """Never returns."""
    code = 70
    try:
        os.close(reading)
        # Its end says nothing on the terminal: what it has to say goes through the pipe.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

        def say(event: dict[str, Any]) -> None:
            os.write(writing, f"{json.dumps(event)}\n".encode())

        code = child(order, parent, say)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        event = {"event": "error", "error": message, "defect": True}
        os.write(writing, f"{json.dumps(event)}\n".encode())
    finally:
        os._exit(code)


def _error(event: dict[str, Any]) -> Exception:
    if event.get("defect"):
        return RuntimeError(event["error"])
    answer = event.get("refusal")
    if answer is None:
        return ProbeError(event["error"])
    met = limit_met(refusal_of(answer))
    return ProbeError(met.text, met)


def _measurement(found: dict[str, Any], released: dict[str, Any] | None) -> Measurement:
    refusal = None if found["refusal"] is None else refusal_of(found["refusal"])
    return Measurement(
        found["held_bytes"],
        found["held_regions"],
        found["region_bytes"],
        found["range_bytes"],
        found["largest_bytes"],
        found["registrations"],
        found["spent_bytes"],
        found["memory_drop_bytes"],
        found["stopped"],
        refusal,
        None if refusal is None else limit_met(refusal),
        None if released is None else int(released["left"]),
    )
