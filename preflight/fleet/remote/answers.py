"""The JSON answer of one command on a node, and the findings in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from preflight.base.one_line import clean
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import grouped
from preflight.fleet.remote.reply import NodeReply, why_none
from preflight.fleet.reports.rows import REPORT, STATUSES, FleetFinding, OnNodes

NO_VERDICT = "fleet.no-verdict"


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
