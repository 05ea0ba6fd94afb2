"""``mooncake-preflight capacity``: what each tier holds, and when a workload overflows it."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import (
    COLOR,
    ROOT,
    SIZE,
    TIMEOUT,
    examples,
    launch_words,
    refusing_usage,
    with_launch,
)
from preflight.cli.option_types import Integer, Number

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight capacity launch.sh",
        "mooncake-preflight capacity --nodes-in-cluster 3 --other-segments 120gb launch.sh",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@click.option("--clients", type=int, help="Conversations at once.")
@click.option("--rounds", type=int, help="Questions that each of them asks.")
@click.option("--request-length", type=int, help="Tokens of a question.")
@click.option("--output-length", type=int, help="Tokens of an answer. Default: 1.")
@click.option(
    "--workload",
    metavar="COMMAND",
    help="The workload as bench_multiturn.py's command line. Default: the one in the launch.",
)
@click.option(
    "--nodes-in-cluster",
    type=Integer(1, 100_000),
    help="Hosts that run this launch. Default: --nnodes of its servers.",
)
@click.option(
    "--other-segments",
    type=SIZE,
    default=0,
    help="What hosts that run something else contribute to the store, all together.",
)
@click.option(
    "--eviction-watermark",
    type=Number(0, 1),
    help="Of the master. Default: as the launch starts it, else as its release does.",
)
@click.option("--ascii", "plain", is_flag=True, help="Draw with plain characters.")
@COLOR
@TIMEOUT
@ROOT
@with_launch
def capacity(**options: Any) -> int:
    """Say what each tier of a launch's cache holds, and in which round a workload overflows it.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Tiers are L1 (GPU), L2 (host memory), L3 (Mooncake's pool) and SSD
    offload, in bytes, tokens and conversations. Nothing is executed.

    Exit codes: 0 all of it is known; 3 a tier is not, and what to give is said; 64 usage error;
    70 a defect of this program.
    """
    from preflight.capacity.workload import Wanted
    from preflight.cli.capacity_run import CapacityRequest, run_capacity

    request = CapacityRequest(
        launch_words(options),
        options["root"],
        options["timeout_seconds"],
        options["as_json"],
        Wanted(
            options["clients"],
            options["rounds"],
            options["request_length"],
            options["output_length"],
            options["workload"],
        ),
        options["nodes_in_cluster"],
        options["other_segments"],
        options["eviction_watermark"],
        options["color"],
        options["plain"],
    )
    return int(refusing_usage(run_capacity, request))
