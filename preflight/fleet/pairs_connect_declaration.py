"""``mooncake-preflight fleet pair-connect``: its options."""

from __future__ import annotations

from typing import Any

import click

from preflight.fleet.pairs_listen_declaration import CONTEXT, MTU
from preflight.launch_options import COLOR, refusing_usage


@click.command("pair-connect", context_settings=CONTEXT)
@click.option("--token", required=True, help="As pair-listen printed it.")
@click.option(
    "--pairs",
    type=click.Choice(["any", "same"]),
    default="any",
    show_default=True,
    help="Any port with any, as Mooncake pairs them; or those of one name, as it does with "
    "MC_ENABLE_DEST_DEVICE_AFFINITY.",
)
@click.option(
    "--tcp",
    "ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    metavar="PORT",
    help="Connect to this port of the other node too; may be given again.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="What was not tried by then is not.",
)
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0, 3600),
    default=10.0,
    show_default=True,
    help="Seconds for the other side to begin to listen.",
)
@MTU
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@COLOR
@click.argument("address")
@click.argument("port", type=click.IntRange(1, 65535))
def pair_connect(**options: Any) -> int:
    """Write over each pair of RDMA ports of this node and another, and say which do not work.

    ADDRESS and PORT are those that pair-listen printed on the other node; over them the two agree.
    Each pair gets a reliable connection, set up as Mooncake sets up its own, between the GIDs that
    it takes; some writes of 64 B and one of 64 KiB go over it. Nothing else is sent anywhere.

    Exit codes: 0 all that was tried works; 2 something does not; 3 nothing could be tried; 64 usage
    error; 70 a defect of this program.
    """
    from preflight.fleet.pairs_connect import ConnectRequest, run_connect

    request = ConnectRequest(
        options["address"],
        options["port"],
        options["token"],
        options["pairs"],
        options["ports"],
        options["seconds"],
        options["wait_seconds"],
        int(options["mtu_limit_bytes"]),
        options["as_json"],
        options["color"],
    )
    return int(refusing_usage(run_connect, request))
