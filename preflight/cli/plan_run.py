"""Runs ``mooncake-preflight plan``: standard output is the artefact, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from checks.hugetlb.refusal import ASK_FIT
from preflight.base.output import say, say_json
from preflight.base.usage_error import UsageError
from preflight.inputs.host_source import LaunchWords
from preflight.settings.dialects import FORMATS, Names, missing, refused, render
from preflight.settings.plan import plan_of
from preflight.settings.records import Plan

NAME = "mooncake-preflight plan"
EXIT_CHANGES = 1
EXIT_IMPOSSIBLE = 2
EXIT_UNKNOWN = 3


class PlanRequest(NamedTuple):
    """What the command line asks for."""

    launch: LaunchWords
    root: str
    timeout_seconds: float
    format: str
    service: str
    rdma_resource: str
    told: bool


def run_plan(request: PlanRequest) -> int:
    """Print the artefact; returns the exit code. Raises UsageError."""
    found = plan_of(request.launch, request.root, request.timeout_seconds)
    if request.format == "json":
        from preflight.settings.dialects.plan_object import plan_object

        code = _exit_code(found, request)
        say_json(plan_object(found, code))
        return code
    gaps, impossible = missing(found, request.format), refused(found, request.format)
    if FORMATS[request.format].launch and not found.source and not gaps:
        raise UsageError(
            f"--format {request.format} is about a launch: give a script, or a command after --"
        )
    # Half of a drop-in or of a Pod looks like a whole one; one that cannot be had does harm.
    for reason in (*impossible, *gaps):
        say(f"{NAME}: --format {request.format}: {reason}", err=True)
    if impossible:
        say(f"{NAME}: nothing is printed of it: {ASK_FIT}", err=True)
        return EXIT_IMPOSSIBLE
    if gaps:
        return EXIT_UNKNOWN
    rendering = render(found, request.format, Names(request.service, request.rdma_resource))
    if rendering.text:
        say(rendering.text)
    for note in (*rendering.notes, *_notes(found, request.format, bool(rendering.text))):
        say(f"{NAME}: {note}", err=True)
    return _exit_code(found, request)


def _notes(plan: Plan, name: str, printed: bool) -> list[str]:
    notes = [] if name == "text" else list(plan.conflicts)
    return notes if printed else [*notes, f"nothing to set with --format {name}"]


def _exit_code(plan: Plan, request: PlanRequest) -> int:
    if request.format in ("text", "json"):
        if plan.impossible and plan.grows:
            return EXIT_IMPOSSIBLE
        if plan.gaps:
            return EXIT_UNKNOWN
    return EXIT_CHANGES if request.told and any(s.change for s in plan.settings) else 0
