"""``fleet observe``: what runs on each node, held against what was predicted, folded over nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from signal import SIGINT
from typing import NamedTuple

from preflight.base.output import Progress
from preflight.fleet.base.decode import Json
from preflight.fleet.base.text import Paint, painted, plural
from preflight.fleet.remote.answers import (
    NO_VERDICT,
    answer_document,
    finding_lines,
    findings_of,
    on_nodes,
    trouble,
)
from preflight.fleet.remote.program import Program, Question, SshNodes
from preflight.fleet.remote.reply import NodeReply
from preflight.fleet.reports.rows import EXIT_CODES, INTERRUPTED, FleetFinding, OnNodes, worst


class FleetObservation(NamedTuple):
    """What each node said: its findings that are no pass, and how many programs run there.

    stopped: the signal that ended it, 0 for none.
    """

    by_node: Mapping[str, tuple[tuple[FleetFinding, ...], int]]
    stopped: int = 0

    @property
    def findings(self) -> list[OnNodes]:
        return on_nodes(
            (finding, node) for node, (findings, _) in self.by_node.items() for finding in findings
        )

    @property
    def status(self) -> str:
        return worst({each.finding.status for each in self.findings}, "pass")

    @property
    def exit_code(self) -> int:
        return 128 + self.stopped if self.stopped else EXIT_CODES[self.status]

    @property
    def verdict(self) -> str:
        good = sum(not findings for findings, _ in self.by_node.values())
        programs = sum(count for _, count in self.by_node.values())
        nodes = plural(len(self.by_node), "node")
        return f"{nodes}, {plural(programs, 'program')}: as predicted on {plural(good, 'node')}"


def observe_fleet(
    nodes: Sequence[str], record: bytes | None, where: SshNodes, program: Program
) -> FleetObservation:
    """Ask every node what runs there. record: of the launch. Raises UsageError."""
    from preflight.fleet.remote.engine import RunInterruptedError, ask_or_carry

    by_node: dict[str, tuple[tuple[FleetFinding, ...], int]] = {}
    progress = Progress()

    def question(carried: bool) -> Question:
        words = ("observe", "--json", *(["-"] if record is not None else []))
        return program.question(words, record or b"", carried)

    def take(reply: NodeReply) -> None:
        document = answer_document(reply, "observe", where.timeout_seconds)
        by_node[reply.node] = _of_node(document)

    def show() -> None:
        progress.show(f"{len(by_node)} of {len(nodes)} nodes answered")

    stopped = 0
    try:
        ask_or_carry(list(nodes), program.carry, question, where, take, show)
    except (RunInterruptedError, KeyboardInterrupt) as signalled:
        stopped = int(signalled.args[0]) if signalled.args else SIGINT
    finally:
        progress.clear()
    none = (trouble(INTERRUPTED, "interrupted before it answered"),), 0
    return FleetObservation({node: by_node.get(node, none) for node in nodes}, stopped)


def _of_node(document: Json | FleetFinding) -> tuple[tuple[FleetFinding, ...], int]:
    """Return a node's findings, and how many programs run there; nothing that runs is a finding."""
    if isinstance(document, FleetFinding):
        return (document,), 0
    programs = len(document["answer"]["programs"])
    findings = tuple(findings_of(document))
    if not programs and not findings:
        findings = (trouble(NO_VERDICT, str(document["reason"])),)
    return findings, programs


def observation_object(answer: FleetObservation) -> Json:
    """Return the answer of ``schemas/fleet-observe-v1.schema.json``."""
    return {
        "findings": [each.as_object() for each in answer.findings],
        "nodes": [
            {"node": node, "programs": programs, "findings": len(findings)}
            for node, (findings, programs) in answer.by_node.items()
        ],
    }


def observation_text(answer: FleetObservation, paint: Paint, verbosity: int) -> str:
    """Write the verdict, and each finding with its nodes."""
    lines = [painted(paint, answer.status, answer.verdict, answer.status.upper())]
    if verbosity >= 0:
        lines += finding_lines(answer.findings, paint)
    return "\n".join(lines)
