"""``mooncake-preflight fleet node``: what one node says, on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.options import ROOT, TIMEOUT, command, with_checks, with_launch

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
@with_checks
@TIMEOUT
@ROOT
@with_launch
def node(
    *, name: str, chosen: Chosen, timeout_seconds: float, root: str, launch: LaunchWords
) -> int:
    """Print this node's report: one JSON object on one line, for fleet merge.

    LAUNCH is the launch as it is: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. Nothing of it is executed. check, run and
    collect have every node print this.

    Exit codes: 0 pass; 1 warn; 2 fail; 3 unknown; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.node.report import run_node

    return run_node(launch, root, timeout_seconds, name, chosen)
