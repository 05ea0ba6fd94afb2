"""The documented rule beside the exact need, in sentences: its status, the distance, and why."""

from __future__ import annotations

from checks.base.pages import MemoryKind
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.mooncake.allocations import Backing
from preflight.sizing.sizing import Sizing


def compare_rules(sizing: Sizing) -> str:
    """Return sentences about the documented rule.

    They tell its status, its distance to the exact need, and why.
    """
    documented, need = sizing.documented, sizing.need_bytes
    target = documented.clean_arena_total_bytes
    said = f"The documented rule says {documented.status} (exit {documented.exit_code})."
    difference = target - need
    reasons = "; ".join(_reasons(sizing))
    because = f": {reasons}" if reasons else ""
    if difference > 0:
        text = f"It asks for {format_bytes(difference)} more than the library takes{because}."
    elif difference < 0:
        text = f"It misses {format_bytes(-difference)} of what the library takes{because}."
    else:
        text = f"Its target is what the library takes{because}."
    verdicts = _verdicts(sizing)
    return " ".join(part for part in (said, text, verdicts) if part)


def _reasons(sizing: Sizing) -> list[str]:
    terms, settings = sizing.inputs.terms, sizing.inputs.settings
    if not settings.hugepages:
        return ["without MC_STORE_USE_HUGEPAGE the library takes no huge pages"]
    reasons: list[str] = []
    sharers = terms.tp_size * terms.pp_size
    if terms.segment_scope == "instance" and terms.segment_bytes and sharers > 1:
        reasons.append(
            f"it counts the segment once per rank, and SGLang divides it among {sharers}"
        )
    first = sizing.asked[0].allocations
    in_arena = [a.what for a in first if a.backing is Backing.ARENA]
    if terms.arena_bytes and in_arena:
        reasons.append(f"it adds the arena to what the arena holds ({' and '.join(in_arena)})")
    if sizing.inputs.ranks > terms.tp_size:
        reasons.append(
            f"it counts {terms.tp_size} ranks, and {sizing.inputs.ranks} run "
            f"(tp {terms.tp_size} x pp {terms.pp_size} x dp {terms.dp_size})"
        )
    direct = [a for a in first if a.what is MemoryKind.LOCAL_BUFFER and a.pages]
    if direct:
        reasons.append("it leaves out the local buffer")
    if settings.arena_bytes and not terms.arena_bytes:
        reasons.append("it does not see the arena that the environment asks for")
    if any(a.mapped_bytes > a.bytes for a in first if a.pages):
        reasons.append("it rounds no mapping up to its pages")
    return reasons


def _verdicts(sizing: Sizing) -> str:
    """Return a sentence where the documented rule passes a launch that fails, or the reverse."""
    passes = sizing.documented.status != "insufficient_for_baseline"
    sees_pool = sizing.documented.available_bytes is not None
    short = next((s for s in sizing.verdict.shortages if not s.spot.nodes), None)
    if sizing.status == "fails" and passes and sees_pool:
        if short is None or isinstance(short.available, Unknown):
            return "It would have passed this launch, which will not start."
        missing = (short.start_pages - short.available.least_pages) * short.spot.page_size_bytes
        return f"It would have passed this launch, {format_bytes(missing)} short of its need."
    if sizing.status in ("fits", "falls_back") and not passes:
        return "It would have stopped this launch, whose huge pages are there."
    return ""
