"""``mooncake-preflight fleet run``: every node of a Slurm job, through srun."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.node_options import with_answer, with_remote
from preflight.cli.options import Integer, NumberOption, timeout_option, with_checks, with_launch

if TYPE_CHECKING:
    from preflight.fleet.merge.command import Shown
    from preflight.fleet.remote.program import Program
    from preflight.inputs.launch_words import Chosen, LaunchWords


@command(
    "run",
    "salloc -N16 --gres=gpu:8 mooncake-preflight fleet run launch.sh",
    "mooncake-preflight fleet run --nodes 'gpu[001-016]' --srun-options '-p gpu' launch.sh",
)
@click.option(
    "--nodes",
    "node_set",
    metavar="NODESET",
    help="As gpu[001-064]. Default: all nodes of the job that this runs in.",
)
@timeout_option(
    NumberOption(1, 3600), 60.0, "Seconds after which a node that did not answer is unknown."
)
@click.option(
    "--queue-timeout",
    "queue_seconds",
    type=Integer(1, 86400),
    default=60,
    show_default=True,
    help="Outside of a job: seconds to wait for one.",
)
@click.option(
    "--srun-options",
    default="",
    metavar="OPTIONS",
    help="For srun, as '--partition=gpu --account=infra --gres=gpu:8 --time=5'.",
)
@with_remote
@with_answer()
@with_checks
@with_launch
def run(
    *,
    node_set: str | None,
    timeout_seconds: float,
    queue_seconds: int,
    srun_options: str,
    program: Program,
    chosen: Chosen,
    shown: Shown,
    launch: LaunchWords,
) -> int:
    """Check a launch on every node of a Slurm job, and say which nodes differ.

    Inside of a job (salloc, sbatch) its nodes are asked, in a job step beside what runs there;
    outside, --nodes says which, and srun makes a job of them. LAUNCH is what starts your servers: a
    shell script, a compose file, a Kubernetes manifest, or - (standard input); or, after --, a
    command line. It is sent to the nodes and read there; nothing of it is executed. A node that is
    down, drained, busy or silent is unknown, under its name and with Slurm's reason.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error; 70 a defect of this program; 130 interrupted: what the others said is printed.
    """
    from preflight.fleet.slurm.run import run_fleet_run

    return run_fleet_run(
        launch,
        node_set=node_set,
        timeout_seconds=timeout_seconds,
        queue_seconds=queue_seconds,
        srun_options=srun_options,
        program=program,
        chosen=chosen,
        shown=shown,
    )
