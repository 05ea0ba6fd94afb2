"""``mooncake-preflight fleet check``: every node over ssh, as ClusterShell reaches them."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.fleet import CONTEXT
from preflight.cli.launch_options import COLOR, launch_words, refusing_usage, with_launch
from preflight.cli.node_options import JSON, with_remote, with_reports, with_ssh
from preflight.cli.option_types import Integer, Number


@click.command(context_settings=CONTEXT)
@click.option(
    "--nodes",
    multiple=True,
    metavar="NODESET",
    help="As gpu[001-064], @rack1 or @slurm:partition; may be given again.",
)
@click.option(
    "--nodes-file", "nodes_files", multiple=True, metavar="FILE", help="Node sets, one a line."
)
@click.option("--exclude", multiple=True, metavar="NODESET", help="Not these.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds that one node may take, from its connection to its report.",
)
@click.option(
    "--connect-timeout",
    "connect_seconds",
    type=Integer(1, 600),
    default=10,
    show_default=True,
    help="Seconds of these until ssh is through.",
)
@click.option(
    "--fanout", type=Integer(1, 4096), help="Nodes at a time. Default: ClusterShell's, 64."
)
@with_ssh
@with_remote
@with_reports
@JSON
@COLOR
@click.option("-q", "--quiet", count=True, help="The verdict alone.")
@click.option("-v", "--verbose", count=True, help="What passed, too.")
@with_launch
def check(**options: Any) -> int:
    """Hold a launch against every node of a cluster, over ssh, and say which nodes differ.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. It is sent to the nodes and read there; nothing of it is executed.
    Without it, the nodes alone are checked. A node that does not answer is unknown, under its name.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error; 70 a defect of this program; 130 interrupted: what the others said is printed.
    """
    from preflight.fleet.ssh.fleet_check import FleetCheckRequest, Where, run_fleet_check

    if options["connect_seconds"] >= options["timeout_seconds"]:
        raise click.UsageError(
            f"--connect-timeout {options['connect_seconds']} leaves nothing of "
            f"--timeout {options['timeout_seconds']:g}: give it less"
        )
    where = Where(
        options["nodes"],
        options["nodes_files"],
        options["exclude"],
        options["timeout_seconds"],
        options["connect_seconds"],
        options["fanout"],
        options["user"],
        options["ssh_options"],
    )
    request = FleetCheckRequest(
        launch_words(options),
        where,
        options["remote_command"],
        options["remote_python"],
        options["carry"],
        options["ignore"],
        options["reports"],
        options["as_json"],
        options["color"],
        options["verbose"] - options["quiet"],
    )
    return int(refusing_usage(run_fleet_check, request))
