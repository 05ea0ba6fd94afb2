"""``mooncake-preflight capacity``: what each tier holds, and when a workload overflows it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from preflight.cli.options import (
    COLOR,
    JSON,
    ROOT,
    SIZE,
    TIMEOUT,
    Integer,
    Number,
    command,
    with_launch,
)

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords


@command(
    "capacity",
    "mooncake-preflight capacity launch.sh",
    "mooncake-preflight capacity --nodes-in-cluster 3 --other-segments 120gb launch.sh",
)
@JSON
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
def capacity(
    *,
    clients: int | None,
    rounds: int | None,
    request_length: int | None,
    output_length: int | None,
    workload: str | None,
    nodes_in_cluster: int | None,
    other_segments: int,
    eviction_watermark: float | None,
    plain: bool,
    as_json: bool,
    color: str,
    timeout_seconds: float,
    root: str,
    launch: LaunchWords,
) -> int:
    """Say what each tier of a launch's cache holds, and in which round a workload overflows it.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Tiers are L1 (GPU), L2 (host memory), L3 (Mooncake's pool) and SSD
    offload, in bytes, tokens and conversations. Nothing is executed.

    Exit codes: 0 all of it is known; 3 a tier is not, and what to give is said; 64 usage error;
    70 a defect of this program.
    """
    from checks.base.unknown import Unknown
    from checks.capture.secrets import public
    from preflight.base import exit_codes
    from preflight.base.output import columns, painter, say, say_json
    from preflight.capacity.answer import CapacityRequest, capacity_of
    from preflight.capacity.deployment import Cluster
    from preflight.capacity.workload import WorkloadOptions

    asked = CapacityRequest(
        Cluster(nodes_in_cluster, other_segments),
        WorkloadOptions(clients, rounds, request_length, output_length, workload),
        eviction_watermark,
    )
    found = capacity_of(launch, root, timeout_seconds, asked)
    if isinstance(found, Unknown):
        if as_json:
            from preflight.base.error_object import error_object
            from preflight.capacity.report import SCHEMA

            say_json(error_object(SCHEMA, exit_codes.UNKNOWN, found.reason))
        else:
            say(f"mooncake-preflight capacity: {found.reason}", err=True)
        return exit_codes.UNKNOWN
    # The answer is not whole where a tier, or the workload that was asked about, is not known.
    tiers = [tier for server in found.servers for tier in server.capacity.tiers]
    missing = any(isinstance(tier.tokens, Unknown) for tier in tiers)
    code = exit_codes.UNKNOWN if missing or isinstance(found.workload, Unknown) else 0
    if as_json:
        from preflight.capacity.report import capacity_object

        say_json(public(capacity_object(found, code)))
    else:
        from preflight.capacity.report import capacity_text
        from preflight.pictures.bars import draws_blocks

        plain = plain or not draws_blocks(sys.stdout.encoding)
        say(public(capacity_text(found, columns(), painter(color), plain)))
    return code
