"""The answer of ``measure`` as text and as JSON (``schemas/measure-v1.schema.json``)."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from checks.base.finding import Finding, Status
from checks.base.units import format_bytes
from checks.base.unknown import Unknown
from preflight.base import exit_codes
from preflight.base.envelope import finding_object
from preflight.base.one_line import clean
from preflight.base.output import columns, painter
from preflight.measuring.findings import rate_text, seconds_text
from preflight.measuring.records import MeasuredPart, MeasuredRun, Rate
from preflight.probes.registration import ceiling_lines, ceiling_object
from preflight.render.plain_data import fields, plain
from preflight.render.text import filled, headed, table

_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "unknown": "magenta"}


class MeasureAnswer(NamedTuple):
    """What was measured, and what follows from it. consequences: a sentence each."""

    measured: MeasuredRun
    findings: tuple[Finding, ...] = ()
    consequences: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Say in one sentence why the measurement has this status.

        By the first part that failed, why nothing was measured, the first bad finding, or
        what was measured.
        """
        bad = [one for one in self.findings if one.status is not Status.PASS]
        failed = [f"{part.name}: {part.failed}" for part in self.measured.parts if part.failed]
        done = [part.name for part in self.measured.parts if part.rates or part.ceiling]
        if failed:
            return failed[0]
        if not done:
            return "; ".join(f"{part.name}: {part.skipped}" for part in self.measured.parts)
        if bad:
            return f"{bad[0].subject}: have {bad[0].have}, need {bad[0].need}: {bad[0].text}"
        return f"measured: {', '.join(done)}"

    @property
    def exit_code(self) -> int:
        """The worst finding's code; UNKNOWN or FAIL if a part broke off or all were skipped."""
        parts = self.measured.parts
        statuses = {one.status for one in self.findings}
        if Status.FAIL in statuses:
            return exit_codes.FAIL
        none = any(part.failed for part in parts) or all(part.skipped for part in parts)
        if none or Status.UNKNOWN in statuses:
            return exit_codes.UNKNOWN
        return exit_codes.WARN if Status.WARN in statuses else exit_codes.PASS

    @property
    def status(self) -> str:
        names = {exit_codes.PASS: "pass", exit_codes.WARN: "warn", exit_codes.FAIL: "fail"}
        return names.get(self.exit_code, "unknown")


def answer_text(answer: MeasureAnswer, color: str) -> str:
    """Write the verdict, each part with its rates, and what follows."""
    paint, width = painter(color), columns()
    head = paint(answer.status.upper(), _COLOURS[answer.status])
    parts = [headed(answer.status.upper(), clean(answer.reason), width, head)]
    parts += ["\n".join(_part_lines(part, width)) for part in answer.measured.parts]
    last = [
        f"{one.check}: {one.status.value}: {one.subject}: have {one.have}, need {one.need}"
        + (f": {one.text}" if one.text else "")
        for one in answer.findings
    ]
    last += answer.consequences
    library = answer.measured.library
    said = library.reason if isinstance(library, Unknown) else library
    last.append(f"library: {said}")
    parts.append("\n".join(filled(f"- {clean(line)}", width, 2) for line in last))
    return "\n\n".join(parts)


def _part_lines(part: MeasuredPart, width: int) -> Iterator[str]:
    """Yield the text of one part: its rates and notes, or why it was not measured."""
    if part.skipped or part.failed:
        how = f"not measured: {part.skipped}" if part.skipped else f"broken off: {part.failed}"
        yield filled(f"{part.name}: {clean(how)}", width, 2)
        return
    over = "" if part.used is None else f", over {part.used.text}"
    if part.there is not None and part.there != part.used:
        over += f" (the other side: {part.there.text})"
    yield filled(f"{part.name}: {part.did}{over}", width, 2)
    if part.rates:
        heads = ("", "size", "how", "rate", "objects/s", "p50", "p99")
        yield table([_row(each) for each in part.rates], heads, right=(1, 3, 4, 5, 6), margin="  ")
    for note in (*part.notes, *(ceiling_lines(part.ceiling) if part.ceiling else ())):
        yield filled(f"  {clean(note)}", width)


def _row(one: Rate) -> Sequence[str]:
    """Return a line of the table; a time is that of one call."""
    objects = one.bytes / one.size_bytes / one.seconds if one.p50_seconds and one.bytes else 0.0
    times = map(seconds_text, (one.p50_seconds, one.p99_seconds)) if one.p50_seconds else ("", "")
    size: str = format_bytes(one.size_bytes)
    speed: str = rate_text(one.bytes_per_second)
    if one.op == "setup":
        size = speed = ""
    return (one.op, size, one.what, speed, f"{objects:.0f}" if objects else "", *times)


def answer_object(answer: MeasureAnswer) -> dict[str, Any]:
    """Return the answer of ``schemas/measure-v1.schema.json``, with its findings."""
    measured = answer.measured
    return {
        "findings": [
            finding_object(one, text=one.text, formula=one.formula) for one in answer.findings
        ],
        **fields(measured, "library", "budget_seconds", "spend_bytes", "peer", "tokens_per_second"),
        "parts": [_part_object(part) for part in measured.parts],
        "consequences": list(answer.consequences),
    }


def _part_object(part: MeasuredPart) -> dict[str, Any]:
    """Build one entry of ``parts`` in ``schemas/measure-v1.schema.json``."""
    outcome = "skipped" if part.skipped else "failed" if part.failed else "measured"
    return {
        "part": part.name,
        "outcome": outcome,
        "reason": part.skipped or part.failed or None,
        "did": part.did or None,
        **{
            name: None if used is None else plain(used)
            for name, used in (("used", part.used), ("there", part.there))
        },
        "notes": list(part.notes),
        "ceiling": None if part.ceiling is None else ceiling_object(part.ceiling),
        "rates": [
            {**plain(each), "bytes_per_second": each.bytes_per_second} for each in part.rates
        ],
    }
