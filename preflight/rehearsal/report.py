"""The answer of ``rehearse``: the verdict, then each step, predicted and measured; and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from checks.base.pages import Spot
from checks.base.units import GIB, format_bytes, format_page_size
from checks.base.unknown import Unknown
from preflight.base.output import columns, painter
from preflight.mooncake.allocations import Allocation, Backing
from preflight.rehearsal.records import RehearsalPlan, RehearsalRun, RehearsalStep, StepResult
from preflight.rehearsal.rehearse import RehearsalAnswer, predicted_pages
from preflight.render.plain_data import fields, plain
from preflight.render.text import fitted

SCHEMA = "mooncake-preflight/rehearse/v1"
_COLOURS = {
    "starts": "green",
    "warns": "yellow",
    "fails": "red",
    "differs": "red",
    "stopped": "magenta",
    "unknown": "magenta",
}


def answer_text(answer: RehearsalAnswer, color: str) -> str:
    """Write the whole answer without a final newline."""
    paint = painter(color)
    head = paint(answer.status.upper(), _COLOURS[answer.status])
    parts = [f"{head}: {answer.reason}"]
    plan, run = answer.plan, answer.run
    if plan is not None and run is not None:
        rows = [
            (
                *(done.step.member.name, done.step.what, _predicted(done.step)),
                *(_measured(done) if done.ended is None else done.error, _time(done)),
            )
            for done in run.done
            if done.step.kind != "register"
        ]
        heads = ("process", "step", "predicted", "measured", "time")
        parts.append(fitted(rows, heads, columns()))
        parts.append("\n".join(_facts(plan, run)))
    more = [text for text in (*answer.differences, *answer.warnings) if text != answer.reason]
    notes = () if plan is None else plan.notes
    if more or notes:
        parts.append("\n".join(f"- {text}" for text in dict.fromkeys((*more, *notes))))
    return "\n\n".join(part for part in parts if part)


def _predicted(step: RehearsalStep) -> str:
    """Describe the memory that the step is predicted to take."""
    if step.taken is None:
        return "not reached"
    text = pages_text(predicted_pages(step.taken))
    regular = _regular_bytes(step)
    words = [] if text == "0" and regular else [text]
    words += [f"{format_bytes(regular)} of regular memory"] if regular else []
    words += ["then a failure"] if step.failure else []
    return ", ".join(words)


def _measured(done: StepResult) -> str:
    text = pages_text(done.pages)
    if done.resident_bytes is None or not _regular_bytes(done.step):
        return text
    resident = f"{format_bytes(done.resident_bytes)} resident"
    return resident if text == "0" else f"{text}, {resident}"


def _regular_bytes(step: RehearsalStep) -> int:
    mapped = step.taken or ()
    return sum(one.pages * one.page_size_bytes for one in mapped if one.backing is Backing.REGULAR)


def pages_text(pages: Mapping[Spot, int]) -> str:
    """Return ``48 x 2 MiB (node 0: 20, node 1: 28)``."""
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


def _time(done: StepResult) -> str:
    """Describe how long the step took, with its populate rate and registration time if known."""
    words = [f"{done.seconds:.2f} s"]
    size = sum(s.page_size_bytes * n for s, n in done.pages.items() if s.node is None and n > 0)
    if done.populated_seconds and size >= GIB // 4:
        words.append(f"{size / GIB / done.populated_seconds:.1f} GiB/s")
    if done.registered_seconds is not None:
        words.append(f"registered in {done.registered_seconds:.2f} s")
    return ", ".join(words)


def _facts(plan: RehearsalPlan, run: RehearsalRun) -> Iterator[str]:
    """Yield the lines below the table: library, pinned memory, put and get, pages left."""
    library = plan.library
    yield f"library    {library.name}" + (f", scale 1/{plan.scale}" if plan.scale > 1 else "")
    status, why = plan.full_size
    if plan.scale > 1:
        yield f"full size  the launch itself: {status}" + (f": {why}" if why else "")
    yield f"pinned     {_pinned(run)}"
    registered = [done for done in run.done if done.step.kind == "register"]
    if registered:
        size = format_bytes(sum(done.step.order["bytes"] for done in registered))
        seconds = sum(done.seconds for done in registered)
        yield f"registered {len(registered)} regions of host pools, {size}, in {seconds:.2f} s"
    moved = run.transfer
    size = format_bytes(moved.bytes)
    text = f"{size} from {moved.put} to {moved.got}, the same, {moved.seconds:.2f} s"
    if moved.skipped or moved.error:
        text = f"not tried: {moved.skipped}" if moved.skipped else f"failed: {moved.error}"
    yield f"put, get   {text}"
    left = sum(run.left.values())
    yield f"released   {left} pages are left"


def _pinned(run: RehearsalRun) -> str:
    have = _sum(held.pinned_bytes for held in run.held)
    locked = _sum(held.locked_bytes for held in run.held)
    need = _sum(held.member.pinned_bytes for held in run.held)
    return f"{have} (VmPin), {locked} locked (VmLck); predicted {need} pinned"


def _sum(sizes: Iterable[int | Unknown | None]) -> str:
    every = list(sizes)
    known = [size for size in every if isinstance(size, int)]
    text = format_bytes(sum(known))
    return text if len(known) == len(every) else f"{text} and more that is not known"


def answer_object(answer: RehearsalAnswer) -> dict[str, Any]:
    """Return the answer of ``schemas/rehearse-v1.schema.json``.

    Null is what is not known, and what comes of a plan or a run that there was none of.
    """
    return {
        **fields(answer, "as_predicted", "differences", "warnings"),
        **dict.fromkeys(("library", "scale", "full_size", "notes")),
        **dict.fromkeys(("steps", "processes", "pages", "transfer", "left_pages")),
        "lowest_room_bytes": None,
        **({} if answer.plan is None else _plan_object(answer.plan)),
        **({} if answer.plan is None or answer.run is None else _run_object(answer.run)),
    }


def _plan_object(plan: RehearsalPlan) -> dict[str, Any]:
    """Build the fields of the JSON answer that the plan alone decides."""
    return {
        "library": {
            "wheel": plan.library.distribution,
            "version": plan.library.version,
            "interpreter": plan.library.python,
            "folder": plain(plan.library.folder),
        },
        "scale": plan.scale,
        "full_size": dict(zip(("status", "reason"), plan.full_size, strict=True)),
        "notes": plain(plan.notes),
    }


def _run_object(run: RehearsalRun) -> dict[str, Any]:
    """Build the fields of the JSON answer that were measured in the run."""
    moved = run.transfer
    return {
        "steps": [_step_object(done) for done in run.done],
        "processes": [
            {
                **fields(held.member, "name", "program"),
                "numa_node": held.member.process.node,
                "devices": _or_null(held.member.nics),
                **fields(held, "pinned_bytes", "locked_bytes", "resident_bytes"),
                "predicted_pinned_bytes": _or_null(held.member.pinned_bytes),
            }
            for held in run.held
        ],
        "pages": _page_objects(run.pages),
        "transfer": {
            **{name: getattr(moved, name) or None for name in ("put", "got", "error", "skipped")},
            "size_bytes": moved.bytes,
            "seconds": moved.seconds,
        },
        "left_pages": [
            {"page_size_bytes": size, "pages": n} for size, n in sorted(run.left.items())
        ],
        "lowest_room_bytes": run.lowest_room_bytes,
    }


def _or_null(value: Any) -> Any:
    return None if isinstance(value, Unknown) else plain(value)


def _step_object(done: StepResult) -> dict[str, Any]:
    """Build the JSON of one step: what it asks for, the prediction and the measurement."""
    step, failure = done.step, done.step.failure
    times = ("seconds", "populated_seconds", "registered_seconds")
    return {
        "process": step.member.name,
        **fields(step, "kind", "what"),
        "asked": [_allocation_object(one) for one in step.asked],
        "predicted": {
            "pages": None if step.taken is None else _page_objects(predicted_pages(step.taken)),
            "fails_at": None if failure is None else plain(failure.what),
            "error": None if failure is None else failure.error,
        },
        "measured": {
            "pages": _page_objects(done.pages) if done.ended is None else None,
            "error": done.error or None,
            "lines": plain(done.lines),
            **fields(done, *times, "resident_bytes", "pinned_bytes"),
        },
    }


def _allocation_object(one: Allocation) -> dict[str, Any]:
    """Build the JSON of one allocation that a step asks for."""
    return {
        "what": one.what,
        "size_bytes": plain(one.bytes),
        "backing": plain(one.backing),
        "page_size_bytes": one.page_size_bytes,
        "pages": plain(one.pages),
        "numa_node": one.node,
        "registered": one.registered,
    }


def _page_objects(pages: Mapping[Spot, int]) -> list[dict[str, Any]]:
    """Build the JSON of page counts by size and NUMA node, without counts of 0."""
    ordered = sorted(pages.items(), key=lambda item: (item[0].page_size_bytes, item[0].node or -1))
    return [
        {"page_size_bytes": spot.page_size_bytes, "numa_node": spot.node, "pages": count}
        for spot, count in ordered
        if count
    ]
