"""``mooncake-preflight fleet check``: every node over ssh, as ClusterShell reaches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.checks_options import with_checks
from preflight.cli.commands import command
from preflight.cli.node_options import FANOUT, with_answer, with_remote, with_ssh_nodes
from preflight.cli.options import with_launch

if TYPE_CHECKING:
    from preflight.fleet.merge.command import Shown
    from preflight.fleet.remote.program import Program, SshNodes
    from preflight.inputs.launch_words import Chosen, LaunchWords


@command(
    "check",
    "mooncake-preflight fleet check --nodes 'gpu[001-064]' launch.sh",
    "mooncake-preflight fleet check --nodes @slurm:gpu --exclude @slurm:drained launch.sh",
    "mooncake-preflight fleet check --nodes-file nodes.txt --reports reports/",
)
@with_ssh_nodes(
    "gpu[001-064]",
    "Seconds, connecting included, after which a node that did not answer is unknown.",
    FANOUT,
)
@with_remote
@with_answer()
@with_checks
@with_launch
def check(
    *, where: SshNodes, program: Program, chosen: Chosen, shown: Shown, launch: LaunchWords
) -> int:
    """Check a launch on every node over ssh, and say which nodes differ.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. It is read here and sent as it was read; nothing
    of it is executed. A node that is not reached is unknown, under its name and with ssh's reason.
    ClusterShell reaches them, as its own configuration says.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error; 70 a defect of this program; 130 interrupted: what the others said is printed.
    """
    from preflight.fleet.remote.check import run_fleet_check

    if where.connect_seconds >= where.timeout_seconds:
        raise click.UsageError(
            f"--connect-timeout {where.connect_seconds} leaves nothing of "
            f"--timeout {where.timeout_seconds:g}: give it less"
        )
    return run_fleet_check(launch, where, program, chosen, shown)
