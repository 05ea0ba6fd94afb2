"""``mooncake-preflight fleet check``: every node over ssh, as ClusterShell reaches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.node_options import with_answer, with_remote, with_ssh_nodes
from preflight.cli.options import Integer, command, with_checks, with_launch

if TYPE_CHECKING:
    from preflight.fleet.merge.command import Shown
    from preflight.fleet.remote.program import Program, SshNodes
    from preflight.inputs.launch_words import Chosen, LaunchWords


@command("check")
@with_ssh_nodes(
    "gpu[001-064]",
    "Seconds that one node may take, from its connection to its report.",
    click.option(
        "--fanout", type=Integer(1, 4096), help="Nodes at a time. Default: ClusterShell's, 64."
    ),
)
@with_remote
@with_answer()
@with_checks
@with_launch
def check(
    *,
    where: SshNodes,
    program: Program,
    chosen: Chosen,
    shown: Shown,
    launch: LaunchWords,
) -> int:
    from preflight.fleet.ssh.check import run_fleet_check

    if where.connect_seconds >= where.timeout_seconds:
        raise click.UsageError(
            f"--connect-timeout {where.connect_seconds} leaves nothing of "
            f"--timeout {where.timeout_seconds:g}: give it less"
        )
    return run_fleet_check(launch, where, program, chosen, shown)
