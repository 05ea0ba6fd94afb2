"""A sizing as one JSON object, ``schemas/sizing-v1.schema.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks.hugetlb_fit import Spot, Stock
from checks.unknown import Unknown
from preflight.advice import Recommendation
from preflight.allocations import Allocation
from preflight.replay import ProcessReplay
from preflight.sizing import Sizing, taken_pages
from preflight.store_environment import Note

SCHEMA = "mooncake-preflight/sizing/v1"

Json = dict[str, Any]


def sizing_object(sizing: Sizing, recommendations: tuple[Recommendation, ...], rule: str) -> Json:
    """The object for an answer; ``status`` and ``exit_code`` are those of ``rule``."""
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


def error_object(rule: str | None, exit_code: int, message: str) -> Json:
    """The object for a command that gave no answer."""
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
