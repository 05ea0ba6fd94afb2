"""``mooncake-preflight topology``."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import (
    COLOR,
    ROOT,
    TIMEOUT,
    examples,
    launch_words,
    refusing_usage,
    with_launch,
)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight topology",
        "mooncake-preflight topology --measure launch.sh",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@click.option(
    "--measure",
    is_flag=True,
    help="Ask the installed Mooncake too, in a process of its own, for at most a minute.",
)
@click.option("--ascii", "plain", is_flag=True, help="Draw with ASCII characters alone.")
@TIMEOUT
@ROOT
@COLOR
@with_launch
def topology(**options: Any) -> int:
    """Draw nodes, GPUs and NICs, how far they are apart, and which NIC Mooncake takes for what.

    With a launch, which process uses what is shown too, and its devices alone count. What Mooncake
    will choose follows from its own rule; --measure asks the library itself.

    Exit codes: 0 its choice is that of PCI; 1 something is not as it should be; 2 a device of the
    launch is missing, or none is left; 3 not known, or not measured; 64 usage error; 70 a defect of
    this program.
    """
    from preflight.cli.topology_run import TopologyRequest, run_topology

    request = TopologyRequest(
        launch_words(options),
        options["root"],
        options["timeout_seconds"],
        options["measure"],
        options["as_json"],
        options["plain"],
        options["color"],
    )
    return int(refusing_usage(run_topology, request))
