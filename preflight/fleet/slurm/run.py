"""Asks the nodes of a Slurm cluster for their reports, through srun.

The launch goes to every node on standard input, which srun copies to each task: nothing of it has
to lie on a shared file system. The script is that of ``fleet check``, so the answers are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from preflight.base.usage_error import UsageError
from preflight.fleet.base.node_sets import fold
from preflight.fleet.node.records import START, Json
from preflight.fleet.node.reply import (
    INTERRUPTED,
    REPORT,
    TIMEOUT,
    NodeReply,
    lacks_tool,
    quoted,
    report_of,
)
from preflight.fleet.node.report import absent
from preflight.fleet.node.script import COMMAND, SAYS
from preflight.fleet.slurm.nodes import Asked, NodeState, unreachable
from preflight.fleet.slurm.output import ON_NODE, Complaints, Said, by_node, complaints
from preflight.fleet.slurm.step import Limits, Step, StepInterruptedError, run_step, srun_words

# The finding that stands for a node to which Slurm does not get.
SLURM = "fleet.slurm"
# A slurmd that does not answer ends the tasks of all other nodes, and a busy node keeps them from
# a job: they are asked again without it. Each round leaves out all that are known by then.
_MOST_ROUNDS = 4
# What srun says where a later time may have room.
_NO_ROOM = ("Requested nodes are busy", "Required node not available")
# Beside what the node may take: srun's way to thousands of nodes, one of which may hang. It gives
# up a slurmd after some MessageTimeouts (10 s by default; 15 s were measured with 5).
_LAUNCH_SECONDS = 60.0

# Slurm ends a task by SIGKILL where another node's slurmd does not answer. What it leaves there is
# removed when the node is asked again: $1 is one name for all rounds, which nobody else can guess.
_TASK = f"""\
echo "{ON_NODE}$SLURMD_NODENAME"
own=${{TMPDIR:-/tmp}}/mooncake-preflight.$1.$SLURMD_NODENAME
rm -rf "$own"
mkdir -m 700 "$own" || exit 1
(TMPDIR=$own; export TMPDIR; {COMMAND})
rm -rf "$own"
"""
# srun passes standard input on once all tasks have started, or none of them.
_BEGUN = f"{SAYS} start".encode()
_END = f"{SAYS} end ".encode()
_NO_STATE = NodeState("", "")
# How the script says that it was ended, and did not end by itself (128 + SIGTERM, SIGKILL).
_WAS_ENDED = (b"143", b"137")


class SlurmRequest(NamedTuple):
    """read_states: as Slurm has them now. node_seconds: of one node, from its start to its end.

    queue_seconds: for an allocation. content: what is sent to the nodes, with this program or
    without. carry: auto, always, never. token: of this run, in the names of its folders.
    """

    asked: Asked
    read_states: Callable[[], dict[str, NodeState]]
    node_seconds: float
    queue_seconds: int
    options: tuple[str, ...]
    content: Callable[[bool], bytes]
    carry: str
    token: str


class Gathered(NamedTuple):
    """One report of each node, in the order of the nodes; stopped: the signal, or 0."""

    reports: list[Json]
    stopped: int


class _Answers(NamedTuple):
    """By node: what came back, or the report that stands for it."""

    came: dict[str, NodeReply]
    stands: dict[str, Json]


def gather(request: SlurmRequest) -> Gathered:
    """Ask every node. Raises UsageError where Slurm refuses the question itself."""
    nodes = request.asked.nodes
    away = unreachable(nodes, request.asked.in_allocation, request.read_states())
    answers = _Answers({}, {})
    for node, state in away.items():
        text = f"Slurm gives it no job: {state.text}"
        answers.stands[node] = absent(node, SLURM, text, state.text, "a node in service")
    stopped = 0
    try:
        _ask(request, [node for node in nodes if node not in away], answers)
        if request.carry == "auto":
            lacking = [node for node, answer in answers.came.items() if lacks_tool(answer)]
            _ask(request, lacking, answers, carried=True)
    except StepInterruptedError as interrupted:
        stopped = interrupted.signal
    for node, reply in answers.came.items():
        answers.stands[node] = report_of(reply, request.node_seconds)
    asked = "interrupted before it was asked"
    reports = [answers.stands.get(node) or absent(node, INTERRUPTED, asked) for node in nodes]
    return Gathered(reports, stopped)


def _ask(
    request: SlurmRequest, nodes: Sequence[str], answers: _Answers, carried: bool = False
) -> None:
    """One job step, and others for nodes whose tasks were ended on behalf of another node."""
    left = list(nodes)
    content = request.content(carried or request.carry == "always") if left else b""
    in_allocation = request.asked.in_allocation
    queue_seconds = 0 if in_allocation else request.queue_seconds
    starting = queue_seconds + _LAUNCH_SECONDS + request.node_seconds
    limits = Limits(starting, request.node_seconds)
    task = ("/bin/sh", "-c", _TASK, "sh", request.token)
    for _ in range(_MOST_ROUNDS):
        if not left:
            return
        words = srun_words(
            fold(left), len(left), in_allocation, request.queue_seconds, request.options, task
        )
        try:
            step = run_step(words, content, _BEGUN, limits)
        except StepInterruptedError as interrupted:
            _sort_out(interrupted.step, left, answers, request, INTERRUPTED)
            raise
        left = _sort_out(step, left, answers, request, TIMEOUT if step.out_of_time else "")
    for node in left:
        text = f"srun ended its task {_MOST_ROUNDS} times on behalf of other nodes"
        answers.stands[node] = absent(node, SLURM, text)


def _sort_out(
    step: Step, nodes: Sequence[str], answers: _Answers, request: SlurmRequest, ended_by_us: str
) -> list[str]:
    """Note what came of each node; returns those to be asked again.

    ended_by_us: the finding for those that were still at it, "" where the step ended by itself.
    """
    said = by_node(step.output, step.errors)
    words = complaints(step.errors)
    # A prolog that failed has drained its node by now, with a reason.
    now = request.read_states() if words.not_launched else {}
    if not (said or words.not_launched or words.ended or ended_by_us):
        return _refused(words.general, nodes, answers, request)
    again = []
    for node in nodes:
        own = said.get(node)
        if own is not None and _ended(own, ended_by_us):
            answers.came[node] = NodeReply(node, own.lines, own.error, 0)
        elif node in words.not_launched:
            text = f"Slurm starts nothing there: {words.not_launched[node]}"
            state = now.get(node, _NO_STATE)  # one that does not say why is no news
            why = state.text if state.out_of_service else ""
            answers.stands[node] = absent(node, SLURM, text, why, "a task that starts")
        elif ended_by_us == INTERRUPTED:
            answers.stands[node] = absent(node, INTERRUPTED, "interrupted before it answered")
        elif ended_by_us:
            what = "no answer" if own is None else "its task ran, and no report came"
            text = f"{what} within {request.node_seconds:g} s"
            answers.stands[node] = absent(node, TIMEOUT, text)
        elif words.not_launched and words.aborted:
            again.append(node)
        else:
            answers.stands[node] = _silent(node, own, words)
    return again


def _ended(said: Said, ended_by_us: str) -> bool:
    """Whether a node came to its end, and not to ours."""
    ends = [line.removeprefix(_END).strip() for line in said.lines if line.startswith(_END)]
    if not ends:
        return False
    reported = any(line.startswith(START) for line in said.lines)
    return reported or not (ended_by_us and ends[-1] in _WAS_ENDED)


def _silent(node: str, own: Said | None, words: Complaints) -> Json:
    """A node whose task ended by itself, or of which nothing was heard at all."""
    how = words.ended.get(node, "")
    if own is not None or how:
        last = next((line for line in reversed(own.error) if line), b"") if own else b""
        text = f"its task ended without a report: {how or 'no reason given'}"
        return absent(node, REPORT, f"{text}: {quoted(last)}" if last else text)
    return absent(node, SLURM, words.general or "srun ended without a word of this node")


def _refused(
    said: str, nodes: Sequence[str], answers: _Answers, request: SlurmRequest
) -> list[str]:
    """srun started nothing at all; returns the nodes that a busy one has kept from a job."""
    states = request.read_states()
    if not any(words in said for words in _NO_ROOM):
        unknown = [node for node in nodes if states and node not in states]
        of_nodes = f": no node of Slurm is called {fold(unknown)}" if unknown else ""
        raise UsageError(f"srun: {said or 'it ended without a word'}{of_nodes}")
    busy = [node for node in nodes if states.get(node, _NO_STATE).busy]
    waited = f"Slurm gave no job there within {request.queue_seconds} s"
    for node in busy or nodes:
        text = f"{waited} ({said}): give it longer with --queue-timeout"
        state = states.get(node, _NO_STATE).text
        answers.stands[node] = absent(node, SLURM, text, state, "a node with room for a job")
    return [node for node in nodes if node not in busy] if busy else []
