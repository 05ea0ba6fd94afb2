"""Runs ``mooncake-preflight fleet pairs``: every pair of nodes tried, and one answer of it."""

from __future__ import annotations

from preflight.base.output import columns, painter, say, say_json
from preflight.base.progress import Progress
from preflight.base.usage_error import UsageError
from preflight.fleet.node.asked_nodes import Remote, SshNodes
from preflight.fleet.node.sent_launch import launch_alone
from preflight.fleet.pairs.matrix import Matrix, matrix_object, matrix_text
from preflight.fleet.pairs.rounds import Asked, default_rounds, round_count, run_rounds
from preflight.fleet.ssh.fleet_check import nodes_of
from preflight.inputs.launch_words import LaunchWords

# As ClusterShell's own.
DEFAULT_FANOUT = 64
LONGEST_LAUNCH = 200


def run_pairs(
    launch: LaunchWords,
    where: SshNodes,
    remote: Remote,
    asked: Asked,
    *,
    rounds: int | None,
    as_json: bool,
    color: str,
) -> int:
    """Print the answer; returns the exit code. Raises UsageError, before any node is asked.

    rounds: None for as many as are sensible. asked: what each pair tries, but for the launch.
    """
    nodes = nodes_of(where)
    from preflight.fleet.pairs.meeting import tool_of
    from preflight.fleet.ssh.clush_engine import Ssh

    if len(nodes) < 2:
        raise UsageError(
            f"a pair takes two nodes, and {len(nodes)} is left: give --nodes 'gpu[001-016]'"
        )
    asked = asked._replace(launch=launch_alone(launch))
    tool = tool_of(remote.command, remote.python, remote.carry)
    fanout = where.fanout or DEFAULT_FANOUT
    # Both ends of a pair are up at once, or they wait for each other.
    ssh = Ssh(where.timeout_seconds, where.connect_seconds, fanout, where.user, where.ssh_options)
    whole = round_count(len(nodes))
    rounds = min(rounds or default_rounds(len(nodes)), whole)
    progress = Progress()
    try:
        run = run_rounds(nodes, tool, remote.carry, rounds, fanout // 2, asked, ssh, progress.show)
    finally:
        progress.clear()
    matrix = Matrix(
        nodes,
        run.outcomes,
        run.rounds_run,
        rounds,
        whole,
        run.met.addresses,
        run.stopped,
        _called(launch),
    )
    if as_json:
        say_json(matrix_object(matrix))
    else:
        say(matrix_text(matrix, painter(color), columns()))
    if run.stopped:
        said = f"{len(run.outcomes)} of {matrix.pairs_whole} pairs were tried"
        say(f"mooncake-preflight: interrupted: {said}", err=True)
    elif rounds < whole:
        say(f"mooncake-preflight: each meets each in {whole} rounds: --rounds {whole}", err=True)
    return matrix.exit_code


def _called(launch: LaunchWords) -> str:
    """The file that it is, or the beginning of the command."""
    return " ".join(launch.words)[:LONGEST_LAUNCH]
