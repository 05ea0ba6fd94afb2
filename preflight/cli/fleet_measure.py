"""``mooncake-preflight fleet measure``: each node to each other, with Mooncake's own engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.measure import seconds_of
from preflight.cli.node_options import with_remote, with_ssh_nodes
from preflight.cli.options import COLOR, JSON, SIZE, with_launch_of_installed, with_verbosity

if TYPE_CHECKING:
    from preflight.fleet.remote.program import Program, SshNodes
    from preflight.inputs.launch_words import LaunchWords


@command(
    "measure",
    "mooncake-preflight fleet measure --nodes 'gpu[001-004]' launch.sh",
    "mooncake-preflight fleet measure --nodes @slurm:gpu --budget 20s --python /opt/v/bin/python3",
)
@with_ssh_nodes(
    "gpu[001-064]",
    "Seconds beside --budget, connecting and loading included, after which a pair is unknown.",
)
@with_remote
@JSON
@COLOR
@with_verbosity("All pairs.")
@click.option(
    "--budget", "budget_seconds", metavar="TIME", default="10s", callback=seconds_of,
    help="The time in which one pair transfers. Default: 10s.",
)  # fmt: skip
@click.option(
    "--spend", "spend_bytes", type=SIZE, default="512mb", show_default=True,
    help="The most memory that is taken on a node.",
)  # fmt: skip
@click.option("--python", metavar="PATH", help="The interpreter on the nodes that has Mooncake.")
@with_launch_of_installed
def measure(
    *,
    where: SshNodes,
    program: Program,
    as_json: bool,
    color: str,
    verbosity: int,
    budget_seconds: float,
    spend_bytes: int,
    python: str | None,
    launch: LaunchWords,
) -> int:
    """Move memory between each two nodes over ssh, and say which node or pair is slow.

    One node of a pair runs measure --serve, the other measure --to, by the devices, protocol and
    variables of LAUNCH where one is given. Pairs at a time share no node; N nodes take N - 1
    rounds. No running service is touched; nothing is left behind.

    Exit codes: 0 measured; 1 some node or pair is slow, or not what the launch means; 2 some pair
    fails; 3 some pair was not measured; 64 usage error; 70 a defect of this program; 130
    interrupted.
    """
    from preflight.fleet.measure import measure_fleet
    from preflight.fleet.remote.check import nodes_of
    from preflight.fleet.reports.answers import say_answer
    from preflight.inputs.host_source import recorded_launch
    from preflight.measuring.plan import LEAST_BUDGET_SECONDS

    if budget_seconds < LEAST_BUDGET_SECONDS:
        raise click.UsageError(f"--budget is less than {LEAST_BUDGET_SECONDS:g}s")
    words = [f"--spend={spend_bytes}b", *([f"--python={python}"] if python else [])]
    where = where._replace(timeout_seconds=where.timeout_seconds + budget_seconds)
    nodes = nodes_of(where)
    if len(nodes) < 2:
        raise click.UsageError("a pair takes two nodes: give --nodes 'gpu[001-004]'")
    record = recorded_launch(launch) if launch.words else None
    answer = measure_fleet(nodes, record, words, budget_seconds, where, program)
    return say_answer(answer, "fleet-measure", as_json, color, verbosity)
