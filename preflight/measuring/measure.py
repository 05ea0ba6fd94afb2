"""``measure``: the launch and its library found, the parts measured, and the answer of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
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
from preflight.measuring.plan import (
    LEAST_BUDGET_SECONDS,
    LEAST_SPEND_BYTES,
    PARTS,
    transfer_buffer_bytes,
    transfer_sizes,
)
from preflight.measuring.report import MeasureAnswer
from preflight.measuring.run import LOOPBACK, Measuring
from preflight.measuring.wanted import LaunchWish, wanted_of
from preflight.reading.understood import about
from preflight.rehearsal.records import Library, find_library
from preflight.rehearsal.run import MemoryWatch
from preflight.sizing.launch_needs import source_name

# To read the launch and the host.
READ_SECONDS = 20.0
# Of the memory that may be taken, what a measurement takes at most.
_SHARE = 2


def measure(
    launch: LaunchWords,
    parts: tuple[str, ...],
    budget_seconds: float,
    spend_bytes: int,
    peer: str | None,
    python: str | None,
    tokens_per_second: float | None,
) -> MeasureAnswer:
    """Return what was measured. peer: HOST:PORT of a ``measure --serve``. Raises UsageError."""
    refuse(parts, budget_seconds, spend_bytes)
    own = LOOPBACK if peer is None else own_address(peer)
    wanted, library, about_launch = prepare(launch, python)
    progress = Progress()
    try:
        measuring = Measuring(library, wanted, budget_seconds, spend_bytes, progress.show)
        found = measuring.run(parts or PARTS, own, peer)
    finally:
        progress.clear()
    judged = findings(found, wanted, tokens_per_second)
    followed = tuple(consequences(found, wanted))
    return MeasureAnswer(found, tuple(judged), followed, about_launch)


def serve(
    launch: LaunchWords,
    address: str,
    budget_seconds: float,
    spend_bytes: int,
    python: str | None,
    told: Callable[[str], None],
) -> None:
    """Offer memory to another host's ``measure --to`` until the budget is over. Raises UsageError.

    told: gets HOST:PORT, once the other side can begin.
    """
    refuse((), budget_seconds, spend_bytes)
    wanted, library, _ = prepare(launch, python)
    if isinstance(library, Unknown):
        raise UsageError(library.reason)
    until = time.monotonic() + budget_seconds
    size = transfer_buffer_bytes(transfer_sizes(wanted.object_bytes, spend_bytes), spend_bytes)
    measuring = Measuring(library, wanted, budget_seconds, spend_bytes, lambda _: None)
    with ExitStack() as stack:
        port = measuring.served(stack, address, size)
        told(f"{address}:{port}")
        time.sleep(max(0.0, until - time.monotonic()))


def prepare(
    launch: LaunchWords, python: str | None
) -> tuple[LaunchWish, Library | Unknown, tuple[str, str] | None]:
    """Return what the launch wants, the library that measures, and what the launch is.

    Raises UsageError.
    """
    wanted, about_launch = LaunchWish(), None
    if launch.words:
        host = open_host("/")
        sized = size_within(launch, host, limit_seconds(READ_SECONDS))
        if isinstance(sized, Unknown):
            raise UsageError(sized.reason)
        if sized is not None:
            limit = limit_seconds(READ_SECONDS)
            wanted = within(limit, "the launch", partial(wanted_of, sized, host))
            about_launch = about(source_name(sized.sizing), sized.sizing.inputs.processes)
    return wanted, find_library(python or wanted.python), about_launch


def refuse(parts: tuple[str, ...], budget_seconds: float, spend_bytes: int) -> None:
    """Raise UsageError for what cannot be measured within, or is more than this host has."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise UsageError(f"--only {unknown[0]}: the parts are {', '.join(PARTS)}")
    if budget_seconds < LEAST_BUDGET_SECONDS:
        raise UsageError(f"--budget is less than {LEAST_BUDGET_SECONDS:g}s, which loading takes")
    if spend_bytes < LEAST_SPEND_BYTES:
        raise UsageError(f"--spend is less than {LEAST_SPEND_BYTES // MIB}mb: too little to tell")
    room = MemoryWatch(Root(), ()).room()
    if spend_bytes > max(0, room.bytes) // _SHARE:
        raise UsageError(
            f"--spend {format_bytes(spend_bytes)} is more than half of the "
            f"{format_bytes(max(0, room.bytes))} that may be taken here ({room.source})"
        )


def own_address(peer: str = "") -> str:
    """Return the address by which this host reaches ``peer`` (HOST:PORT), or others at all.

    Nothing is sent. Raises UsageError.
    """
    host, colon, port = peer.rpartition(":")
    if peer and not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"--to {peer!r}: give HOST:PORT, as measure --serve printed it")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((host.strip("[]"), int(port)) if peer else ("192.0.2.1", 9))
            return str(asked.getsockname()[0])
    except OSError as error:
        if peer:
            raise UsageError(f"--to {peer}: {error.strerror or error}") from None
        return LOOPBACK
