"""The answer of a command over nodes, and how it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from preflight.base.envelope import envelope
from preflight.base.one_line import clean, shortened
from preflight.base.output import columns, painter, say, say_json
from preflight.base.text import filled
from preflight.fleet.base.decode import Json
from preflight.fleet.base.text import COLOURS, LONGEST_VALUE, Paint, nodes_text, rest_of
from preflight.fleet.reports.rows import EXIT_CODES, FleetFinding, OnNodes, worst

# The whole is in --json, or with -v.
MOST_ROWS = 30


class FleetAnswer(NamedTuple):
    """The answer of a command over nodes.

    Attributes:
        verdict: In words, behind its status.
        parts: Of the JSON, beside the findings.
        heads, rows: Of the table in the text.
        stopped: The signal that ended the command, 0 for none.
        unsure: What was not compared keeps the answer from a pass.
    """

    findings: Sequence[OnNodes]
    verdict: str
    parts: Json
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    stopped: int = 0
    unsure: bool = False

    @property
    def status(self) -> str:
        statuses = {each.finding.status for each in self.findings}
        return worst(statuses | {"unknown"} if self.unsure else statuses, "pass")

    @property
    def exit_code(self) -> int:
        return 128 + self.stopped if self.stopped else EXIT_CODES[self.status]


def show_answer(answer: FleetAnswer, schema: str, as_json: bool, color: str, verbosity: int) -> int:
    """Print an answer; return its exit code.

    Args:
        verbosity: Below 0 only the verdict, above 0 all.
    """
    if as_json:
        parts = {"findings": [each.as_object() for each in answer.findings], **answer.parts}
        word, reason = answer.status, answer.verdict
        say_json(envelope(schema, answer.exit_code, parts, word=word, reason=reason))
    else:
        say("\n".join(_lines(answer, painter(color), verbosity)))
    return answer.exit_code


def finding_lines(finding: FleetFinding, width: int, most: int = LONGEST_VALUE) -> list[str]:
    """Return a finding's amounts (each of at most ``most`` characters) and its text, as lines."""
    pairs = (("have", finding.have), ("need", finding.need))
    amounts = ", ".join(f"{word} {shortened(text, most)}" for word, text in pairs if text)
    texts = (amounts, shortened(finding.text, 300))
    return [filled(f"      {text}", width, 0) for text in texts if text]


def _lines(answer: FleetAnswer, paint: Paint, verbosity: int) -> Iterator[str]:
    """Yield the verdict; unless ``verbosity`` is below 0, also each finding, and the table."""
    yield f"{paint(answer.status.upper(), COLOURS[answer.status])}: {answer.verdict}"
    if verbosity < 0:
        return
    for finding, names in answer.findings:
        status = paint(finding.status, COLOURS[finding.status])
        yield f"{status}: {finding.check} on {nodes_text(names)}: {clean(finding.subject)}"
        yield from finding_lines(finding, columns(), 200)
    shown = answer.rows if verbosity > 0 else answer.rows[:MOST_ROWS]
    if shown:
        from tabulate import tabulate

        table = tabulate(shown, answer.heads, tablefmt="plain", disable_numparse=True)
        yield from (line.rstrip() for line in table.splitlines())
    yield from rest_of(len(shown), answer.rows)
