"""The answer of ``fit`` as one JSON object, ``schemas/fit-v1.schema.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checks.base.finding import Finding
    from preflight.fit.launch_values import Knob
    from preflight.fit.records import Fitted

SCHEMA = "mooncake-preflight/fit/v1"
_STATUS = {0: "fits", 1: "fits-but-fails", 2: "nothing-fits", 3: "unknown"}

Json = dict[str, Any]


def fit_object(found: Fitted) -> Json:
    """Return the whole answer; sizes in bytes, values as they are written in the launch."""
    from preflight.base.program_version import program_version
    from preflight.fit.to_text import diff

    answer, edited = found.answer, found.edited
    values = answer.values
    fits = answer.fits
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "reason": answer.reason,
        "status": _STATUS[found.exit_code],
        "exit_code": found.exit_code,
        "launch": found.launch,
        "host": found.host,
        "goal": answer.goal.value,
        "keep_bytes": found.keep_bytes,
        "sizes": {
            "l2": _size(answer.sizes.l2, values.l2_bytes, fits is not None),
            "segment": _size(answer.sizes.segment, values.segment_bytes, fits is not None),
            "arena": _size(answer.sizes.arena, values.arena_bytes, fits is not None),
        },
        "pools": [] if fits is None else [target._asdict() for target in fits.pools],
        "bounds": [
            {
                "size": bound.size,
                "value_bytes": bound.value_bytes,
                "findings": [_finding(finding) for finding in bound.findings],
            }
            for bound in answer.bounds
        ],
        "blocking": [_finding(finding) for finding in answer.blocking],
        "unknown": [_finding(finding) for finding in answer.unknown],
        "beside": [_finding(finding) for finding in answer.beside],
        "per_gib": [share._asdict() for share in answer.shares],
        "hints": list(found.hints),
        "edits": []
        if edited is None
        else [{"path": e.path, "diff": "\n".join(diff(e))} for e in edited.edits],
        "by_hand": []
        if edited is None
        else [
            {"name": a.name, "value": a.text, "where": a.where, "why": a.why} for a in edited.advice
        ],
        "written": list(found.written),
        "command": found.command,
        "host_commands": list(found.host_commands),
        "assumptions": list(found.assumptions),
    }


def _size(knob: Knob | None, value: int | None, fits: bool) -> Json | None:
    """None where the launch has no such size."""
    if knob is None:
        return None
    written = [place.old for place in knob.places if place.written]
    text = None if value is None or not fits else knob.spell(value) if value else ""
    return {
        "name": knob.name,
        "step_bytes": knob.step_bytes,
        "now": written[0] if written else None,
        "bytes": value if fits else None,
        "value": text,
    }


def _finding(finding: Finding) -> Json:
    return {
        "check": finding.check,
        "status": finding.status.value,
        "subject": finding.subject,
        "have": finding.have,
        "need": finding.need,
        "formula": finding.formula,
        "text": finding.text,
    }
