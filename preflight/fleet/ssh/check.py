"""Runs ``mooncake-preflight fleet check``: every node judged over ssh, and one answer of it."""

from __future__ import annotations

import sys
from signal import SIGINT

from preflight.base.output import Progress
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds, within
from preflight.fleet.base.decode import Json
from preflight.fleet.merge.command import Shown, answer, keep, prepare
from preflight.fleet.remote.program import Program, SshNodes
from preflight.fleet.remote.reply import NodeReply, report_of
from preflight.fleet.remote.sent_launch import sent_launch
from preflight.inputs.launch_words import Chosen, LaunchWords

# The extra "fleet", by its package's own name: an extra is found only where its package is.
NO_CLUSTERSHELL = (
    "ClusterShell, which reaches the nodes, is not installed: "
    f"{sys.executable} -m pip install 'ClusterShell>=1.9'; Slurm's nodes are asked without it "
    "(fleet run), Kubernetes' too (fleet manifest)"
)
# A node is given so long beside what its reading takes: python, ssh, the way there and back.
_OVERHEAD_SECONDS = 5.0


def run_fleet_check(
    launch: LaunchWords, where: SshNodes, program: Program, chosen: Chosen, shown: Shown
) -> int:
    """Print the answer; returns the exit code. Raises UsageError, before any node is asked."""
    nodes = nodes_of(where)
    from preflight.fleet.ssh.engine import RunInterruptedError, ask_or_carry

    if not nodes:
        raise UsageError("no node is left to ask: give --nodes 'gpu[001-064]' or --nodes-file")
    # What a node may take to read itself, so that it can still say what it could not read.
    left = where.timeout_seconds - where.connect_seconds - _OVERHEAD_SECONDS
    files, words = sent_launch(launch, max(1.0, min(10.0, left)), chosen)
    prepare(shown)
    progress = Progress(shown.verbosity >= 0)
    reports: dict[str, Json] = {}

    def show() -> None:
        progress.show(f"{len(reports)} of {len(nodes)} nodes answered")

    def take(reply: NodeReply) -> None:
        report = reports[reply.node] = report_of(reply, where.timeout_seconds)
        # At once: what is there stays there, whatever becomes of this process.
        keep(report, shown)

    def content(carried: bool) -> bytes:
        return program.content(files, words, carried)

    stopped = 0
    try:
        ask_or_carry(nodes, program.carry, content, where, take, show)
    except (RunInterruptedError, KeyboardInterrupt) as signalled:
        stopped = int(signalled.args[0]) if signalled.args else SIGINT
        for node in nodes:
            if node not in reports:
                take(NodeReply(node, ()))
    finally:
        progress.clear()
    return answer([reports[node] for node in nodes], shown, stopped)


def nodes_of(where: SshNodes) -> list[str]:
    """Return the nodes that are named, in order.

    Raises UsageError: where ClusterShell is missing too.
    """
    try:
        from preflight.fleet.ssh.engine import named_nodes
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ClusterShell":
            raise
        raise UsageError(NO_CLUSTERSHELL) from None
    sets = [*where.nodes, *(one for file in where.nodes_files for one in sets_of(file))]
    return named_nodes(sets, where.exclude)


def sets_of(path: str) -> list[str]:
    """Read node sets, one a line; what follows # is for people."""

    def read() -> list[str]:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.partition("#")[0].strip() for line in file]

    try:
        lines = within(limit_seconds(), f"--nodes-file {path}", read)
    except OSError as error:
        raise UsageError(f"--nodes-file {path}: {error.strerror}") from None
    return [line for line in lines if line]
