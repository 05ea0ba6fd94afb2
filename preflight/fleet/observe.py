"""``fleet observe``: what runs on each node, held against what was predicted, folded over nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from preflight.base.output import Progress
from preflight.fleet.base.decode import Json
from preflight.fleet.base.text import plural
from preflight.fleet.remote.program import Program, Question, SshNodes
from preflight.fleet.remote.reply import (
    NO_VERDICT,
    NodeReply,
    answer_document,
    findings_of,
    on_nodes,
    trouble,
)
from preflight.fleet.reports.answers import FleetAnswer
from preflight.fleet.reports.rows import INTERRUPTED, FleetFinding


class NodeObservation(NamedTuple):
    """The findings of one node that are no pass, and how many programs run on the node."""

    findings: tuple[FleetFinding, ...]
    programs: int = 0


def observe_fleet(
    nodes: Sequence[str], record: bytes | None, where: SshNodes, program: Program
) -> FleetAnswer:
    """Ask every node what runs there. record: of the launch. Raises UsageError."""
    from preflight.fleet.remote.engine import ask_or_carry, until_stopped

    by_node: dict[str, NodeObservation] = {}
    progress = Progress()

    def question(carried: bool) -> Question:
        words = ("observe", "--json", *(["-"] if record is not None else []))
        return program.question(words, record or b"", carried)

    def take(reply: NodeReply) -> None:
        document = answer_document(reply, "observe", where.timeout_seconds)
        by_node[reply.node] = _of_node(document)

    def show() -> None:
        progress.show(f"{len(by_node)} of {len(nodes)} nodes answered")

    with until_stopped(progress) as stopped:
        ask_or_carry(list(nodes), program.carry, question, where, take, show)
    none = NodeObservation((trouble(INTERRUPTED, "interrupted before it answered"),))
    return fleet_answer({node: by_node.get(node, none) for node in nodes}, *stopped)


def _of_node(document: Json | FleetFinding) -> NodeObservation:
    """Return a node's findings and programs; that no program runs on the node is a finding."""
    if isinstance(document, FleetFinding):
        return NodeObservation((document,))
    programs = len(document["answer"]["programs"])
    findings = tuple(findings_of(document))
    if not programs and not findings:
        findings = (trouble(NO_VERDICT, str(document["reason"])),)
    return NodeObservation(findings, programs)


def fleet_answer(by_node: Mapping[str, NodeObservation], stopped: int = 0) -> FleetAnswer:
    """Return the answer about all nodes. stopped: the signal that ended it, 0 for none."""
    good = sum(not seen.findings for seen in by_node.values())
    programs = plural(sum(seen.programs for seen in by_node.values()), "program")
    verdict = f"{plural(len(by_node), 'node')}, {programs}: as predicted on {plural(good, 'node')}"
    findings = [(each, node) for node, seen in by_node.items() for each in seen.findings]
    nodes = [
        {"node": node, "programs": seen.programs, "findings": len(seen.findings)}
        for node, seen in by_node.items()
    ]
    return FleetAnswer(on_nodes(findings), verdict, {"nodes": nodes}, stopped=stopped)
