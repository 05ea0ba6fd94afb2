"""``mooncake-preflight fit``: the sizes that a host takes."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import (
    COLOR,
    SIZE,
    TIMEOUT,
    examples,
    launch_words,
    refusing_usage,
    with_launch,
)
from preflight.cli.option_types import Integer

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
# As preflight.fit.records.Goal, which is imported where it is used.
GOALS = ("l2", "pool", "balanced")


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight fit launch.sh",
        "mooncake-preflight fit --goal balanced --keep 64gb --write launch.sh",
        "mooncake-preflight fit --memory 2tb --gpus 8xH800 --nics 8xmlx5 launch.sh",
    ),
)
@click.option(
    "--goal",
    type=click.Choice(GOALS),
    default="l2",
    show_default=True,
    help="What gets the memory: --hicache-size, the segment, or as much to each.",
)
@click.option(
    "--keep",
    type=SIZE,
    default="10gb",
    show_default=True,
    help="Memory of the host that stays available beside the launch.",
)
@click.option("--write", is_flag=True, help="Write the launch's own file, in place of a diff.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@TIMEOUT
@click.option(
    "--root",
    "--host",
    "root",
    default="/",
    show_default=True,
    help="The host: /, a folder laid out like one, or a capture.",
)
@click.option("--memory", type=SIZE, help="Of a host that is described: all of it, as 2tb.")
@click.option("--gpus", help="Of a host that is described, as 8xH800.")
@click.option("--nics", help="Of a host that is described, as 8xmlx5 or 2xerdma.")
@click.option("--numa", type=Integer(1, 64), help="NUMA nodes of a host that is described.")
@COLOR
@with_launch
def fit(**options: Any) -> int:
    """Say which sizes of a launch this host takes: L2, segment, arena and huge pages.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Its sizes are changed and checked as check does it, on the host as it
    will be with the pages reserved, until one step more no longer passes. Nothing is executed, and
    nothing is written without --write.

    A host that is not there yet is described: --memory 2tb --gpus 8xH800 --nics 8xmlx5 --numa 2.

    Exit codes: 0 the sizes are found; 1 they are, and something that no size changes keeps the
    launch from starting; 2 nothing fits; 3 what decides cannot be read, or is not described; 64
    usage error; 70 a defect of this program.
    """
    from preflight.cli.fit_run import FitRequest, run_fit

    request = FitRequest(
        launch_words(options),
        options["root"],
        (options["memory"], options["gpus"], options["nics"], options["numa"]),
        options["goal"],
        options["keep"],
        options["write"],
        options["as_json"],
        options["timeout_seconds"],
        options["color"],
    )
    return int(refusing_usage(run_fit, request))
