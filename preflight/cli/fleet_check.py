"""``mooncake-preflight fleet check``: every node over ssh, as ClusterShell reaches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.node_options import (
    CONNECT_TIMEOUT,
    with_answer,
    with_nodes,
    with_remote,
    with_ssh,
)
from preflight.cli.options import IGNORE, Integer, Number, command, timeout_option, with_launch

if TYPE_CHECKING:
    from preflight.fleet.merge.collected import Shown
    from preflight.fleet.node.asked_nodes import Remote
    from preflight.inputs.launch_words import LaunchWords


@command("check")
@with_nodes("gpu[001-064]")
@timeout_option(
    Number(1, 3600), 60.0, "Seconds that one node may take, from its connection to its report."
)
@CONNECT_TIMEOUT
@click.option(
    "--fanout", type=Integer(1, 4096), help="Nodes at a time. Default: ClusterShell's, 64."
)
@with_ssh
@with_remote
@with_answer(IGNORE)
@with_launch
def check(
    *,
    nodes: tuple[str, ...],
    nodes_files: tuple[str, ...],
    exclude: tuple[str, ...],
    timeout_seconds: float,
    connect_seconds: int,
    fanout: int | None,
    user: str | None,
    ssh_options: str,
    remote: Remote,
    ignore: tuple[str, ...],
    shown: Shown,
    launch: LaunchWords,
) -> int:
    """Hold a launch against every node of a cluster, over ssh, and say which nodes differ.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. It is sent to the nodes and read there; nothing of it is executed.
    Without it, the nodes alone are checked. A node that does not answer is unknown, under its name.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error; 70 a defect of this program; 130 interrupted: what the others said is printed.
    """
    from preflight.fleet.node.asked_nodes import SshNodes
    from preflight.fleet.ssh.fleet_check import run_fleet_check

    if connect_seconds >= timeout_seconds:
        raise click.UsageError(
            f"--connect-timeout {connect_seconds} leaves nothing of "
            f"--timeout {timeout_seconds:g}: give it less"
        )
    limits = (timeout_seconds, connect_seconds, fanout)
    where = SshNodes(nodes, nodes_files, exclude, *limits, user, ssh_options)
    return run_fleet_check(launch, where, remote, ignore, shown)
