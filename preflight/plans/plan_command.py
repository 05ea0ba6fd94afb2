"""Runs ``mooncake-preflight plan``: standard output is the artefact, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from preflight.host_source import LaunchWords
from preflight.output import say
from preflight.plans.plan_formats import FORMATS, Names, missing, render
from preflight.plans.plan_host import plan_of
from preflight.plans.plan_records import Plan
from preflight.usage_error import UsageError

NAME = "mooncake-preflight plan"
EXIT_CHANGES = 1
EXIT_UNKNOWN = 3
_USAGE = 64


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
    try:
        found = plan_of(request.launch, request.root, request.timeout_seconds)
        gaps = missing(found, request.format)
        if FORMATS[request.format].launch and not found.source and not gaps:
            raise UsageError(
                f"--format {request.format} is about a launch: give a script, or a command after --"
            )
    except UsageError as error:
        _say_error(request, str(error))
        raise
    if gaps:
        # Half of a drop-in or of a Pod looks like a whole one.
        for gap in gaps:
            say(f"{NAME}: --format {request.format}: {gap.topic}: {gap.reason}", err=True)
        return EXIT_UNKNOWN
    rendering = render(found, request.format, Names(request.service, request.rdma_resource))
    if rendering.text:
        say(rendering.text)
    for note in (*rendering.notes, *_notes(found, request.format, bool(rendering.text))):
        say(f"{NAME}: {note}", err=True)
    return _exit_code(found, request)


def _notes(plan: Plan, name: str, printed: bool) -> list[str]:
    notes = [] if name in ("text", "json") else list(plan.conflicts)
    return notes if printed else [*notes, f"nothing to set with --format {name}"]


def _exit_code(plan: Plan, request: PlanRequest) -> int:
    if plan.gaps and request.format in ("text", "json"):
        return EXIT_UNKNOWN
    return EXIT_CHANGES if request.told and any(s.change for s in plan.settings) else 0


def _say_error(request: PlanRequest, message: str) -> None:
    if request.format == "json":
        import json

        from preflight.error_object import error_object
        from preflight.plans.plan_json import SCHEMA

        say(json.dumps(error_object(SCHEMA, _USAGE, message), indent=2))
