"""A sizing as one JSON object, ``schemas/sizing-v1.schema.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from checks.base.needs import Spot
from checks.base.unknown import Unknown
from checks.hugetlb.fit import Stock
from preflight.mooncake.allocations import Allocation
from preflight.mooncake.replay import ProcessReplay
from preflight.programs.store_environment import Note
from preflight.sizing.advice import Recommendation
from preflight.sizing.sizing import Sizing, taken_pages

if TYPE_CHECKING:  # both come with a launch alone
    from preflight.rules.rules import Finding
    from preflight.sizing.admission import Admission
    from preflight.sizing.launch_sizing import LaunchSizing

SCHEMA = "mooncake-preflight/sizing/v1"

Json = dict[str, Any]


def sizing_object(sizing: Sizing, recommendations: tuple[Recommendation, ...], rule: str) -> Json:
    """Return the object for an answer; ``status`` and ``exit_code`` are those of ``rule``."""
    documented = sizing.documented
    by_rule = {
        "exact": (sizing.status, sizing.exit_code),
        "documented": (documented.status, documented.exit_code),
    }
    status, exit_code = by_rule[rule]
    return {
        "schema": SCHEMA,
        "rule": rule,
        "status": status,
        "exit_code": exit_code,
        "inputs": {
            name: {"value": given.value, "origin": given.origin}
            for name, given in sizing.inputs.shown.items()
        },
        "documented": {
            "status": documented.status,
            "exit_code": documented.exit_code,
            "baseline_per_rank_bytes": documented.baseline_per_rank_bytes,
            "baseline_total_bytes": documented.baseline_total_bytes,
            "clean_arena_per_rank_bytes": documented.clean_arena_per_rank_bytes,
            "clean_arena_total_bytes": documented.clean_arena_total_bytes,
            "available_bytes": documented.available_bytes,
        },
        "exact": {
            "status": sizing.status,
            "exit_code": sizing.exit_code,
            "reason": sizing.reason,
            "need_bytes": sizing.need_bytes,
            "hugetlb": _pools(sizing),
            "processes": [_process(process) for process in sizing.asked],
        },
        "notes": [_note(note) for note in (*sizing.unused, *sizing.inputs.notes)],
        "recommendations": [
            {"id": advice.id, "text": advice.text, "commands": list(advice.commands)}
            for advice in recommendations
        ],
    }


def source_object(source: LaunchSizing, answer: Json | None) -> Json:
    """Return the object for a launch as it was written; ``answer`` is that of its upper bound."""
    base = answer or error_object(None, source.exit_code, source.reason)
    if answer is not None:
        base["status"], base["exit_code"] = source.status, source.exit_code
        base["exact"]["status"], base["exact"]["exit_code"] = source.status, source.exit_code
        base["exact"]["reason"] = source.reason
    base["launch"] = {
        "processes": [
            {"kind": process.kind.value, "origin": str(process.command.origin)}
            for process in source.inputs.processes
        ],
        "l2": [
            {
                "origin": str(process.command.origin),
                "least_bytes": sum(memory.least_pools_bytes),
                "most_bytes": None
                if isinstance(memory.most_pools_bytes, Unknown)
                else sum(memory.most_pools_bytes),
                "why": memory.why,
            }
            for process in source.inputs.processes
            for memory in (source.inputs.memory.get(process.number),)
            if memory is not None
        ],
        "needs": _needs(source),
        "admission": [_admission(admission) for admission in source.admissions],
        "findings": [_finding(finding) for finding in source.inputs.findings],
        "reading": [
            {"id": note.id, "text": note.text, "origin": str(note.origin)}
            for note in source.reading.notes
        ],
    }
    return base


def _needs(source: LaunchSizing) -> Json | None:
    if source.shown is None:
        return None
    from preflight.sizing.need_formulas import host_needs

    needs = host_needs(source.shown, source.inputs.processes)
    return {
        kind: [
            {
                "what": need.what,
                "owner": need.owner,
                "value": need.value,
                "unit": need.unit,
                "formula": need.formula,
            }
            for need in found
        ]
        for kind, found in zip(needs._fields, needs, strict=True)
    }


def _admission(admission: Admission | Unknown) -> Json:
    if isinstance(admission, Unknown):
        return {"origin": None, "admitted": None, "message": admission.reason, "hugepages": None}
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


def _finding(finding: Finding) -> Json:
    rule = finding.rule
    return {
        "id": rule.id,
        "severity": rule.severity.value,
        "text": finding.text,
        "origin": None if finding.origin is None else str(finding.origin),
        "consequence": rule.consequence,
        "remedy": rule.remedy,
    }


def error_object(rule: str | None, exit_code: int, message: str) -> Json:
    """Return the object for a command that gave no answer."""
    return {
        "schema": SCHEMA,
        "rule": rule,
        "status": "error",
        "exit_code": exit_code,
        "error": message,
    }


def _pools(sizing: Sizing) -> list[Json]:
    sizes = {spot.page_size_bytes for spot in sizing.verdict.needs}
    sizes.add(sizing.inputs.settings.hugepage_bytes)
    return [_pool(sizing, size) for size in sorted(sizes)]


def _pool(sizing: Sizing, page_size_bytes: int) -> Json:
    needs = sizing.verdict.needs
    nodes = sorted(
        spot.node
        for spot in needs
        if spot.page_size_bytes == page_size_bytes and spot.node is not None
    )
    pool = _counts(sizing, Spot(page_size_bytes, None))
    shares = [{"node": node, **_counts(sizing, Spot(page_size_bytes, node))} for node in nodes]
    return {"page_size_bytes": page_size_bytes, **pool, "nodes": shares}


def _counts(sizing: Sizing, spot: Spot) -> Json:
    available, reason = _available(sizing.stock, spot)
    return {
        "need_pages": sizing.verdict.needs.get(spot, 0),
        "start_pages": sizing.verdict.start.get(spot, 0),
        "taken_pages": taken_pages(sizing, spot),
        "available_pages": available,
        "available_unknown": reason,
    }


def _available(stock: Mapping[Spot, Stock | Unknown], spot: Spot) -> tuple[int | None, str | None]:
    have = stock.get(spot, Unknown("not read"))
    if isinstance(have, Unknown):
        return None, have.reason
    if have.least_pages == have.most_pages:
        return have.least_pages, None
    return have.least_pages, f"between {have.least_pages} and {have.most_pages}"


def _process(process: ProcessReplay) -> Json:
    return {
        "name": process.process.name,
        "node": process.process.node,
        "arena_used_bytes": process.arena_used_bytes,
        "allocations": [_allocation(allocation) for allocation in process.allocations],
    }


def _allocation(allocation: Allocation) -> Json:
    return {
        "what": allocation.what,
        "bytes": allocation.bytes,
        "backing": allocation.backing.value,
        "page_size_bytes": allocation.page_size_bytes,
        "pages": allocation.pages,
        "node": allocation.node,
        "registered": allocation.registered,
        "on_shortage": allocation.on_shortage.value,
    }


def _note(note: Note) -> Json:
    return {"id": note.id, "text": note.text}
