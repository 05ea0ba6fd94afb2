"""``measure``: the launch and its library found, the parts measured, and the answer.

The answer is text, or JSON (``schemas/measure-v1.schema.json``).
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

from checks.framework.cgroup_mounts import own_mount
from checks.framework.finding import Finding, Status
from checks.framework.root import Root
from checks.framework.units import MIB, format_bytes
from checks.framework.unknown import Unknown
from checks.network.calls import addresses
from preflight.base import exit_codes
from preflight.base.envelope import finding_object
from preflight.base.one_line import clean
from preflight.base.output import Progress, columns, painter
from preflight.base.plain_data import fields, plain
from preflight.base.text import filled, headed, table
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.benchmark.measuring.findings import consequences, findings, rate_text, seconds_text
from preflight.benchmark.measuring.kills import Killing, Survival
from preflight.benchmark.measuring.records import (
    DEFAULT_SPEND_BYTES,
    LEAST_BUDGET_SECONDS,
    LEAST_SPEND_BYTES,
    PARTS,
    UNREAD_ROOM_BYTES,
    LaunchWish,
    MeasuredPart,
    MeasuredRun,
    Rate,
    launch_wish,
)
from preflight.benchmark.measuring.run import LOOPBACK, MeasureError, Measuring, SkippedError
from preflight.benchmark.probes.measure import PATIENCE_SECONDS
from preflight.benchmark.probes.registration import (
    ProbeOptions,
    ceiling_lines,
    ceiling_object,
    registration_ceiling,
)
from preflight.benchmark.rehearsal.programs import RehearsalError, StoppedError
from preflight.benchmark.rehearsal.records import find_library
from preflight.benchmark.rehearsal.run import MemoryWatch, wait_for_pools
from preflight.command_inputs.host_source import open_host, size_within
from preflight.command_inputs.launch_words import LaunchWords
from preflight.command_inputs.reading.understood import about
from preflight.needs.launch_needs import source_name

# To read the launch and the host.
_READ_SECONDS = 20.0


def measure(
    measuring: Measuring,
    wanted: LaunchWish,
    parts: tuple[str, ...],
    peer: str | None,
    tokens_per_second: float | None,
) -> MeasureAnswer:
    """Measure the parts, show progress meanwhile, and return the rates with their judgement.

    Args:
        parts: Names of ``PARTS``, () for all.
        peer: HOST:PORT/TOKEN of ``measure --serve``; None: this host.
        tokens_per_second: Of prefill, None if not known.

    Raises:
        UsageError: For a wrong peer.
    """
    here = LOOPBACK if peer is None else own_address(peer)
    progress = Progress()
    try:
        measured = measuring.run(parts or PARTS, here, peer, progress.show)
        measured = measured._replace(tokens_per_second=tokens_per_second)
    finally:
        wait_for_pools(Root())  # who comes next counts no page of this as another's
        progress.clear()
    judged = findings(measured, wanted)
    quota = processor_quota(Root())
    sentences = consequences(measured, wanted)
    if quota is not None and quota[0] < len(os.sched_getaffinity(0)):
        share = f"{quota[1]} gives {quota[0]:.3g} processors: the rates are those of that share"
        sentences.append(share)
    return MeasureAnswer(measured, tuple(judged), tuple(sentences))


def processor_quota(root: Root) -> tuple[float, str] | None:
    """Return how many processors this process's cgroup gives it, and the file that says so; None if
    no file that can be read limits them.
    """
    mount = own_mount(root, "cpu")
    quotas: list[tuple[float, str]] = []
    for folder in () if mount is None or isinstance(mount, Unknown) else mount.folders:
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            texts = [root.text(f"{folder}/{name}") for name in names]
            counts = [count for text in texts if isinstance(text, str) for count in text.split()]
            if len(counts) == 2 and all(count.isdecimal() and int(count) for count in counts):
                quotas.append((int(counts[0]) / int(counts[1]), f"{folder}/{names[0]}"))
    return min(quotas, default=None)


def kill(killing: Killing, killed: str) -> Survival | Unknown:
    """Kill one process of a small store and return the effects; Unknown if that cannot be done.

    Args:
        killed: Client, master or metadata.

    Raises:
        UsageError: If the launch has no such process.
    """
    progress = Progress()
    try:
        progress.show(f"a store of this launch's kind, whose {killed} is killed")
        return killing.survival(killed)
    except (MeasureError, StoppedError, SkippedError, RehearsalError, OSError) as error:
        return Unknown(str(error))
    finally:
        progress.clear()


def serve(
    measuring: Measuring, address: str, budget_seconds: float, tell: Callable[[str], None]
) -> None:
    """Offer memory to another host's ``measure --to``, for ``budget_seconds``.

    Mooncake's engine listens on all addresses, so it runs only while somebody is connected at
    ``address`` who has the token. Ends earlier if standard output is closed by its reader.

    Args:
        tell: Called once with HOST:PORT/TOKEN.

    Raises:
        UsageError: If no memory can be offered.
    """
    until, token = time.monotonic() + budget_seconds, secrets.token_hex(8)
    try:
        with ExitStack() as stack:
            measuring.serve(stack, address)
        gate = socket.create_server((address, 0))
    except (MeasureError, StoppedError, SkippedError, OSError) as error:
        raise UsageError(f"nothing can be offered at {address}: {error}") from None
    with gate:
        tell(f"{address}:{gate.getsockname()[1]}/{token}")
        reader = select.poll()
        reader.register(gate, select.POLLIN)
        with suppress(OSError, ValueError):  # closed, or none that has a number
            reader.register(sys.stdout.fileno(), 0)
        while (left := until - time.monotonic()) > 0:
            ready = dict(reader.poll(min(left, 0.5) * 1000))
            if gate.fileno() in ready:
                _admit(measuring, gate, address, token, until)
            elif ready:
                break


def _admit(
    measuring: Measuring, gate: socket.socket, address: str, token: str, until: float
) -> None:
    """Run an engine for one who connects and sends the token, until that side has measured."""
    with suppress(OSError), gate.accept()[0] as asking, ExitStack() as stack:
        asking.settimeout(PATIENCE_SECONDS)
        if not secrets.compare_digest(asking.recv(100), token.encode()):
            return
        try:
            reply = str(measuring.serve(stack, address))
        except (MeasureError, StoppedError, SkippedError, OSError) as error:
            reply = str(error)
        asking.sendall(reply.encode())
        asking.settimeout(max(0.1, until - time.monotonic()))
        asking.recv(1)


def prepare(
    launch: LaunchWords,
    python: str | None,
    budget_seconds: float,
    spend_bytes: int | None,
    sizes: ProbeOptions | None = None,
) -> tuple[Killing, LaunchWish, tuple[str, str] | None]:
    """Read the launch, find its Mooncake library and return (measurer, wishes, about).

    about: (source, sentence) on how the launch was understood; None without a launch. Raises
    UsageError.

    Args:
        python: The interpreter that has Mooncake; None for that of the launch, else the running
            one.
        spend_bytes: None for the default, or half of the free memory if that is less.
        sizes: Set if the amount that can be registered is to be measured too.
    """
    if budget_seconds < LEAST_BUDGET_SECONDS:
        raise UsageError(f"--budget is less than {LEAST_BUDGET_SECONDS:g}s, which loading takes")
    room = MemoryWatch(Root(), (), UNREAD_ROOM_BYTES).room()
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
            wanted = within(limit, "the launch", lambda: launch_wish(sized, host))
            called = about(source_name(sized.sizing), sized.sizing.inputs.processes)
            needs = sized.needs
    library = find_library(python or wanted.python)
    ceiling = None
    if sizes is not None:
        asked = sizes._replace(spend_bytes=spend_bytes)
        ceiling = partial(registration_ceiling, Root(), needs, asked)
    return Killing(library, wanted, budget_seconds, spend_bytes, ceiling), wanted, called


def own_address(peer: str = "") -> str:
    """Return the address of this host from which ``peer`` (HOST:PORT/TOKEN) is reached; sends
    nothing.

    Without a peer: the address of the default route or of the SSH connection, else an interface's.

    Raises:
        UsageError: For a peer that is no HOST:PORT/TOKEN or has no route.
    """
    where, _, token = peer.partition("/")
    host, _, port = where.rpartition(":")
    if peer and not (host and token and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"--to {peer!r}: give HOST:PORT/TOKEN, as measure --serve printed it")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.connect((host, int(port)) if peer else ("192.0.2.1", 9))
            return str(asked.getsockname()[0])
    except OSError as error:
        if peer:
            raise UsageError(f"--to {peer}: {error.strerror or error}") from None
        # sshd: client, its port, the address that it came to, port.
        ssh = os.environ.get("SSH_CONNECTION", "").split()
        up_first = sorted(addresses(), key=lambda each: not each["up"])
        every = (str(each["address"]) for each in up_first if ":" not in each["address"])
        outside = (each for each in every if not each.startswith("127."))
        return ssh[2] if len(ssh) == 4 else next(outside, LOOPBACK)


_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "unknown": "magenta"}


class MeasureAnswer(NamedTuple):
    """The measured run, the findings on it, and sentences on its consequences for the launch."""

    measured: MeasuredRun
    findings: tuple[Finding, ...] = ()
    consequences: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Return a one-line summary: the part that broke off, else why nothing was measured, else
        the first finding that is no pass, else the parts that were measured.
        """
        bad = [finding for finding in self.findings if finding.status is not Status.PASS]
        failed = [f"{part.name}: {part.failed}" for part in self.measured.parts if part.failed]
        done = [part.name for part in self.measured.parts if part.rates or part.ceiling]
        if failed:
            return failed[0]
        if not done:
            return "; ".join(f"{part.name}: {part.skipped}" for part in self.measured.parts)
        if bad:
            return f"{bad[0].subject}: have {bad[0].have}, need {bad[0].need}: {bad[0].text}"
        return f"measured: {', '.join(done)}"

    @property
    def exit_code(self) -> int:
        """Return the exit code: FAIL if a finding fails; else UNKNOWN if a finding is unknown, a
        part broke off or all were skipped; else WARN or PASS.
        """
        parts = self.measured.parts
        statuses = {finding.status for finding in self.findings}
        if Status.FAIL in statuses:
            return exit_codes.FAIL
        none = any(part.failed for part in parts) or all(part.skipped for part in parts)
        if none or Status.UNKNOWN in statuses:
            return exit_codes.UNKNOWN
        return exit_codes.WARN if Status.WARN in statuses else exit_codes.PASS

    @property
    def status(self) -> str:
        return ("pass", "warn", "fail", "unknown")[self.exit_code]


