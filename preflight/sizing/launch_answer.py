"""A launch as it was written, sized: as data, as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.base.usage_error import NoLaunchError
from preflight.inputs.launch_words import LaunchWords
from preflight.inputs.written_launch import read_launch, size_written
from preflight.processes.source_options import SourceOptions
from preflight.sizing.advice import recommend
from preflight.sizing.chosen_versions import installed_there
from preflight.sizing.host_needs import explain, host_needs
from preflight.sizing.sizing_json import sizing_object, source_object
from preflight.sizing.source_sizing import SourceSizing


def size_launch_words(
    words: LaunchWords, available_bytes: int | None, environment: Mapping[str, str], root: Root
) -> SourceSizing:
    """Read a launch and size it. Raises UsageError for what cannot be read, or starts nothing.

    available_bytes: of a pool of huge pages, in place of what the kernel has.
    """
    launch = read_launch(words.words, words.env_files, environment, root)
    options = SourceOptions(
        available_bytes,
        words.nic_nodes,
        words.rank_nodes,
        words.mooncake_version,
        words.sglang_version,
        words.model_config,
        words.gpu_bytes,
        installed_there(launch.reading, root),
    )
    sizing = size_written(launch, options, root)
    if sizing.shown is not None and not sizing.shown.inputs.launch.processes:
        raise NoLaunchError(
            f"{launch.name} starts no SGLang server, store service or mooncake_client: "
            "nothing to size"
        )
    return sizing


def exit_code_of(sizing: SourceSizing, rule: str) -> int:
    """Return the exit code, by our rule or by the documented one."""
    if rule == "documented" and sizing.shown is not None:
        return sizing.shown.documented.exit_code
    return sizing.exit_code


def as_object(sizing: SourceSizing, rule: str) -> dict[str, object]:
    """The answer as JSON has it."""
    shown = sizing.shown
    answer = None if shown is None else sizing_object(shown, recommend(shown), "exact")
    found = source_object(sizing, answer)
    if rule == "documented" and shown is not None:
        found["rule"] = rule
        found["status"], found["exit_code"] = shown.documented.status, shown.documented.exit_code
    return found


def _admission_text(sizing: SourceSizing) -> str:
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
    sizing: SourceSizing, rule: str, paint: Callable[[str, str], str], explained: bool = False
) -> str:
    """The answer for a person at a terminal; ``explained`` with each need, formula and inputs."""
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
