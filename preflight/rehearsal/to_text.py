"""The answer of ``rehearse`` for a person: the verdict, then each step, predicted and measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from checks.base.needs import Spot
from checks.base.units import GIB, format_bytes, format_page_size
from checks.base.unknown import Unknown
from preflight.base.output import columns, painter
from preflight.mooncake.allocations import Backing
from preflight.rehearsal.answer import Answer, died, predicted_pages
from preflight.rehearsal.records import Done, Plan, Run, Step

_COLOURS = {
    "starts": "green",
    "warns": "yellow",
    "fails": "red",
    "differs": "red",
    "stopped": "magenta",
    "unknown": "magenta",
}


def answer_text(answer: Answer, color: str) -> str:
    """The whole answer without a final newline."""
    paint = painter(color)
    head = paint(answer.status.upper(), _COLOURS[answer.status])
    parts = [f"{head}: {answer.reason}"]
    plan, run = answer.plan, answer.run
    if plan is not None and run is not None:
        parts.append(_table(plan, run))
        parts.append("\n".join(_facts(plan, run)))
    more = [text for text in (*answer.differences, *answer.warnings) if text != answer.reason]
    notes = () if plan is None else plan.notes
    if more or notes:
        parts.append("\n".join(f"- {text}" for text in dict.fromkeys((*more, *notes))))
    return "\n\n".join(part for part in parts if part)


def _table(plan: Plan, run: Run) -> str:
    from tabulate import tabulate

    rows = [_row(plan, done) for done in run.done if done.step.kind != "register"]
    heads = ("process", "step", "predicted", "measured", "time")
    widths = None if columns() >= 80 else 24
    return "\n".join(
        line.rstrip()
        for line in tabulate(
            rows, heads, tablefmt="simple", disable_numparse=True, maxcolwidths=widths
        ).splitlines()
    )


def _row(plan: Plan, done: Done) -> tuple[str, ...]:
    step = done.step
    return (
        plan.members[step.member].name,
        step.what,
        _predicted(step),
        done.error if died(done) else _measured(done),
        _time(done),
    )


def _predicted(step: Step) -> str:
    if step.taken is None:
        return "not reached"
    text = pages_text(predicted_pages(step.taken))
    regular = _regular_bytes(step)
    words = [] if text == "0" and regular else [text]
    words += [f"{format_bytes(regular)} of regular memory"] if regular else []
    words += ["then a failure"] if step.failure else []
    return ", ".join(words)


def _measured(done: Done) -> str:
    text = pages_text(done.pages)
    if done.resident_bytes is None or not _regular_bytes(done.step):
        return text
    resident = f"{format_bytes(done.resident_bytes)} resident"
    return resident if text == "0" else f"{text}, {resident}"


def _regular_bytes(step: Step) -> int:
    mapped = step.taken or ()
    return sum(one.pages * one.page_size_bytes for one in mapped if one.backing is Backing.REGULAR)


def pages_text(pages: Mapping[Spot, int]) -> str:
    """``48 x 2 MiB (node 0: 20, node 1: 28)``."""
    words = []
    for spot, count in sorted(pages.items(), key=lambda item: item[0].page_size_bytes):
        if spot.node is not None or not count:
            continue
        size = spot.page_size_bytes
        nodes = ", ".join(
            f"node {at.node}: {share}"
            for at, share in sorted(pages.items(), key=lambda item: item[0].node or 0)
            if at.page_size_bytes == size and at.node is not None and share
        )
        words.append(f"{count} x {format_page_size(size)}" + (f" ({nodes})" if nodes else ""))
    return ", ".join(words) or "0"


def _time(done: Done) -> str:
    words = [f"{done.seconds:.2f} s"]
    size = sum(s.page_size_bytes * n for s, n in done.pages.items() if s.node is None and n > 0)
    if done.populated_seconds and size >= GIB // 4:
        words.append(f"{size / GIB / done.populated_seconds:.1f} GiB/s")
    if done.registered_seconds is not None:
        words.append(f"registered in {done.registered_seconds:.2f} s")
    return ", ".join(words)


def _facts(plan: Plan, run: Run) -> Iterator[str]:
    library = plan.library
    yield f"library    {library.name}" + (f", scale 1/{plan.scale}" if plan.scale > 1 else "")
    status, why = plan.full_size
    if plan.scale > 1:
        yield f"full size  the launch itself: {status}" + (f": {why}" if why else "")
    yield f"pinned     {_pinned(plan, run)}"
    registered = [done for done in run.done if done.step.kind == "register"]
    if registered:
        size = sum(done.step.order["bytes"] for done in registered)
        seconds = sum(done.seconds for done in registered)
        yield (
            f"registered {len(registered)} regions of host pools, {format_bytes(size)}, in "
            f"{seconds:.2f} s"
        )
    moved = run.transfer
    if moved.skipped:
        yield f"put, get   not tried: {moved.skipped}"
    elif moved.error:
        yield f"put, get   failed: {moved.error}"
    else:
        yield (
            f"put, get   {format_bytes(moved.bytes)} from {moved.put} to {moved.got}, the same, "
            f"{moved.seconds:.2f} s"
        )
    left = sum(run.left.values())
    yield f"released   {left} pages are left"


def _pinned(plan: Plan, run: Run) -> str:
    pairs = [
        (held.pinned_bytes, member.pinned_bytes, held.locked_bytes)
        for member, held in zip(plan.members, run.held, strict=True)
    ]
    shown = [_sum(have for have, _, _ in pairs), _sum(need for _, need, _ in pairs)]
    locked = _sum(locked for _, _, locked in pairs)
    return f"{shown[0]} (VmPin), {locked} locked (VmLck); predicted {shown[1]} pinned"


def _sum(sizes: Iterable[int | Unknown | None]) -> str:
    every = list(sizes)
    known = [size for size in every if isinstance(size, int)]
    text = format_bytes(sum(known))
    return text if len(known) == len(every) else f"{text} and more that is not known"
