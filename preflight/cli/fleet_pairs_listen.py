"""``mooncake-preflight fleet pair-listen``: its options."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import launch_words, refusing_usage, with_launch
from preflight.cli.option_types import Integer, Number

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
MTU = click.option(
    "--mtu",
    "mtu_limit_bytes",
    type=click.Choice(["256", "512", "1024", "2048", "4096"]),
    help="The path MTU is the less of it and the port's. Default: the launch's MC_MTU, or 4096.",
)


def mtu_of(options: dict[str, Any]) -> int | None:
    """What --mtu says; None where it is the launch's to say."""
    return None if options["mtu_limit_bytes"] is None else int(options["mtu_limit_bytes"])


@click.command("pair-listen", context_settings=CONTEXT)
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="The address of this node on which the other one asks.",
)
@click.option("--port", type=Integer(0, 65535), default=0, help="Default: a free one.")
@click.option("--token", default="", help="What the other side has to know. Default: a new one.")
@click.option(
    "--seconds",
    type=Number(1, 3600),
    default=60.0,
    show_default=True,
    help="It ends then, whatever happens.",
)
@click.option("--once", is_flag=True, help="End after the first conversation.")
@MTU
@with_launch
def pair_listen(**options: Any) -> int:
    """Be the other end of a pair, for pair-connect on another node.

    Prints one line of JSON with address, port and token. While it runs, each RDMA port with a GID
    takes connections from who has the token, lets a buffer of 64 KiB be written, and writes one in
    turn. With a LAUNCH those ports and GIDs that it takes here, and its TCP ports are held open.

    Exit codes: 0 the time is over; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.pairs.listen import ListenRequest, run_listen

    request = ListenRequest(
        options["address"],
        options["port"],
        options["seconds"],
        options["token"],
        mtu_of(options),
        options["once"],
        launch_words(options),
    )
    return int(refusing_usage(run_listen, request))
