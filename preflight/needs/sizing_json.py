"""A sizing as one JSON object, ``schemas/sizing-v1.schema.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checks.framework.pages import Spot
from checks.framework.unknown import Unknown
from preflight.base.plain_data import fields, plain
from preflight.engines.mooncake.replay import ProcessReplay
from preflight.needs.advice import recommend
from preflight.needs.sizing import Sizing, taken_pages

if TYPE_CHECKING:  # these come with a launch alone
    from checks.framework.problem import Match
    from preflight.engines.sglang.pools import ServerMemory
    from preflight.needs.launch_sizing import Admission, LaunchSizing
    from preflight.processes.processes import LaunchProcess

SCHEMA = "mooncake-preflight/sizing/v1"

Json = dict[str, Any]


def sizing_object(sizing: Sizing, rule: str) -> Json:
    """Return a sizing for JSON; ``rule`` (documented or exact) gives status and exit code."""
    shown = sizing.inputs.shown
    return {
        "schema": SCHEMA,
        "rule": rule,
        **fields(sizing.documented if rule == "documented" else sizing, "status", "exit_code"),
        "inputs": {
            name: fields(shown_input, "value", "origin") for name, shown_input in shown.items()
        },
        "documented": {**plain(sizing.documented), **fields(sizing.documented, "exit_code")},
        "exact": {
            **fields(sizing, "status", "exit_code", "reason", "need_bytes"),
            "hugetlb": _pools(sizing),
            "processes": [_process(process) for process in sizing.asked],
        },
        "notes": [fields(note, "id", "text") for note in (*sizing.unused, *sizing.inputs.notes)],
        "recommendations": plain(recommend(sizing)),
    }


def launch_object(sizing: LaunchSizing, rule: str) -> Json:
    """Return a launch's answer for JSON: the sizing by ``rule`` (else an error), and the launch."""
    shown = sizing.shown
    if shown is None:
        answer = error_object(sizing.exit_code, sizing.reason)
    else:
        answer = sizing_object(shown, rule)
        answer["exact"] |= fields(sizing, "status", "exit_code", "reason")
        if rule == "exact":
            answer |= fields(sizing, "status", "exit_code")
    inputs = sizing.inputs
    answer["launch"] = {
        "processes": [
            {"kind": process.kind.value, "origin": str(process.command.origin)}
            for process in inputs.processes
        ],
        "l2": [
            _l2(process, inputs.memory[process.number])
            for process in inputs.processes
            if process.number in inputs.memory
        ],
        "needs": _needs(sizing),
        "admission": [_admission(admission) for admission in sizing.admissions],
        "findings": [_finding(finding) for finding in sizing.problems],
        "reading": [
            {**fields(note, "id", "text"), "origin": str(note.origin)}
            for note in sizing.reading.notes
        ],
    }
    return answer


def _l2(process: LaunchProcess, memory: ServerMemory) -> Json:
    """Return the L2 pools of a rank for JSON; most_bytes is None if not known."""
    most = memory.most_pools_bytes
    return {
        "origin": str(process.command.origin),
        "least_bytes": sum(memory.least_pools_bytes),
        "most_bytes": None if isinstance(most, Unknown) else sum(most),
        "why": memory.why,
    }


def _needs(sizing: LaunchSizing) -> Json | None:
    """Return the needs of the host by kind, or None if the sizes are not known."""
    if sizing.shown is None:
        return None
    from preflight.needs.shown_needs import host_needs

    return {
        need_kind: [fields(need, "what", "owner", "value", "unit", "formula") for need in needs]
        for need_kind, needs in host_needs(sizing.shown, sizing.inputs.processes).items()
    }


def _admission(admission: Admission | Unknown) -> Json:
    """Return SGLang's own answer about memory for JSON; "admitted" is None if it is not known."""
    if isinstance(admission, Unknown):
        text = admission.reason
        return {"origin": None, "admitted": None, "message": text, "hugepages": None}
    pages = admission.pages
    return {
        "origin": admission.origin,
        "admitted": not admission.refused,
        "message": admission.refused or admission.late,
        "hugepages": None
        if pages is None
        else {
            "page_size_bytes": pages.page_size_bytes,
            "least_pages": pages.least,
            "most_pages": None if pages.most is None else max(0, pages.most),
            "feasible": not pages.empty,
            "reason": pages.reason,
        },
    }


def _finding(finding: Match) -> Json:
    """Return a rule's finding for JSON."""
    return {
        "text": finding.text,
        "origin": None if finding.origin is None else str(finding.origin),
        **fields(finding, "id", "severity"),
        "consequence": finding.page.follows,
        "remedy": finding.remedy or finding.page.remedy,
    }


def error_object(exit_code: int, message: str) -> Json:
    """Return the object for a command that gave no answer."""
    answer = {"schema": SCHEMA, "rule": None, "status": "error"}
    return {**answer, "exit_code": exit_code, "error": message}


def _pools(sizing: Sizing) -> list[Json]:
    """Return need and stock of each page size for JSON: in all, by NUMA node, and by node set."""
    needs = sizing.verdict.needs
    sizes = {spot.page_size_bytes for spot in needs} | {sizing.inputs.settings.hugepage_bytes}
    return [
        {
            "page_size_bytes": size,
            **_counts(sizing, Spot(size, None)),
            "nodes": [
                {"node": spot.node, **_counts(sizing, spot)}
                for spot in sorted(spot for spot in needs if spot.node is not None)
                if spot.page_size_bytes == size
            ],
            "node_groups": [
                {"nodes": list(spot.among), **_counts(sizing, spot)}
                for spot in sorted((spot for spot in needs if spot.among), key=lambda s: s.among)
                if spot.page_size_bytes == size
            ],
        }
        for size in sorted(sizes)
    ]


def _counts(sizing: Sizing, spot: Spot) -> Json:
    """Return the pages needed, taken, and at least available, at one spot; None if not known."""
    have = sizing.stock.get(spot, Unknown("not read"))
    why = None
    if isinstance(have, Unknown):
        why = have.reason
    elif have.least_pages != have.most_pages:
        why = f"between {have.least_pages} and {have.most_pages}"
    return {
        "need_pages": sizing.verdict.needs.get(spot, 0),
        "start_pages": sizing.verdict.start.get(spot, 0),
        "taken_pages": taken_pages(sizing, spot),
        "available_pages": None if isinstance(have, Unknown) else have.least_pages,
        "available_unknown": why,
    }


def _process(process: ProcessReplay) -> Json:
    """Return a process with its allocations for JSON."""
    names = "what bytes backing page_size_bytes pages node registered on_shortage".split()
    return {
        **fields(process.process, "name", "node"),
        "arena_used_bytes": process.arena_used_bytes,
        "allocations": [fields(allocation, *names) for allocation in process.allocations],
    }
