"""What follows from the rates for the launch: findings with have and need, and plain sentences."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.finding import Finding, Status
from checks.base.units import GIGABYTE, Quantity, counted, format_page_size
from checks.base.unknown import Unknown
from preflight.measuring.records import MeasuredRun, Rate
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
    return [
        *_transports(measured, wanted),
        *_storage(measured, wanted, tokens_per_second),
        *_fetch(measured, wanted, tokens_per_second),
    ]


def _transports(measured: MeasuredRun, wanted: LaunchWish) -> Iterator[Finding]:
    """Yield whether each engine took RDMA where the launch means it."""
    if wanted.protocol != "rdma":
        return
    sides = [(f"{part.name}, this side", part.used) for part in measured.parts]
    sides += [(f"{part.name}, the other side", part.there) for part in measured.parts]
    for subject, used in sides:
        if used is None:
            continue
        need = "RDMA" + (f" ({wanted.devices})" if wanted.devices else "")
        found = Finding(TRANSPORT, Status.PASS, subject, used.text, need)
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


def _storage(
    measured: MeasuredRun, wanted: LaunchWish, tokens_per_second: float | None
) -> Iterator[Finding]:
    """Yield whether the folder takes what comes when prompts are computed."""
    written = measured.part("storage").best("write")
    if written is None or tokens_per_second is None or isinstance(wanted.objects, Unknown):
        return
    need = tokens_per_second * wanted.objects.token_bytes
    found = Finding(
        STORAGE,
        Status.PASS,
        f"{wanted.folder}",
        rate_text(written.bytes_per_second),
        rate_text(need),
        f"{tokens_per_second:g} tokens/s x {wanted.objects.token_bytes} bytes",
    )
    if written.bytes_per_second < need:
        found = found.warned("the pool fills faster than the folder takes what is offloaded")
    yield found


def _fetch(
    measured: MeasuredRun, wanted: LaunchWish, tokens_per_second: float | None
) -> Iterator[Finding]:
    """Yield whether tokens come sooner out of the store than they are computed."""
    got = measured.part("store").best("get")
    if got is None or tokens_per_second is None or isinstance(wanted.objects, Unknown):
        return
    have = TOKENS * wanted.objects.token_bytes / got.bytes_per_second
    need = TOKENS / tokens_per_second
    found = Finding(
        FETCH, Status.PASS, f"{TOKENS} tokens from the store", seconds_text(have),
        seconds_text(need), f"{TOKENS} tokens / {tokens_per_second:g} tokens/s",
    )  # fmt: skip
    if have > need:
        found = found.warned("fetching them takes longer than computing them anew")
    yield found


def consequences(measured: MeasuredRun, wanted: LaunchWish) -> list[str]:
    """Return what the rates come to for this launch, one sentence each."""
    found = []
    rates = _populate_rates(measured)
    if not isinstance(wanted.populated, Unknown) and rates:
        for page, sizes in sorted(wanted.populated.items()):
            pages = f"{format_page_size(page)} pages" if page else "regular pages"
            speed = rates.get(page)
            if speed is None:
                found.append(f"populating {pages}: not known, none were measured")
                continue
            side_by_side = seconds_text(sizes.largest_bytes / speed.bytes_per_second)
            in_turn = seconds_text(sizes.all_bytes / speed.bytes_per_second)
            found.append(
                f"populating {pages} takes the launch {side_by_side} (its largest process alone) "
                f"to {in_turn} (one process after the other)"
            )
    got = measured.part("store").best("get")
    if got is not None and not isinstance(wanted.objects, Unknown):
        token_bytes = wanted.objects.token_bytes
        took = seconds_text(TOKENS * token_bytes / got.bytes_per_second)
        what = counted(TOKENS, "tokens")
        found.append(
            f"{what} come out of the store in {took} for one client ({token_bytes} bytes a token)"
        )
    return found


def _populate_rates(measured: MeasuredRun) -> dict[int, Rate]:
    """Return the slowest rate of each page size: of some node the launch takes its pages."""
    found: dict[int, Rate] = {}
    for each in measured.part("memory").rates:
        before = found.get(each.page_bytes)
        if before is None or each.bytes_per_second < before.bytes_per_second:
            found[each.page_bytes] = each
    return found