def answer_text(answer: MeasureAnswer, color: str) -> str:
    """Write the answer for a terminal: the verdict, each part with its rates, and the consequences.

    Args:
        color: ``auto``, ``always`` or ``never``.
    """
    paint, width = painter(color), columns()
    head = paint(answer.status.upper(), _COLOURS[answer.status])
    parts = [headed(answer.status.upper(), clean(answer.reason), width, head)]
    parts += ["\n".join(_part_lines(part, width)) for part in answer.measured.parts]
    last = [
        f"{each.check}: {each.status.value}: {each.subject}: have {each.have}, need {each.need}"
        + (f": {each.text}" if each.text else "")
        for each in answer.findings
    ]
    library = answer.measured.library
    name = library.reason if isinstance(library, Unknown) else library
    last += (*answer.consequences, f"library: {name}")
    parts.append("\n".join(filled(f"- {clean(line)}", width, 2) for line in last))
    return "\n\n".join(parts)


def _part_lines(part: MeasuredPart, width: int) -> Iterator[str]:
    """Yield the text of one part: its rates and notes, or why it was not measured or broke off."""
    if part.skipped or part.failed:
        how = f"not measured: {part.skipped}" if part.skipped else f"broken off: {part.failed}"
        yield filled(f"{part.name}: {clean(how)}", width, 2)
    if not part.did:
        return
    over = "" if part.used is None else f", over {part.used.text}"
    if part.other is not None and part.other != part.used:
        over += f" (the other side: {part.other.text})"
    yield filled(f"{part.name}: {part.did}{over}", width, 2)
    if part.rates:
        heads = ("", "size", "how", "rate", "objects/s", "p50", "p99")
        yield table(
            [_rate_cells(each) for each in part.rates], heads, right=(1, 3, 4, 5, 6), margin="  "
        )
    for note in (*part.notes, *(ceiling_lines(part.ceiling) if part.ceiling else ())):
        yield filled(f"  {clean(note)}", width)


