"""``mooncake-preflight fleet observe``: what runs on every node, over ssh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.node_options import FANOUT, with_remote, with_ssh_nodes
from preflight.cli.options import COLOR, JSON, with_launch

if TYPE_CHECKING:
    from preflight.fleet.remote.program import Program, SshNodes
    from preflight.inputs.launch_words import LaunchWords


@command(
    "observe",
    "mooncake-preflight fleet observe --nodes 'gpu[001-064]' --user root",
    "mooncake-preflight fleet observe --nodes @slurm:gpu launch.sh",
)
@with_ssh_nodes(
    "gpu[001-064]",
    "Seconds, connecting included, after which a node that did not answer is unknown.",
    FANOUT,
)
@with_remote
@JSON
@COLOR
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict.")
@with_launch
def observe(
    *,
    where: SshNodes,
    program: Program,
    as_json: bool,
    color: str,
    quiet: bool,
    launch: LaunchWords,
) -> int:
    """Look at the servers and stores that run on every node: do they hold what was predicted?

    Each node is asked over ssh what observe says there. Equal findings of several nodes are one
    line, without the ids of processes. With LAUNCH each of its processes has to run on each node.

    Exit codes: 0 as predicted; 1 something is not; 3 some node is unknown, or nothing runs there;
    64 usage error; 70 a defect of this program; 130 interrupted.
    """
    from preflight.fleet.observe import observe_fleet
    from preflight.fleet.remote.check import nodes_of
    from preflight.fleet.reports.answers import say_answer
    from preflight.inputs.host_source import recorded_launch

    nodes = nodes_of(where)
    record = recorded_launch(launch) if launch.words else None
    answer = observe_fleet(nodes, record, where, program)
    return say_answer(answer, "fleet-observe", as_json, color, -1 if quiet else 0)
