"""What follows from the rates for the launch: findings with have and need, and plain sentences."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.finding import Finding, Status
from checks.base.units import GIGABYTE, Quantity
from checks.base.unknown import Unknown
from preflight.measuring.plan import pages_text
from preflight.measuring.records import MeasuredRun, Rate, Used
from preflight.measuring.wanted import LaunchWish

TRANSPORT, STORAGE, FETCH = "measure.transport", "measure.storage", "measure.fetch"
TOKENS = 1000


def rate_text(bytes_per_second: float) -> Quantity:
    """Return ``1.25 GB/s``."""
    return Quantity(f"{bytes_per_second / GIGABYTE:.2f} GB/s", bytes_per_second, "bytes/s")


def seconds_text(seconds: float) -> Quantity:
    """Return a time in the unit in which it is at least one."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return Quantity(f"{seconds / scale:.3g} {unit}", seconds, "s")
    raise AssertionError


def findings(
    measured: MeasuredRun, wanted: LaunchWish, tokens_per_second: float | None
) -> list[Finding]:
    """Return what is slower, or another thing, than the launch means.

    tokens_per_second: how fast the server computes a prompt; None where nobody said.
    """
    found = list(_transports(measured, wanted))
    if tokens_per_second is not None and not isinstance(wanted.objects, Unknown):
        found += _against_prefill(measured, wanted, wanted.objects.token_bytes, tokens_per_second)
    return found


def _transports(measured: MeasuredRun, wanted: LaunchWish) -> Iterator[Finding]:
    """Yield whether each engine took RDMA where the launch means it."""
    if wanted.protocol != "rdma":
        return
    sides: dict[Used, list[str]] = {}
    for part in measured.parts:
        for used, where in ((part.used, ""), (part.there, " (the other side)")):
            if used is not None:
                sides.setdefault(used, []).append(f"{part.name}{where}")
    for used, names in sides.items():
        need = "RDMA" + (f" ({wanted.devices})" if wanted.devices else "")
        found = Finding(TRANSPORT, Status.PASS, ", ".join(names), used.text, need)
        missing = [name for name in wanted.devices.split(",") if name and name not in used.devices]
        if not used.transport:
            yield found.unknown("the engine's log does not say what it uses")
        elif used.transport != "rdma":
            text = "the engine went on over TCP without a word, as the launch's own would"
            yield found.warned(text, "See what check says of rdma, with the launch.")
        elif missing:
            yield found.warned(f"the engine did not open {', '.join(missing)}")
        else:
            yield found


def _against_prefill(
    measured: MeasuredRun, wanted: LaunchWish, token_bytes: int, tokens_per_second: float
) -> Iterator[Finding]:
    """Yield whether the folder takes what is computed, and whether fetching beats computing."""
    written, got = measured.part("storage").best("write"), measured.part("store").best("get")
    if written is not None:
        have, need = written.bytes_per_second, tokens_per_second * token_bytes
        found = Finding(STORAGE, Status.PASS, f"{wanted.folder}", rate_text(have), rate_text(need))
        text = "the pool fills faster than the folder takes what is offloaded"
        yield found if have >= need else found.warned(text)
    if got is not None:
        took, least = TOKENS * token_bytes / got.bytes_per_second, TOKENS / tokens_per_second
        have_text, need_text = seconds_text(took), seconds_text(least)
        subject = f"{TOKENS} tokens from the store"
        found = Finding(FETCH, Status.PASS, subject, have_text, need_text)
        text = "fetching them takes longer than computing them anew"
        yield found if took <= least else found.warned(text)


def consequences(measured: MeasuredRun, wanted: LaunchWish) -> list[str]:
    """Return what the rates come to for this launch, one sentence each."""
    found = []
    rates: dict[int, Rate] = {}
    for each in measured.part("memory").rates:  # the slowest node: the launch may take its pages
        before = rates.get(each.page_bytes, each)
        rates[each.page_bytes] = min(each, before, key=lambda one: one.bytes_per_second)
    populated = {} if isinstance(wanted.populated, Unknown) else wanted.populated
    for page, sizes in sorted(populated.items()) if rates else ():
        if page not in rates:
            found.append(f"populating {pages_text(page)}: not known, none were measured")
            continue
        speed = rates[page].bytes_per_second
        largest, every = (seconds_text(size / speed) for size in sizes)
        found.append(
            f"populating {pages_text(page)} takes the launch {largest} (its largest process alone) "
            f"to {every} (one process after the other)"
        )
    got = measured.part("store").best("get")
    if got is not None and not isinstance(wanted.objects, Unknown):
        size = wanted.objects.token_bytes
        took = seconds_text(TOKENS * size / got.bytes_per_second)
        found.append(
            f"{TOKENS} tokens come out of the store in {took} for one client ({size} bytes a token)"
        )
    return found
