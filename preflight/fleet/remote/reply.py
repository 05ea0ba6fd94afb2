"""A node's report or answer, among other words, or the finding that stands for a node without."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from preflight.base.bundle import OLD_PYTHON
from preflight.base.one_line import clean
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import in_order
from preflight.fleet.base.text import grouped
from preflight.fleet.remote.program import SAYS
from preflight.fleet.reports.reading import ReportReader
from preflight.fleet.reports.rows import (
    INTERRUPTED,
    NO_VERDICT,
    PYTHON,
    REPORT,
    SSH,
    STATUSES,
    TIMEOUT,
    TOOL,
    FleetFinding,
    NodeRow,
    OnNodes,
    Trouble,
    Unusable,
    absent,
    trouble,
)
from preflight.fleet.reports.sources import FoundReport, reports_in

# ssh(1): its own failure, also of a connection that breaks.
SSH_FAILED = 255
# EX_PROTOCOL of sysexits.h: ClusterShell's, of all nodes behind a gateway that ended.
GATEWAY_FAILED = 76
# What a shell says of a program that is not there.
NOT_FOUND = 127
# Of what a foreign program said; more is no sentence.
LONGEST_LINE = 300
_STARTED = f"{SAYS} start".encode()
_END = re.compile(rf"{SAYS} end ([0-9]+)\s*\Z".encode())


class NodeReply(NamedTuple):
    """The output of a node.

    Attributes:
        lines: Of standard output.
        error: The last lines of standard error.
        code: Ssh's exit code, None if the node was stopped (``timed_out``, or an interruption).
        carried: The program was sent along.
    """

    name: str
    lines: tuple[bytes, ...]
    error: tuple[bytes, ...] = ()
    code: int | None = None
    timed_out: bool = False
    carried: bool = False

    @property
    def started(self) -> bytes | None:
        """Return the line that the node printed before the program: the connection's addresses."""
        lines = [line for line in self.lines if line.startswith(_STARTED)]
        return lines[0].removeprefix(_STARTED).strip() if lines else None

    @property
    def end(self) -> int | None:
        """Return the exit code of the program; None if it never ended."""
        endings = [match for line in self.lines if (match := _END.search(line)) is not None]
        return int(endings[-1][1]) if endings and self.started is not None else None

    @property
    def last_error(self) -> str:
        """``: `` and the last line of standard error that says something; "" without one."""
        lines = [line for line in map(_clean, self.error) if line]
        return f": {lines[-1]}" if lines else ""

    @property
    def reports(self) -> list[FoundReport | Unusable]:
        """Return the answers of check among the lines, broken ones included."""
        texts = reports_in(self.name, b"\n".join(self.lines))
        none = (Trouble.EMPTY, Trouble.FOREIGN)
        return [x for x in texts if isinstance(x, FoundReport) or x.trouble not in none]


class NodeAnswer(NamedTuple):
    """What is known of a node.

    Attributes:
        document: Its report as it came, None if it gave none.
    """

    row: NodeRow
    document: Json | None = None


def lacks_tool(reply: NodeReply) -> bool:
    """Tell whether the node lacks this program, and did not get it with the question."""
    return reply.end == NOT_FOUND and not reply.carried


def node_answer(reply: NodeReply, timeout_seconds: float, reader: ReportReader) -> NodeAnswer:
    """Return a node's last usable report, named as the node was asked, or why there is none.

    Never raises.

    Args:
        timeout_seconds: How long the node had, for the text.
    """
    name, reports = reply.name, reply.reports if reply.end is not None else []
    usable = [report for report in reports if isinstance(report, FoundReport)] or reports
    if not usable:
        return NodeAnswer(absent(name, *why_no_report(reply, timeout_seconds)))
    last = usable[-1]
    row = last if isinstance(last, Unusable) else reader.read(last, name)
    if isinstance(row, Unusable):
        return NodeAnswer(absent(name, REPORT, f"its report is {row.trouble.value}: {row.reason}"))
    assert isinstance(last, FoundReport)
    if last.document["status"] == "error":
        why = clean(str(last.document.get("reason")))[:LONGEST_LINE]
        text = f"the program ended with an error and no verdict: {why}"
        return NodeAnswer(absent(name, REPORT, text))
    return NodeAnswer(row._replace(origin=""), last.document)


