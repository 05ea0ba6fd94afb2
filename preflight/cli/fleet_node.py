"""``mooncake-preflight fleet node``: what one node says, on one line."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.fleet import CONTEXT
from preflight.cli.launch_options import ROOT, TIMEOUT, launch_words, refusing_usage, with_launch


@click.command(context_settings=CONTEXT)
@click.option(
    "--name",
    "node",
    default="",
    help="The name that this node goes by. Default: its own host name.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="ID=REASON",
    help="Show what this check finds, and do not count it.",
)
@TIMEOUT
@ROOT
@with_launch
def node(**options: Any) -> int:
    """Print this node's report: one JSON object on one line, for fleet merge.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Nothing of it is executed. check, run and collect have every node
    print this.

    Exit codes: 0 pass; 1 warn; 2 fail; 3 unknown; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.node.command import NodeRequest, run_node

    request = NodeRequest(
        launch_words(options),
        options["root"],
        options["timeout_seconds"],
        options["node"],
        options["ignore"],
    )
    return int(refusing_usage(run_node, request))
