"""The answer of ``rehearse`` as one JSON object, ``schemas/rehearse-v1.schema.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from preflight.base.program_version import program_version

if TYPE_CHECKING:
    from checks.base.needs import Spot
    from preflight.mooncake.allocations import Allocation
    from preflight.rehearsal.answer import Answer
    from preflight.rehearsal.records import Done, Plan, Run

SCHEMA = "mooncake-preflight/rehearse/v1"
# Of an answer that came to no plan, or to no run.
_PLAN = ("library", "scale", "full_size", "notes")
_RUN = ("steps", "processes", "pages", "transfer", "left_pages", "lowest_room_bytes")


def answer_object(answer: Answer) -> dict[str, Any]:
    """Every number in bytes, pages or seconds; null for what is not known."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "version": program_version(),
        "status": answer.status,
        "exit_code": answer.exit_code,
        "reason": answer.reason,
        "as_predicted": answer.as_predicted,
        "differences": list(answer.differences),
        "warnings": list(answer.warnings),
        **dict.fromkeys((*_PLAN, *_RUN)),
    }
    if answer.plan is not None:
        found |= _plan(answer.plan)
    if answer.plan is not None and answer.run is not None:
        found |= _run(answer.plan, answer.run)
    return found


def _plan(plan: Plan) -> dict[str, Any]:
    library = plan.library
    status, why = plan.full_size
    return {
        "library": {
            "distribution": library.distribution,
            "version": library.version,
            "python": library.python,
            "folder": library.folder,
        },
        "scale": plan.scale,
        "full_size": {"status": status, "reason": why},
        "notes": list(plan.notes),
    }


def _run(plan: Plan, run: Run) -> dict[str, Any]:
    moved = run.transfer
    return {
        "steps": [_step(plan, done) for done in run.done],
        "processes": [
            {
                "name": member.name,
                "program": member.program,
                "node": member.process.node,
                "nics": list(member.nics) if isinstance(member.nics, tuple) else None,
                "pinned_bytes": held.pinned_bytes,
                "locked_bytes": held.locked_bytes,
                "resident_bytes": held.resident_bytes,
                "predicted_pinned_bytes": (
                    member.pinned_bytes if isinstance(member.pinned_bytes, int) else None
                ),
            }
            for member, held in zip(plan.members, run.held, strict=True)
        ],
        "pages": _pages(run.pages),
        "transfer": {
            "put": moved.put or None,
            "got": moved.got or None,
            "bytes": moved.bytes,
            "seconds": moved.seconds,
            "error": moved.error or None,
            "skipped": moved.skipped or None,
        },
        "left_pages": [
            {"page_bytes": size, "pages": pages} for size, pages in sorted(run.left.items())
        ],
        "lowest_room_bytes": run.lowest_room_bytes,
    }


def _step(plan: Plan, done: Done) -> dict[str, Any]:
    from preflight.rehearsal.answer import died, predicted_pages

    step = done.step
    failure = step.failure
    return {
        "process": plan.members[step.member].name,
        "kind": step.kind,
        "what": step.what,
        "asked": [_allocation(one) for one in step.asked],
        "predicted": {
            "pages": None if step.taken is None else _pages(predicted_pages(step.taken)),
            "fails_at": None if failure is None else failure.what,
            "error": None if failure is None else failure.error,
        },
        "measured": {
            "pages": None if died(done) else _pages(done.pages),
            "error": done.error or None,
            "lines": list(done.lines),
            "seconds": done.seconds,
            "populated_seconds": done.populated_seconds,
            "registered_seconds": done.registered_seconds,
            "resident_bytes": done.resident_bytes,
            "pinned_bytes": done.pinned_bytes,
        },
    }


def _allocation(one: Allocation) -> dict[str, Any]:
    return {
        "what": one.what,
        "bytes": one.bytes,
        "backing": one.backing.value,
        "page_bytes": one.page_size_bytes,
        "pages": one.pages,
        "node": one.node,
        "registered": one.registered,
    }


def _pages(pages: Mapping[Spot, int]) -> list[dict[str, Any]]:
    return [
        {"page_bytes": spot.page_size_bytes, "node": spot.node, "pages": count}
        for spot, count in _sorted(pages.items())
        if count
    ]


def _sorted(items: Iterable[tuple[Spot, int]]) -> list[tuple[Spot, int]]:
    return sorted(items, key=lambda item: (item[0].page_size_bytes, item[0].node or -1))