def why_no_report(reply: NodeReply, timeout_seconds: float) -> tuple[str, str]:
    """Return (check's id, reason) of the finding on a node without a report.

    Args:
        timeout_seconds: How long the node had, for the text.
    """
    end, error = reply.end, reply.last_error
    if reply.timed_out:
        begun = "the connection was made, and no report came"
        what = "no answer" if reply.started is None else begun
        return TIMEOUT, f"{what} within {timeout_seconds:g} s"
    if reply.code is None:
        return INTERRUPTED, "interrupted before it answered"
    if reply.started is None:
        return _not_reached(reply)
    if end is None:
        inside = any(isinstance(report, Unusable) for report in reply.reports)
        what = "in the middle of its report" if inside else f"before its report came{error}"
        return REPORT, f"the connection ended {what}"
    if end == NOT_FOUND and reply.carried:
        return PYTHON, f"no Python there to run what is carried{error}: give --remote-python"
    if end == NOT_FOUND:
        return TOOL, f"the program is not on the node{error}: give --remote-command, or --carry"
    if reply.carried and OLD_PYTHON in error:
        return PYTHON, f"{error.removeprefix(': ')}: give another with --remote-python"
    return REPORT, f"the program ended with exit code {end} and no report{error}"


def _not_reached(reply: NodeReply) -> tuple[str, str]:
    """Return (check's id, reason) of the finding on a node on which nothing was started."""
    error = reply.last_error
    if reply.code == GATEWAY_FAILED and not reply.lines:
        return SSH, f"the gateway of ClusterShell's tree that leads to it gave up{error}"
    if reply.code == SSH_FAILED:
        lines = [line for line in map(_clean, reply.error) if line]  # of a timeout two lines
        return SSH, "; ".join(lines[-2:]).removeprefix("ssh: ") or "ssh gave no reason"
    # A shell that lets nobody in says so on either (nologin: on standard output).
    sentence = error or reply._replace(error=reply.lines).last_error
    return REPORT, f"the login shell ended with exit code {reply.code}{sentence}"


def _clean(line: bytes) -> str:
    return clean(line.decode("utf-8", "replace").strip())[:LONGEST_LINE]


def answer_document(reply: NodeReply, schema: str, timeout_seconds: float) -> Json | FleetFinding:
    """Return the first answer of ``schema`` ("measure") in a reply.

    If the reply has none, a broken one, or one that ended with an error, return the finding that
    says why.
    """
    wanted = f"mooncake-preflight/{schema}/v1"
    reports = [
        report
        for report in reply.reports
        if isinstance(report, Unusable) or report.document["schema"] == wanted
    ]
    if reply.end is None or not reports:
        return trouble(*why_no_report(reply, timeout_seconds))
    first = reports[0]
    if isinstance(first, Unusable):
        return trouble(REPORT, f"its answer is {first.trouble.value}: {first.reason}")
    document: Json = first.document
    if document["status"] == "error" or document["answer"] is None:
        return trouble(NO_VERDICT, clean(str(document["reason"])))
    return document


def findings_of(document: Json) -> Iterator[FleetFinding]:
    """Yield the findings of an answer that fail, are unknown or warn.

    Process ids are removed from subjects, so that findings of several nodes can be equal.
    """
    for each in document["findings"]:
        if each["status"] in ("fail", "unknown", "warn"):
            subject = ", ".join(re.sub(r", pid \d+$", "", who["name"]) for who in each["subjects"])
            have, need = ((each[key] or {"text": ""})["text"] for key in ("have", "need"))
            yield FleetFinding(each["check"], each["status"], subject, have, need, each["text"])


def on_nodes(findings: Iterable[tuple[FleetFinding, str]]) -> list[OnNodes]:
    """Return each finding with all its nodes, the worst first."""
    folded = [OnNodes(key, in_order(set(names))) for key, names in grouped(findings).items()]
    return sorted(folded, key=lambda each: STATUSES.index(each.finding.status))
