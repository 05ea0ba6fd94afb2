"""Runs ``mooncake-preflight fleet check``: every node judged over ssh, and one answer of it."""

from __future__ import annotations

from typing import NamedTuple

from preflight.base.progress import Progress
from preflight.base.usage_error import UsageError
from preflight.fleet.merge.collected import Shown, answer, interrupted, keep, prepare
from preflight.fleet.node.asked_nodes import Remote, SshNodes
from preflight.fleet.node.carry import content
from preflight.fleet.node.records import Json
from preflight.fleet.node.reply import NodeReply, lacks_tool, report_of
from preflight.fleet.node.script import COMMAND
from preflight.fleet.node.sent_launch import sent_launch
from preflight.inputs.launch_words import LaunchWords

NO_CLUSTERSHELL = (
    "ClusterShell, which reaches the nodes, is not installed: "
    "pip install 'mooncake-preflight[fleet]'"
)
# A node is given so long beside what its reading takes: python, ssh, the way there and back.
_OVERHEAD_SECONDS = 5.0


class Got(NamedTuple):
    """A report of each node, in the order of the nodes. stopped: the signal that ended it, or 0."""

    reports: list[Json]
    stopped: int


def run_fleet_check(
    launch: LaunchWords, where: SshNodes, remote: Remote, ignore: tuple[str, ...], shown: Shown
) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    got = fleet_reports(launch, where, remote, ignore, shown)
    code = answer(got.reports, shown)
    return interrupted(got.reports, got.stopped) if got.stopped else code


def nodes_of(where: SshNodes) -> list[str]:
    """The nodes that are named, in order. Raises UsageError: where ClusterShell is missing too."""
    try:
        from preflight.fleet.ssh.clush_engine import named_nodes
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ClusterShell":
            raise
        raise UsageError(NO_CLUSTERSHELL) from None
    sets = [*where.nodes, *(one for file in where.nodes_files for one in sets_of(file))]
    return named_nodes(sets, where.exclude)


def fleet_reports(
    launch: LaunchWords, where: SshNodes, remote: Remote, ignore: tuple[str, ...], shown: Shown
) -> Got:
    """Ask every node. Raises UsageError, before any node is asked."""
    from signal import SIGINT

    nodes = nodes_of(where)
    from preflight.fleet.ssh.clush_engine import RunInterruptedError, Ssh, ask

    if not nodes:
        raise UsageError("no node is left to ask: give --nodes 'gpu[001-064]' or --nodes-file")
    # What a node may take to read itself, so that it can still say what it could not read.
    left = where.timeout_seconds - where.connect_seconds - _OVERHEAD_SECONDS
    sent = sent_launch(launch, max(1.0, min(10.0, left)), ignore)
    prepare(shown)
    progress = Progress(shown.verbosity >= 0)
    ssh = Ssh(
        where.timeout_seconds, where.connect_seconds, where.fanout, where.user, where.ssh_options
    )
    reports: dict[str, Json] = {}
    lacking: set[str] = set()

    def show() -> None:
        progress.show(f"{len(reports)} of {len(nodes)} nodes answered")

    def take(said: NodeReply) -> None:
        report = reports[said.node] = report_of(said, where.timeout_seconds)
        # At once: what is there stays there, whatever becomes of this process.
        if shown.reports is not None:
            keep(report, shown.reports)

    def take_or_carry(said: NodeReply) -> None:
        if remote.carry == "auto" and lacks_tool(said):
            lacking.add(said.node)
        else:
            take(said)

    stopped = 0
    try:
        if remote.carry != "always":
            found = content(remote, sent, carried=False)
            ask(nodes, COMMAND, found, ssh, take_or_carry, show)
        carried_to = [one for one in nodes if remote.carry == "always" or one in lacking]
        if carried_to:
            ask(carried_to, COMMAND, content(remote, sent, True), ssh, take, show)
    except (RunInterruptedError, KeyboardInterrupt) as signalled:
        stopped = int(signalled.args[0]) if signalled.args else SIGINT
        for node in nodes:
            if node not in reports:
                take(NodeReply(node, ()))
    finally:
        progress.clear()
    return Got([reports[node] for node in nodes], stopped)


def sets_of(path: str) -> list[str]:
    """Node sets, one a line; what follows # is for people."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError as error:
        raise UsageError(f"--nodes-file {path}: {error.strerror}") from None
    return [line for line in lines if line]
