"""``measure``: the launch and its library found, the parts measured, and the answer of them."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from checks.base.root import Root
from checks.base.units import MIB, format_bytes
from checks.base.unknown import Unknown
from preflight.base.output import Progress
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.inputs.host_source import open_host, size_within
from preflight.inputs.launch_words import LaunchWords
from preflight.measuring.findings import consequences, findings
from preflight.measuring.kills import Killing, Survival
from preflight.measuring.plan import (
    DEFAULT_SPEND_BYTES,
    LEAST_BUDGET_SECONDS,
    LEAST_SPEND_BYTES,
    PARTS,
)
from preflight.measuring.report import MeasureAnswer
from preflight.measuring.run import LOOPBACK, MeasureError, Measuring, SkippedError
from preflight.measuring.wanted import LaunchWish, wanted_of
from preflight.probes.registration import Sizes, registration_ceiling
from preflight.reading.understood import about
from preflight.rehearsal.programs import RehearsalError, StoppedError
from preflight.rehearsal.records import find_library
from preflight.rehearsal.run import MemoryWatch, settle
from preflight.sizing.launch_needs import source_name

# To read the launch and the host.
_READ_SECONDS = 20.0


def measure(
    measuring: Measuring,
    wanted: LaunchWish,
    parts: tuple[str, ...],
    peer: str | None,
    tokens_per_second: float | None,
) -> MeasureAnswer:
    """Measure and judge the parts. peer: HOST:PORT of a ``measure --serve``. Raises UsageError."""
    own = LOOPBACK if peer is None else own_address(peer)
    progress = Progress()
    try:
        found = measuring.run(parts or PARTS, own, peer, progress.show)
        found = found._replace(tokens_per_second=tokens_per_second)
    finally:
        settle(Root())  # who comes next counts no page of this as another's
        progress.clear()
    judged = findings(found, wanted)
    return MeasureAnswer(found, tuple(judged), tuple(consequences(found, wanted)))


def kill(killing: Killing, killed: str) -> Survival | Unknown:
    """Kill one process of a small store and return what happened. Raises UsageError."""
    progress = Progress()
    try:
        progress.show(f"a store of this launch's kind, whose {killed} is killed")
        return killing.survival(killed)
    except (MeasureError, StoppedError, SkippedError, RehearsalError, OSError) as error:
        return Unknown(str(error))
    finally:
        progress.clear()


def serve(
    measuring: Measuring, address: str, budget_seconds: float, told: Callable[[str], None]
) -> None:
    """Offer memory to another host's ``measure --to`` until the budget is over. Raises UsageError.

    told: called with HOST:PORT once the other side can begin. If the reader of standard output
    goes away, the offer ends too: an ssh that breaks off leaves nothing behind.
    """
    until = time.monotonic() + budget_seconds
    with ExitStack() as stack:
        try:
            port = measuring.serve(stack, address)
        except (MeasureError, StoppedError, SkippedError, OSError) as error:
            raise UsageError(f"nothing can be offered: {error}") from None
        told(f"{address}:{port}")
        reader = select.poll()
        with suppress(OSError, ValueError):  # closed, or none that has a number
            reader.register(sys.stdout.fileno(), 0)
        while (left := until - time.monotonic()) > 0 and not reader.poll(min(left, 0.5) * 1000):
            pass


def prepare(
    launch: LaunchWords,
    python: str | None,
    budget_seconds: float,
    spend_bytes: int | None,
    sizes: Sizes | None = None,
) -> tuple[Killing, LaunchWish, tuple[str, str] | None]:
    """Return what measures, what the launch wants, and what it is called. Raises UsageError.

    spend_bytes: None for the default, or half of the free memory if that is less. sizes: of the
    search for how much can be registered; None if it is not asked for.
    """
    if budget_seconds < LEAST_BUDGET_SECONDS:
        raise UsageError(f"--budget is less than {LEAST_BUDGET_SECONDS:g}s, which loading takes")
    room = MemoryWatch(Root(), ()).room()
    half = max(0, room.bytes) // 2
    spend_bytes = min(DEFAULT_SPEND_BYTES, half) if spend_bytes is None else spend_bytes
    if not LEAST_SPEND_BYTES <= spend_bytes <= half:
        most = f"half of the {format_bytes(max(0, room.bytes))} that may be taken here"
        least = f"give at least {LEAST_SPEND_BYTES // MIB}mb, and at most {most} ({room.source})"
        raise UsageError(f"--spend {format_bytes(spend_bytes)}: {least}")
    wanted, called, needs = LaunchWish(), None, None
    if launch.words:
        host, limit = open_host("/"), limit_seconds(_READ_SECONDS)
        sized = size_within(launch, host, limit)
        if isinstance(sized, Unknown):
            raise UsageError(sized.reason)
        if sized is not None:
            wanted = within(limit, "the launch", lambda: wanted_of(sized, host))
            called = about(source_name(sized.sizing), sized.sizing.inputs.processes)
            needs = sized.needs
    library = find_library(python or wanted.python)
    ceiling = None
    if sizes is not None:
        asked = sizes._replace(spend_bytes=spend_bytes)
        ceiling = partial(registration_ceiling, Root(), needs, asked)
    return Killing(library, wanted, budget_seconds, spend_bytes, ceiling), wanted, called


def own_address(peer: str = "") -> str:
    """Return the address by which this host reaches ``peer`` (HOST:PORT), or others at all.

    Nothing is sent. Raises UsageError.
    """
    host, _, port = peer.rpartition(":")
    if peer and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"--to {peer!r}: give HOST:PORT, as measure --serve printed it")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((host, int(port)) if peer else ("192.0.2.1", 9))
            return str(asked.getsockname()[0])
    except OSError as error:
        if peer:
            raise UsageError(f"--to {peer}: {error.strerror or error}") from None
        # sshd: client, its port, the address that it came to, port.
        ssh = os.environ.get("SSH_CONNECTION", "").split()
        return ssh[2] if len(ssh) == 4 else LOOPBACK
