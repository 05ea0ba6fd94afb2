"""What a rehearsal would say today of what was measured when it was recorded.

The launch is read, sized and planned anew on the recorded capture of the guest; what the real
library did then is put beside it, step by step.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from checks.base.pages import Spot
from checks.base.unknown import Unknown
from preflight.cli.main import run
from preflight.inputs.host_source import open_host, size_within
from preflight.inputs.launch_words import LaunchWords
from preflight.rehearsal.records import (
    Library,
    ProcessMemory,
    RehearsalPlan,
    RehearsalRun,
    StepResult,
    Transfer,
)
from preflight.rehearsal.rehearse import answer_of, judge, prepare
from tests.lab.rehearse_staged import staged_plan, whole_answer
from tests.rows import flat

LIMIT_SECONDS = 60


def answer_again(order: Mapping[str, Any], then: Mapping[str, Any], capture: Path) -> Any:
    """Return the answer as ``rehearse --json`` prints it. then: the one that was recorded."""
    host = open_host(str(capture))
    said = then["library"]
    library = Library(said["interpreter"], said["folder"], said["wheel"], said["version"])
    if order["processes"]:
        wanted = (order["processes"], order["pools"], order["nic_nodes"])
        plan = staged_plan(*wanted, library, host.root, host.environment)
        return flat(whole_answer(judge(plan, run_of(plan, then))))
    sized = size_within(LaunchWords(mooncake_version=library.version), host, LIMIT_SECONDS)
    assert sized is not None
    assert not isinstance(sized, Unknown), sized
    prepared = prepare(sized, host, library, then["scale"])
    assert not isinstance(prepared, Unknown), prepared
    return flat(whole_answer(answer_of(prepared, run_of(prepared.plan, then))))


def _ended(said: str) -> int | None:
    """Return the code that a recorded process ended with, as ``Reply`` has it; None: it lived."""
    match = re.fullmatch(r"(SIG\w+ \()?exit code (\d+)\)?", said)
    if match is None:
        return None
    return 128 - int(match[2]) if match[1] else int(match[2])


def run_of(plan: RehearsalPlan, then: Mapping[str, Any]) -> RehearsalRun:
    """Return what was measured, as of the steps of ``plan``, which must be those of then."""
    names = [step.member.name for step in plan.steps]
    now = [(name, step.kind) for name, step in zip(names, plan.steps, strict=True)]
    steps = then["steps"]
    assert [(one["process"], one["kind"]) for one in steps] == now[: len(steps)]
    done = []
    for step, one in zip(plan.steps, steps, strict=False):
        measured = one["measured"]
        done.append(
            StepResult(
                step,
                measured["error"] or "",
                measured["seconds"],
                _pages(measured["pages"] or ()),
                measured["populated_seconds"],
                measured["registered_seconds"],
                tuple(measured["lines"]),
                measured["resident_bytes"],
                measured["pinned_bytes"],
                _ended(measured["error"] or ""),
            )
        )
    assert [one["name"] for one in then["processes"]] == [one.name for one in plan.members]
    kept = ("pinned_bytes", "locked_bytes", "resident_bytes")
    held = zip(plan.members, then["processes"], strict=True)
    moved = then["transfer"]
    return RehearsalRun(
        tuple(done),
        tuple(ProcessMemory(member, *(one[name] for name in kept)) for member, one in held),
        _pages(then["pages"]),
        Transfer(
            moved["put"] or "",
            moved["got"] or "",
            moved["size_bytes"],
            moved["error"] or "",
            moved["skipped"] or "",
            moved["seconds"],
        ),
        "",
        {one["page_size_bytes"]: one["pages"] for one in then["left_pages"]},
        then["lowest_room_bytes"],
    )


def _pages(rows: Any) -> dict[Spot, int]:
    return {Spot(row["page_size_bytes"], row["numa_node"]): row["pages"] for row in rows}


def fitted_again(words: Iterable[str], capture: Path) -> tuple[int, Any]:
    """Return the exit code and the answer of ``fit`` on the recorded capture of the guest."""
    output = io.StringIO()
    asked = ["fit", "--json", "--goal", "pool", "--keep", "0", "--root", str(capture), *words]
    with contextlib.redirect_stdout(output):
        code = run(asked)
    return code, flat(json.loads(output.getvalue()))
