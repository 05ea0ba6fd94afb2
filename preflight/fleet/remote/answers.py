"""The JSON answer of one command on a node, and the answer that is folded of many."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from preflight.base.envelope import envelope
from preflight.base.one_line import clean
from preflight.base.output import columns, painter, say, say_json
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import (
    Paint,
    cut,
    grid,
    grouped,
    have_and_need,
    nodes_text,
    painted,
    rest_of,
)
from preflight.fleet.remote.reply import NodeReply, why_none
from preflight.fleet.reports.rows import EXIT_CODES, REPORT, STATUSES, FleetFinding, OnNodes, worst
from preflight.render.text import filled

NO_VERDICT = "fleet.no-verdict"
# The whole is in --json, or with -v.
MOST_ROWS = 30


def answer_document(reply: NodeReply, schema: str, timeout_seconds: float) -> Json | FleetFinding:
    """Return the answer of ``schema`` ("measure") in a reply, or the finding that stands for it.

    The answer may stand between words of a shell's profile or of a library.
    """
    text = b"\n".join(reply.lines).decode("utf-8", "replace")
    start = re.search(rf'\{{\s*"schema": "mooncake-preflight/{schema}/v1"', text)
    if reply.end is None or start is None:
        check, why = why_none(reply, timeout_seconds)
        return trouble(check, why)
    try:
        document: Json = json.JSONDecoder().raw_decode(text, start.start())[0]
    except ValueError as error:
        return trouble(REPORT, f"its answer is cut short: {clean(str(error))}")
    if document["status"] == "error" or document["answer"] is None:
        return trouble(NO_VERDICT, clean(str(document["reason"])))
    return document


def trouble(check: str, why: str) -> FleetFinding:
    """Return the finding that stands for a node, or a pair, that gave no answer."""
    return FleetFinding(check, "unknown", "node", text=why)


def findings_of(document: Json) -> Iterator[FleetFinding]:
    """Yield the findings of an answer that are no pass, without process ids, which no two share."""
    for each in document["findings"]:
        if each["status"] in ("fail", "unknown", "warn"):
            subject = ", ".join(re.sub(r", pid \d+$", "", one["name"]) for one in each["subjects"])
            have, need = ((each[key] or {"text": ""})["text"] for key in ("have", "need"))
            yield FleetFinding(each["check"], each["status"], subject, have, need, each["text"])


def on_nodes(findings: Iterable[tuple[FleetFinding, str]]) -> list[OnNodes]:
    """Return each finding with all its nodes, the worst first."""
    folded = [OnNodes(key, in_order(set(names))) for key, names in grouped(findings).items()]
    return sorted(folded, key=lambda each: STATUSES.index(each.finding.status))


class FleetAnswer(NamedTuple):
    """The answer of a command over nodes.

    verdict: in words, behind its status. parts: of the JSON, beside the findings. heads, rows: of
    the table in the text. stopped: the signal that ended the command, 0 for none.
    """

    findings: Sequence[OnNodes]
    verdict: str
    parts: Json
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    stopped: int = 0

    @property
    def status(self) -> str:
        return worst({each.finding.status for each in self.findings}, "pass")

    @property
    def exit_code(self) -> int:
        return 128 + self.stopped if self.stopped else EXIT_CODES[self.status]


def say_answer(answer: FleetAnswer, schema: str, as_json: bool, color: str, verbosity: int) -> int:
    """Print the answer; return its exit code. verbosity: below 0 the verdict alone, above 0 all."""
    if as_json:
        parts = {"findings": [each.as_object() for each in answer.findings], **answer.parts}
        code, status, reason = answer.exit_code, answer.status, answer.verdict
        say_json(envelope(schema, code, parts, word=status, reason=reason))
    else:
        say("\n".join(answer_lines(answer.status, answer, painter(color), verbosity)))
    return answer.exit_code


def answer_lines(status: str, answer: FleetAnswer, paint: Paint, verbosity: int) -> Iterator[str]:
    """Yield the verdict, each finding with its nodes, amounts and text, and the table."""
    yield painted(paint, status, answer.verdict, status.upper())
    if verbosity < 0:
        return
    for finding, names in answer.findings:
        head = f"{finding.check} on {nodes_text(names)}: {clean(finding.subject)}"
        yield painted(paint, finding.status, head)
        for text in (have_and_need(finding.have, finding.need, 200), cut(finding.text, 300)):
            if text:
                yield filled(f"      {text}", columns(), 0)
    shown = answer.rows if verbosity > 0 else answer.rows[:MOST_ROWS]
    if shown:
        yield from grid(answer.heads, shown)
    yield from rest_of(len(shown), answer.rows)
