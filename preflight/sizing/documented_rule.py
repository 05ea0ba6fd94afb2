"""Mooncake's documented rule: what its helper answers of the same launch, in four numbers."""

from typing import NamedTuple

# The helper's statuses and their exit codes.
HELPER_EXIT_CODES = {
    "planning_only": 0,
    "clean_arena_budget_available": 0,
    "baseline_fits_arena_may_fallback": 1,
    "insufficient_for_baseline": 2,
}


class DocumentedRule(NamedTuple):
    """The helper's four numbers and its status; ``available_bytes`` None where it knows no pool."""

    baseline_per_rank_bytes: int
    baseline_total_bytes: int
    clean_arena_per_rank_bytes: int
    clean_arena_total_bytes: int
    available_bytes: int | None
    status: str

    @property
    def exit_code(self) -> int:
        return HELPER_EXIT_CODES[self.status]


def documented_rule(
    *,
    tp_size: int,
    hicache_bytes: int,
    segment_bytes: int,
    arena_bytes: int,
    available_bytes: int | None,
) -> DocumentedRule:
    """Judge as the helper does; every size as given on the command line, in bytes."""
    baseline = hicache_bytes + segment_bytes
    clean_arena = baseline + arena_bytes
    if available_bytes is None:
        status = "planning_only"
    elif available_bytes < baseline * tp_size:
        status = "insufficient_for_baseline"
    elif available_bytes < clean_arena * tp_size:
        status = "baseline_fits_arena_may_fallback"
    else:
        status = "clean_arena_budget_available"
    return DocumentedRule(
        baseline, baseline * tp_size, clean_arena, clean_arena * tp_size, available_bytes, status
    )
