"""``mooncake-preflight fleet run``: every node of a Slurm job, through srun."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.fleet import CONTEXT
from preflight.cli.launch_options import COLOR, launch_words, refusing_usage, with_launch
from preflight.cli.node_options import JSON, with_remote, with_reports
from preflight.cli.option_types import Integer, Number


@click.command(context_settings=CONTEXT)
@click.option(
    "--nodes",
    "node_set",
    metavar="NODESET",
    help="As gpu[001-064]. Default: all nodes of the job that this runs in.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds that a node may take for its report.",
)
@click.option(
    "--queue-timeout",
    "queue_seconds",
    type=Integer(1, 86400),
    default=60,
    show_default=True,
    help="Outside of a job: seconds until Slurm must have given one.",
)
@click.option(
    "--srun-options",
    default="",
    metavar="OPTIONS",
    help="As '--partition=gpu --account=infra --gres=gpu:8 --time=5'.",
)
@with_remote
@with_reports
@JSON
@COLOR
@click.option("-q", "--quiet", count=True, help="The verdict alone.")
@click.option("-v", "--verbose", count=True, help="What passed, too.")
@with_launch
def run(**options: Any) -> int:
    """Hold a launch against every node of a Slurm job, and say which nodes differ.

    Inside of a job (salloc, sbatch) its nodes are asked, in a job step beside what runs there;
    outside, --nodes says which, and srun makes a job of them. LAUNCH is the launch as it is: a
    shell script, a compose file or a Kubernetes manifest, or, after --, a command line. It is sent
    to the nodes and read there; nothing of it is executed. A node that is down, drained, busy or
    silent is unknown, under its name and with Slurm's reason.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error; 70 a defect of this program; 130 interrupted: what the others said is printed.
    """
    from preflight.fleet.slurm.command import FleetRunRequest, run_fleet_run

    request = FleetRunRequest(
        launch_words(options),
        options["node_set"],
        options["timeout_seconds"],
        options["queue_seconds"],
        options["srun_options"],
        options["remote_command"],
        options["remote_python"],
        options["carry"],
        options["ignore"],
        options["reports"],
        options["as_json"],
        options["color"],
        options["verbose"] - options["quiet"],
    )
    return int(refusing_usage(run_fleet_run, request))