def _rate_cells(row: Rate) -> Sequence[str]:
    """Return the cells of a rate's row in the table; times are those of one call."""
    objects = row.bytes / row.size_bytes / row.seconds if row.p50_seconds and row.bytes else 0.0
    times = map(seconds_text, (row.p50_seconds, row.p99_seconds)) if row.p50_seconds else ("", "")
    size: str = format_bytes(row.size_bytes)
    speed: str = rate_text(row.bytes_per_second)
    if row.op == "setup":
        size = speed = ""
    return (row.op, size, row.what, speed, f"{objects:.0f}" if objects else "", *times)


def answer_object(answer: MeasureAnswer) -> dict[str, Any]:
    """Return the answer as JSON data of ``schemas/measure-v1.schema.json``, with all findings."""
    measured = answer.measured
    rows = [finding_object(each, text=each.text, formula=each.formula) for each in answer.findings]
    numbers = "library", "budget_seconds", "spend_bytes", "peer", "tokens_per_second"
    return {
        "findings": rows,
        **fields(measured, *numbers),
        "parts": [_part_object(part) for part in measured.parts],
        "consequences": list(answer.consequences),
    }


def _part_object(part: MeasuredPart) -> dict[str, Any]:
    """Build one entry of ``parts`` in ``schemas/measure-v1.schema.json``."""
    outcome = "skipped" if part.skipped else "failed" if part.failed else "measured"
    rates = [{**plain(each), "bytes_per_second": each.bytes_per_second} for each in part.rates]
    used, there = part.used and plain(part.used), part.other and plain(part.other)
    reason = part.skipped or part.failed or None
    ceiling = part.ceiling and ceiling_object(part.ceiling)
    outcomes = {"part": part.name, "outcome": outcome, "reason": reason, "did": part.did or None}
    more = {"notes": list(part.notes), "ceiling": ceiling, "rates": rates}
    return {**outcomes, "used": used, "there": there, **more}
