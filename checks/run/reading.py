"""Reads all topics of a host side by side, each within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.run.facts import READERS, Facts

# A reader that takes longer is given up: a hung driver or a dead mount must not hang the gate.
DEFAULT_LIMIT_SECONDS = 10.0


def read_facts(
    root: Root,
    needs: LaunchNeeds | None,
    limit_seconds: float = DEFAULT_LIMIT_SECONDS,
    topics: Iterable[str] | None = None,
    slow: Callable[[list[str]], None] | None = None,
    slow_seconds: float = 1.0,
) -> Facts:
    """Read ``topics`` (all of them by default) below ``root``; never raises, never hangs.

    ``needs`` says which addresses, ports and paths to look at. ``slow`` is told once which topics
    are still being read after ``slow_seconds``. A reader that fails or takes longer than
    ``limit_seconds`` leaves Unknown in its place; its thread is left to die with the process.
    """
    results: dict[str, Any] = {}
    threads: dict[str, threading.Thread] = {}
    for topic in READERS if topics is None else topics:
        thread = threading.Thread(
            target=_read, args=(topic, root, needs, results), name=topic, daemon=True
        )
        threads[topic] = thread
        try:
            thread.start()
        except RuntimeError:  # no thread is to be had (pids.max, ulimit -u or -v): then in turn
            _read(topic, root, needs, results)
    start = time.monotonic()
    _wait(threads, start + min(slow_seconds, limit_seconds))
    waiting = [topic for topic, thread in threads.items() if thread.is_alive()]
    if waiting and slow is not None:
        slow(waiting)
    _wait(threads, start + limit_seconds)
    late = Unknown(f"not read within {limit_seconds:g} s")
    return Facts({topic: results.get(topic, late) for topic in threads})


def _wait(threads: Mapping[str, threading.Thread], until: float) -> None:
    for thread in threads.values():
        if thread.ident is None:
            continue  # never started
        thread.join(max(0.0, until - time.monotonic()))


def _read(topic: str, root: Root, needs: LaunchNeeds | None, results: dict[str, Any]) -> None:
    module, function = READERS[topic]
    try:
        results[topic] = getattr(import_module(module), function)(root, needs)
    except BaseException as error:  # whatever a reader does, it is one topic unknown
        results[topic] = Unknown(f"{topic}: {type(error).__name__}: {error}")
