"""What follows from the rates for the launch: findings with have and need, and plain sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

from checks.framework.finding import Finding, Status
from checks.framework.units import GIGABYTE, Quantity, format_bytes
from checks.framework.unknown import Unknown
from preflight.benchmark.measuring.records import (
    ALL_NICS,
    EngineUse,
    LaunchWish,
    MeasuredRun,
    ProcessStart,
    Rate,
    pages_text,
    read_measured,
)
from preflight.benchmark.probes.limits import ProbeNeed
from preflight.benchmark.rehearsal.programs import LATE

TRANSPORT, STORAGE, FETCH = "measure.transport", "measure.storage", "measure.fetch"
NIC, READY, REGISTRATION = "measure.nic", "measure.ready", "measure.registration"
TOKENS = 1000
OTHER_HOST = "the other host"
# Below this share of its link, or of the other NICs, something slows a NIC.
_NIC_SHARE = 0.5
# Of the time that is predicted: what a start may take longer.
_MARGIN = 1.25
_HELD = {"fits": Status.PASS, "too little": Status.FAIL}


def rate_text(bytes_per_second: float) -> Quantity:
    """Return a rate in three digits: ``1.25 GB/s``, or ``46.6 MB/s`` below 1; units are decimal."""
    giga = bytes_per_second >= 0.9995 * GIGABYTE
    name, scale = ("GB", GIGABYTE) if giga else ("MB", GIGABYTE / 1000)
    digits = next((d for d, most in ((2, 9.995), (1, 99.95)) if bytes_per_second < most * scale), 0)
    text = f"{bytes_per_second / scale:.{digits}f} {name}/s"
    return Quantity(text, bytes_per_second, "bytes/s")


def seconds_text(seconds: float) -> Quantity:
    """Return a time as text, in the largest of s, ms and us that makes the number at least one."""
    units = (("s", 1.0), ("ms", 1e-3))
    unit, scale = next((row for row in units if seconds >= row[1]), ("us", 1e-6))
    return Quantity(f"{seconds / scale:.3g} {unit}", seconds, "s")


def findings(measured: MeasuredRun, wanted: LaunchWish) -> list[Finding]:
    """Judge transports, NICs, registration, start times and tiers by what the launch expects."""
    judged = [*_transports(measured, wanted), *_nics(measured), *_registration(measured)]
    judged += _ready(measured, wanted)
    speed = measured.tokens_per_second
    if speed is not None and not isinstance(wanted.objects, Unknown):
        judged += _against_prefill(measured, wanted, wanted.objects.token_bytes, speed)
    return judged


def _transports(measured: MeasuredRun, wanted: LaunchWish) -> Iterator[Finding]:
    """Judge whether the engines use RDMA and open the launch's devices: one finding for all engines
    with the same transport and devices.

    Yields nothing unless the launch asks for RDMA.
    """
    if wanted.protocol != "rdma":
        return
    sides: dict[EngineUse, list[str]] = {}
    for part in measured.parts:
        for used, where in ((part.used, ""), (part.other, " (the other side)")):
            if used is not None:
                sides.setdefault(used, []).append(f"{part.name}{where}")
    for used, names in sides.items():
        need = "RDMA" + (f" ({wanted.devices})" if wanted.devices else "")
        finding = Finding(TRANSPORT, Status.PASS, ", ".join(names), used.text, need)
        missing = [name for name in wanted.devices.split(",") if name and name not in used.devices]
        if not used.transport:
            yield finding.undecided("the engine's log does not say what it uses")
        elif used.transport != "rdma":
            text = "the engine went on over TCP without a word, as the launch's own would"
            text += f"; its log: {used.error}" if used.error else ""
            yield finding.warned(text, "See what check says of rdma, with the launch.")
        elif missing:
            yield finding.warned(f"the engine did not open {', '.join(missing)}")
        else:
            yield finding


def _nics(measured: MeasuredRun) -> Iterator[Finding]:
    """Judge the NICs, which were measured one at a time: each needs half of its link's speed, or
    half of the median of the other NICs if that is more.

    A failed transfer over all NICs is judged, too.

    Returns:
        Unknown if two transfers were not done in time, but for a NIC whose others needed less than
        half of that time.
    """
    part = measured.part("transfer")
    each = {single.nic: single.bytes_per_second for single in part.rates if single.nic}
    for rate in (single for single in part.rates if single.nic):
        others = [speed for nic, speed in each.items() if nic not in (rate.nic, ALL_NICS)]
        beside = median(others) if others else 0.0
        need = _NIC_SHARE * max(rate.link_bytes_per_second, beside)
        have = rate.bytes_per_second
        finding = Finding(NIC, Status.PASS, rate.nic, rate_text(have), rate_text(need))
        whose = "the other NICs'" if beside > rate.link_bytes_per_second else "its link's"
        why = next((note for note in part.notes if note.startswith(f"{rate.nic}: ")), "")
        if LATE in why and 2 * rate.size_bytes < _NIC_SHARE * beside * rate.seconds:
            moved = format_bytes(int(beside * rate.seconds))
            asked = format_bytes(2 * rate.size_bytes)
            finding = finding.warned(f"{why} for {asked}, in which another NIC moves {moved}")
        elif LATE in why:  # a busy machine, or a rail that answers nobody
            finding = finding.undecided(f"{why}: give --budget more")
        elif why or have < need:
            finding = finding.warned(why or f"it is slower than half of {whose} speed")
        yield finding


def _registration(measured: MeasuredRun) -> Iterator[Finding]:
    """Judge whether as much can be registered as the launch needs; nothing without a launch."""
    answer = measured.part("registration").ceiling
    if answer is None or answer.status == "measured":
        return
    have = "" if answer.measured is None else format_bytes(answer.measured.held_bytes)
    need = format_bytes(answer.need.nic_bytes) if isinstance(answer.need, ProbeNeed) else ""
    subject = ", ".join(answer.devices) or "RDMA devices"
    status = _HELD.get(answer.status, Status.UNKNOWN)
    yield Finding(REGISTRATION, status, subject, have, need, text=answer.reason)


def _ready(measured: MeasuredRun, wanted: LaunchWish) -> Iterator[Finding]:
    """Judge, for each process with a startupProbe, whether its memory is ready in the time allowed,
    with 25 % to spare.

    Returns:
        Unknown if a part was not measured and the measured parts fit.
    """
    for start in () if isinstance(wanted.starts, Unknown) else wanted.starts:
        if start.allowed_seconds is None:
            continue
        seconds, missing = ready_seconds(start, measured, wanted)
        have, need = seconds_text(seconds), seconds_text(start.allowed_seconds)
        finding = Finding(READY, Status.PASS, start.name, have, need)
        least = math.ceil(seconds * _MARGIN)
        if least > start.allowed_seconds:
            text = "its startupProbe ends the container before its memory is there"
            times = f"periodSeconds: 10, failureThreshold: {math.ceil(least / 10)}"
            more = "and more by the time that the model takes to load"
            yield finding.warned(text, f"startupProbe: {times}, {more}")
        else:
            yield finding.undecided(missing) if missing else finding


def _slowest(rates: Iterable[Rate], field: str) -> dict[Any, float]:
    """Return the slowest rate in bytes per second for each value of ``field``, such as ``nic``."""
    slowest: dict[Any, float] = {}
    for key, speed in ((getattr(rate, field), rate.bytes_per_second) for rate in rates):
        slowest[key] = min(speed, slowest.get(key, math.inf))
    return slowest


def ready_seconds(
    start: ProcessStart, measured: MeasuredRun, wanted: LaunchWish
) -> tuple[float, str]:
    """Return the seconds that a process needs at start to populate and register its memory and to
    set up its store client.

    The second value names the parts that were not measured and are not in the sum; "" if none.
    """
    rates = (rate for rate in measured.part("memory").rates if rate.op == "populate")
    speeds = _slowest(rates, "page_bytes")
    seconds, missing = 0.0, []
    for page, size in sorted(start.populated.items()):
        if speeds.get(page):
            seconds += size / speeds[page]
        else:
            missing.append(f"populating {pages_text(page)} was not measured")
    if isinstance(start.registered_bytes, Unknown):
        missing.append(f"what it registers: {start.registered_bytes.reason}")
    elif start.registered_bytes and wanted.protocol == "rdma":
        nics = _slowest(measured.part("registration").rates, "nic")
        named = [name for name in wanted.devices.split(",") if name] or list(nics)
        if not named or not all(nics.get(name) for name in named):
            missing.append("registering was not measured")
        seconds += sum(start.registered_bytes / nics[name] for name in named if nics.get(name))
    setup = measured.part("store").best("setup")
    return seconds + (0.0 if setup is None else setup.seconds), "; ".join(missing)


def read_seconds(measured: MeasuredRun, token_bytes: int) -> Iterator[tuple[str, float]]:
    """Yield (tier, seconds to read 1000 tokens from it) for each tier that was measured, and for
    the other host of ``--to``.
    """
    l2 = "copy-to-gpu" if measured.part("memory").best("copy-to-gpu") else "copy"
    sources = [("L2", "memory", l2), ("L3", "store", "get"), ("SSD", "storage", "read")]
    sources += [(OTHER_HOST, "transfer", "read")] if measured.peer else []
    for tier, part, op in sources:
        rate = measured.part(part).best(op)
        if rate is not None and rate.bytes_per_second:
            yield tier, TOKENS * token_bytes / rate.bytes_per_second


def _against_prefill(
    measured: MeasuredRun, wanted: LaunchWish, token_bytes: int, tokens_per_second: float
) -> Iterator[Finding]:
    """Judge whether SSD writes keep up with prefill, and whether reading from each tier beats
    computing.

    L2 is judged only by a copy to a GPU.

    Args:
        tokens_per_second: The prefill rate.
    """
    written = measured.part("storage").best("write")
    if written is not None:
        have, need = written.bytes_per_second, tokens_per_second * token_bytes
        judged = Finding(STORAGE, Status.PASS, f"{wanted.folder}", rate_text(have), rate_text(need))
        text = "the pool fills faster than the folder takes what is offloaded"
        yield judged if have >= need else judged.warned(text)
    least = TOKENS / tokens_per_second
    for tier, took in read_seconds(measured, token_bytes):
        if tier == "L2" and not measured.part("memory").best("copy-to-gpu"):
            continue
        have_text, need_text = seconds_text(took), seconds_text(least)
        judged = Finding(FETCH, Status.PASS, f"{TOKENS} tokens from {tier}", have_text, need_text)
        text = "fetching them takes longer than computing them anew"
        yield judged if took <= least else judged.warned(text)


def consequences(measured: MeasuredRun, wanted: LaunchWish) -> list[str]:
    """Return sentences on the launch: how long the memory of its processes takes, how the tiers
    compare.

    Returns:
        Empty if neither was measured.
    """
    sentences = []
    starts = () if isinstance(wanted.starts, Unknown) else wanted.starts
    alike: dict[tuple[float, str], list[str]] = {}
    for start in starts if measured.part("memory").rates else ():
        alike.setdefault(ready_seconds(start, measured, wanted), []).append(start.name)
    for (seconds, missing), names in alike.items():
        each = f"{names[0]} and {len(names) - 1} more, each" if len(names) > 1 else names[0]
        more = f" and longer: {missing}" if missing else ", before its model is loaded"
        sentences.append(f"{each}: its memory takes {seconds_text(seconds)}{more}")
    if len(starts) > 1 and alike:
        every = sum(seconds * len(names) for (seconds, _), names in alike.items())
        sentences.append(f"all of them, one after the other: {seconds_text(every)}")
    if not isinstance(wanted.objects, Unknown):
        size = wanted.objects.token_bytes
        if any(True for _ in read_seconds(measured, size)):
            sentences.append(tier_sentence(measured, size))
    if measured.peer and measured.part("transfer").rates:
        if isinstance(wanted.objects, Unknown):
            sentences.append(f"whether that is enough is not judged: {wanted.objects.reason}")
        elif measured.tokens_per_second is None:
            sentences.append("whether that is enough is judged with --prefill-rate")
    return sentences


def tier_sentence(
    measured: MeasuredRun, token_bytes: int, tokens_per_second: float | None = None
) -> str:
    """Compare, in a sentence, the time to read 1000 tokens from each tier and to compute them.

    Args:
        tokens_per_second: The prefill rate; None takes that of ``measured``, if any.
    """
    took = {tier: seconds_text(seconds) for tier, seconds in read_seconds(measured, token_bytes)}
    speed = tokens_per_second or measured.tokens_per_second
    tiers = took if measured.peer else ("L2", "L3", "SSD")
    each = ", ".join(f"{tier} {took.get(tier, 'was not measured')}" for tier in tiers)
    computed = "" if speed is None else f"; computing them takes {seconds_text(TOKENS / speed)}"
    by_gpu = measured.part("memory").best("copy-to-gpu")
    no_gpu = "; of L2 one thread's copy in memory: that to a GPU was not measured"
    no_gpu = "" if by_gpu or measured.peer else no_gpu
    about = f"{token_bytes} bytes a token, one client{no_gpu}"
    return f"{TOKENS} tokens come out of {each} ({about}){computed}"


def tier_notes(
    path: str, token_bytes: Iterable[tuple[str, int | Unknown]], tokens_per_second: float | None
) -> tuple[str, ...]:
    """Return ``tier_sentence`` for each server of ``token_bytes`` whose bytes are known.

    Args:
        path: A file of ``measure --save``.

    Raises:
        UsageError: If that cannot be read.
    """
    rates = read_measured(path)
    known = [(name, size) for name, size in token_bytes if not isinstance(size, Unknown)]
    return tuple(f"{name}: {tier_sentence(rates, size, tokens_per_second)}" for name, size in known)
