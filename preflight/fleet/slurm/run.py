"""Runs ``mooncake-preflight fleet run``: every node judged under Slurm, and one answer of it.

The launch goes to every node on standard input, which srun copies to each task: nothing of it has
to lie on a shared file system. The script is that of ``fleet check``, so the answers are alike.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from preflight.base.output import Progress
from preflight.base.usage_error import UsageError
from preflight.fleet.base.decode import Json
from preflight.fleet.base.node_sets import fold
from preflight.fleet.merge.command import Shown, answer, prepare
from preflight.fleet.node.records import START
from preflight.fleet.node.report import absent
from preflight.fleet.remote.program import COMMAND, SAYS_END, Program, option_words
from preflight.fleet.remote.reply import (
    INTERRUPTED,
    REPORT,
    TIMEOUT,
    NodeReply,
    lacks_tool,
    quoted,
    report_of,
)
from preflight.fleet.remote.sent_launch import Sent, sent_launch
from preflight.fleet.slurm.nodes import (
    JobNodes,
    NodeState,
    job_nodes,
    read_sinfo,
    states_of,
    unreachable,
)
from preflight.fleet.slurm.srun import (
    ON_NODE,
    SrunErrors,
    SrunOutput,
    StepInterruptedError,
    TaskOutput,
    by_node,
    complaints,
    run_step,
    srun_words,
)
from preflight.inputs.launch_words import Chosen, LaunchWords

# The finding that stands for a node to which Slurm does not get.
SLURM = "fleet.slurm"
# What a node may take of its time to read itself: the rest is Python, and the way back.
_MOST_READING_SECONDS = 10.0
_OVERHEAD_SECONDS = 5.0
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
# srun passes standard input on once all tasks have started, or none of them.
_TASK = f"""\
echo "{ON_NODE}$SLURMD_NODENAME"
own=${{TMPDIR:-/tmp}}/mooncake-preflight.$1.$SLURMD_NODENAME
rm -rf "$own"
mkdir -m 700 "$own" || exit 1
(TMPDIR=$own; export TMPDIR; {COMMAND})
rm -rf "$own"
"""
_NO_STATE = NodeState("", "")
# How the script says that it was ended, and did not end by itself (128 + SIGTERM, SIGKILL).
_WAS_ENDED = (b"143", b"137")


def run_fleet_run(
    launch: LaunchWords,
    *,
    node_set: str | None,
    timeout_seconds: float,
    queue_seconds: int,
    srun_options: str,
    program: Program,
    chosen: Chosen,
    shown: Shown,
) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    job = job_nodes(node_set, os.environ)
    options = option_words("--srun-options", srun_options)
    reading = max(1.0, min(_MOST_READING_SECONDS, timeout_seconds - _OVERHEAD_SECONDS))
    sent = sent_launch(launch, reading, chosen)
    prepare(shown)
    token = os.urandom(8).hex()
    run = _SlurmRun(job, timeout_seconds, queue_seconds, options, sent, program, token, {}, {})
    reports, stopped = run.gather()
    return answer(reports, shown, stopped)


class _SlurmRun(NamedTuple):
    """One question to all nodes. node_seconds: of one node, from its start to its end.

    queue_seconds: for an allocation. token: in the names of its folders on the nodes. replies,
    absences: by node, what came back, or the report that stands for it.
    """

    job: JobNodes
    node_seconds: float
    queue_seconds: int
    options: tuple[str, ...]
    sent: Sent
    program: Program
    token: str
    replies: dict[str, NodeReply]
    absences: dict[str, Json]

    def gather(self) -> tuple[list[Json], int]:
        """Return one report of each node, in the order of the nodes; and the signal that ended it,
        or 0.

        Raises UsageError where Slurm refuses the question itself.
        """
        nodes = self.job.nodes
        away = unreachable(nodes, self.job.in_allocation, states_of(read_sinfo()))
        for node, state in away.items():
            text = f"Slurm gives it no job: {state.text}"
            self._absent(node, SLURM, text, state.text, "a node in service")
        stopped = 0
        try:
            here = [node for node in nodes if node not in away]
            self._ask(here, self.program.carry == "always")
            if self.program.carry == "auto":
                lacking = [node for node, reply in self.replies.items() if lacks_tool(reply)]
                self._ask(lacking, True)
        except StepInterruptedError as interrupted:
            stopped = interrupted.signal
        for node in nodes:
            if node in self.replies:
                self.absences[node] = report_of(self.replies[node], self.node_seconds)
            elif node not in self.absences:
                self._absent(node, INTERRUPTED, "interrupted before it was asked")
        return [self.absences[node] for node in nodes], stopped

    def _absent(self, node: str, check: str, text: str, have: str = "", need: str = "") -> None:
        self.absences[node] = absent(node, check, text, have, need)

    def _ask(self, nodes: Sequence[str], carried: bool) -> None:
        """Run one job step, and others for nodes whose tasks ended because another node did."""
        left = list(nodes)
        content = self.program.content(self.sent.files, self.sent.words, carried) if left else b""
        inside = self.job.in_allocation
        start_seconds = (0 if inside else self.queue_seconds) + _LAUNCH_SECONDS + self.node_seconds
        task = ("/bin/sh", "-c", _TASK, "sh", self.token)
        for _ in range(_MOST_ROUNDS):
            if not left:
                return
            words = srun_words(
                fold(left), len(left), inside, self.queue_seconds, self.options, task
            )
            progress = Progress()
            progress.show(f"asking {len(left)} nodes through srun")
            try:
                printed = run_step(words, content, start_seconds, self.node_seconds)
            except StepInterruptedError as interrupted:
                self._sort_out(interrupted.printed, left, INTERRUPTED)
                raise
            finally:
                progress.clear()
            left = self._sort_out(printed, left, TIMEOUT if printed.out_of_time else "")
        for node in left:
            text = f"srun ended its task {_MOST_ROUNDS} times on behalf of other nodes"
            self._absent(node, SLURM, text)

    def _sort_out(self, printed: SrunOutput, nodes: Sequence[str], ended_by_us: str) -> list[str]:
        """Note what came of each node, and return those to be asked again.

        ended_by_us: the finding for those that were still at it, "" where the step ended by itself.
        """
        tasks = by_node(printed.output, printed.errors)
        words = complaints(printed.errors)
        # A prolog that failed has drained its node by now, with a reason.
        now = states_of(read_sinfo()) if words.not_launched else {}
        if not (tasks or words.not_launched or words.ended or ended_by_us):
            return self._refused(words.general, nodes)
        again = []
        for node in nodes:
            own = tasks.get(node)
            if own is not None and _ended(own, ended_by_us):
                self.replies[node] = NodeReply(node, own.lines, own.error, 0)
            elif node in words.not_launched:
                text = f"Slurm starts nothing there: {words.not_launched[node]}"
                state = now.get(node, _NO_STATE)  # one that does not say why is no news
                why = state.text if state.out_of_service else ""
                self._absent(node, SLURM, text, why, "a task that starts")
            elif ended_by_us == INTERRUPTED:
                self._absent(node, INTERRUPTED, "interrupted before it answered")
            elif ended_by_us:
                what = "no answer" if own is None else "its task ran, and no report came"
                self._absent(node, TIMEOUT, f"{what} within {self.node_seconds:g} s")
            elif words.not_launched and words.aborted:
                again.append(node)
            else:
                self.absences[node] = _silent(node, own, words)
        return again

    def _refused(self, said: str, nodes: Sequence[str]) -> list[str]:
        """Return the nodes that a busy one has kept from a job, where srun started nothing at all.

        Raises UsageError where srun gives another reason than busy nodes.
        """
        states = states_of(read_sinfo())
        if not any(words in said for words in _NO_ROOM):
            unknown = [node for node in nodes if states and node not in states]
            of_nodes = f": no node of Slurm is called {fold(unknown)}" if unknown else ""
            raise UsageError(f"srun: {said or 'it ended without a message'}{of_nodes}")
        busy = [node for node in nodes if states.get(node, _NO_STATE).busy]
        waited = f"Slurm gave no job there within {self.queue_seconds} s"
        for node in busy or nodes:
            text = f"{waited} ({said}): give it longer with --queue-timeout"
            state = states.get(node, _NO_STATE).text
            self._absent(node, SLURM, text, state, "a node with free resources for a job")
        return [node for node in nodes if node not in busy] if busy else []


def _ended(task: TaskOutput, ended_by_us: str) -> bool:
    """Return whether a node came to its own end, and was not ended by us."""
    ends = [line.removeprefix(SAYS_END).strip() for line in task.lines if line.startswith(SAYS_END)]
    if not ends:
        return False
    reported = any(line.startswith(START) for line in task.lines)
    return reported or not (ended_by_us and ends[-1] in _WAS_ENDED)


def _silent(node: str, own: TaskOutput | None, words: SrunErrors) -> Json:
    """Return the report of a node whose task ended by itself, or that was not heard at all."""
    how = words.ended.get(node, "")
    if own is not None or how:
        last = next((line for line in reversed(own.error) if line), b"") if own else b""
        text = f"its task ended without a report: {how or 'no reason given'}"
        return absent(node, REPORT, f"{text}: {quoted(last)}" if last else text)
    return absent(node, SLURM, words.general or "srun ended without a message of this node")
