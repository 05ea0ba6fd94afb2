"""``mooncake-preflight fleet node``: what one node says, on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import FILE, ROOT, TIMEOUT, with_checks, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import Chosen, LaunchWords


@command(
    "node",
    "mooncake-preflight fleet node launch.sh >> /shared/reports.jsonl",
    "mooncake-preflight fleet node --root gpu012.tar.gz --name gpu012",
)
@click.option(
    "--name", default="", help="The name that this node goes by. Default: its own host name."
)
@click.option(
    "--launch-record",
    type=FILE,
    metavar="FILE",
    help="The launch as fleet manifest recorded it, in place of LAUNCH.",
)
@with_checks
@TIMEOUT
@ROOT
@with_launch
def node(
    *,
    name: str,
    launch_record: str | None,
    chosen: Chosen,
    timeout_seconds: float,
    root: str,
    launch: LaunchWords,
) -> int:
    """Print this node's report: one JSON object on one line, for fleet merge.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. Nothing of it is executed. check, run and
    collect have every node print this.

    Exit codes: 0 pass; 1 warn; 2 fail; 3 unknown; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.node.report import run_node

    if launch_record is not None and launch.words:
        raise click.UsageError("--launch-record is a launch already: give no other")
    return run_node(launch._replace(record=launch_record), root, timeout_seconds, name, chosen)
