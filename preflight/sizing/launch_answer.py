"""A launch as it was written, sized: as data, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable

from checks.base.unknown import Unknown
from preflight.sizing.advice import recommend
from preflight.sizing.launch_sizing import LaunchSizing
from preflight.sizing.need_formulas import explain, host_needs
from preflight.sizing.sizing_json import sizing_object, source_object


def exit_code_of(sizing: LaunchSizing, rule: str) -> int:
    """Return the exit code, by our rule or by the documented one."""
    if rule == "documented" and sizing.shown is not None:
        return sizing.shown.documented.exit_code
    return sizing.exit_code


def as_object(sizing: LaunchSizing, rule: str) -> dict[str, object]:
    """Return the answer as JSON has it."""
    shown = sizing.shown
    answer = None if shown is None else sizing_object(shown, recommend(shown), "exact")
    found = source_object(sizing, answer)
    if rule == "documented" and shown is not None:
        found["rule"] = rule
        found["status"], found["exit_code"] = shown.documented.status, shown.documented.exit_code
    return found


def _admission_text(sizing: LaunchSizing) -> str:
    """SGLang's own check, server by server."""
    lines = []
    for admission in sizing.admissions:
        if isinstance(admission, Unknown):
            lines.append(f"  not known: {admission.reason}")
            continue
        said = admission.refused or admission.late
        when = "refuses" if admission.refused else "may refuse its slowest rank"
        lines.append(f"  {admission.origin}: {f'{when}: {said}' if said else 'admits the L2 pool'}")
        pages = admission.pages
        if pages is not None:
            most = "any" if pages.most is None else str(pages.most)
            span = "no number" if pages.empty else f"{pages.least} to {most}"
            lines.append(f"    huge pages that suffice and let it start: {span}; {pages.reason}")
    return "\n".join(["SGLang's own check of host memory", *lines]) if lines else ""


def as_text(
    sizing: LaunchSizing, rule: str, paint: Callable[[str, str], str], explained: bool = False
) -> str:
    """Return the answer for a person at a terminal.

    ``explained`` with each need, formula and inputs.
    """
    from preflight.sizing.sizing_text import findings_text, sizing_text, status_line

    notes = "\n".join(f"  {note.text} ({note.origin}) [{note.id}]" for note in sizing.reading.notes)
    reading = f"How it was read\n{notes}" if notes else ""
    shown = sizing.shown
    findings = sizing.inputs.findings
    if shown is None:
        parts = [status_line(sizing.status, sizing.reason, paint), findings_text(findings, paint)]
        return "\n\n".join(part for part in (*parts, reading) if part)
    body = sizing_text(shown, recommend(shown), rule, paint, findings)
    if (sizing.status, sizing.reason) != (shown.status, shown.reason):
        verdict = status_line(sizing.status, sizing.reason, paint)
        body = f"{verdict}\n\nBy the memory alone, {body}"
    needs = explain(host_needs(shown, sizing.inputs.processes)) if explained else ""
    return "\n\n".join(part for part in (body, _admission_text(sizing), reading, needs) if part)
