"""``mooncake-preflight rehearse``: the launch's allocations, made for real and given back."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import (
    COLOR,
    LAUNCH,
    LAUNCH_OPTIONS,
    NIC_NODES,
    RANK_NODES,
    Command,
    examples,
    launch_words,
    refusing_usage,
    with_options,
)
from preflight.cli.option_types import Integer, Number

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _launch(function: Command) -> Command:
    # The library that is rehearsed says which release it is.
    return with_options(function, (NIC_NODES, RANK_NODES, *LAUNCH_OPTIONS, LAUNCH))


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight rehearse launch.sh",
        "mooncake-preflight rehearse --scale 100 --python /opt/bin/python launch.sh",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@click.option(
    "--scale",
    type=Integer(1, 1_000_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Divide every size by N; what is predicted is then that of the smaller launch.",
)
@click.option(
    "--python",
    metavar="PATH",
    help="The interpreter that has Mooncake. Default: the one that runs this.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(0, 86400, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds after which a single step is broken off.",
)
@COLOR
@_launch
def rehearse(**options: Any) -> int:
    """Make a launch's allocations with the real Mooncake, compare them with the prediction.

    Every rank, store and client of LAUNCH (a file, or a command after --) becomes a process of its
    own that maps and registers what the launch would, against a master on 127.0.0.1; a value is put
    and got; then all of it is given back. No model is loaded and nothing of the launch is executed.
    Huge pages are taken from those that are free now; a tenth of the other memory is left alone.

    Exit codes: 0 it went as predicted; 1 it starts, and not all is as it should be; 2 it fails, as
    predicted or not; 3 not rehearsed, or broken off; 64 usage error; 70 a defect of this program;
    130 interrupted.
    """
    from preflight.cli.rehearse_run import RehearseRequest, run_rehearse

    request = RehearseRequest(
        launch_words({**options, "mooncake_version": None}),
        options["scale"],
        options["python"],
        options["timeout_seconds"],
        options["as_json"],
        options["color"],
    )
    return int(refusing_usage(run_rehearse, request))
