"""``mooncake-preflight fleet pair-connect``: its options."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.fleet_pairs_listen import CONTEXT, MTU, mtu_of
from preflight.cli.launch_options import COLOR, launch_words, refusing_usage, with_launch
from preflight.cli.option_types import Integer, Number


@click.command("pair-connect", context_settings=CONTEXT)
@click.option("--token", required=True, help="As pair-listen printed it.")
@click.option(
    "--pairs",
    type=click.Choice(["any", "same"]),
    help="Any port with any, or those of one name, as with MC_ENABLE_DEST_DEVICE_AFFINITY. "
    "Default: as the launch has it, or any.",
)
@click.option(
    "--tcp",
    "ports",
    type=Integer(1, 65535),
    multiple=True,
    metavar="PORT",
    help="Connect to this port of either node from the other too; may be given again.",
)
@click.option(
    "--seconds",
    type=Number(1, 3600),
    default=60.0,
    show_default=True,
    help="What was not tried by then is not.",
)
@click.option(
    "--wait",
    "wait_seconds",
    type=Number(0, 3600),
    default=10.0,
    show_default=True,
    help="Seconds for the other side to begin to listen.",
)
@click.option(
    "--address",
    "own_address",
    default="",
    metavar="ADDRESS",
    help="Of this node, at which the other connects in turn. Default: that of the connection.",
)
@MTU
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@COLOR
@click.argument("address")
@click.argument("port", type=Integer(1, 65535))
@with_launch
def pair_connect(**options: Any) -> int:
    """Write over each pair of RDMA ports of this node and another, and say which do not work.

    ADDRESS and PORT are those that pair-listen printed on the other node; over them the two agree.
    Each pair gets reliable connections, set up as Mooncake sets up its own, between the GIDs that
    it takes; some writes of 64 B and one of 64 KiB go over them each way. With a LAUNCH (after --)
    its devices, GIDs, ports and MTU are those that are tried; both ends have to be given it.

    Exit codes: 0 all that was tried works; 2 something does not; 3 nothing could be tried; 64 usage
    error; 70 a defect of this program.
    """
    from preflight.fleet.pairs.connect import ConnectRequest, run_connect

    request = ConnectRequest(
        options["address"],
        options["port"],
        options["token"],
        options["pairs"] or "",
        options["ports"],
        options["seconds"],
        options["wait_seconds"],
        mtu_of(options),
        options["as_json"],
        options["color"],
        options["own_address"],
        launch_words(options),
    )
    return int(refusing_usage(run_connect, request))
