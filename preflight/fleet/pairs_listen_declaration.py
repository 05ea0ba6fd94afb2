"""``mooncake-preflight fleet pair-listen``: its options."""

from __future__ import annotations

from typing import Any

import click

from preflight.launch_options import refusing_usage

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
MTU = click.option(
    "--mtu",
    "mtu_limit_bytes",
    type=click.Choice(["256", "512", "1024", "2048", "4096"]),
    default="4096",
    show_default=True,
    help="MC_MTU of the launch: the path MTU is the less of it and the port's.",
)


@click.command("pair-listen", context_settings=CONTEXT)
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="The address of this node on which the other one asks.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@click.option("--token", default="", help="What the other side has to know. Default: a new one.")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="It ends then, whatever happens.",
)
@click.option("--once", is_flag=True, help="End after the first conversation.")
@MTU
def pair_listen(**options: Any) -> int:
    """Be the end of a pair that is written to, for pair-connect on another node.

    Prints one line of JSON with address, port and token. While it runs, each RDMA port with a GID
    takes connections from who has the token, and lets a buffer of 64 KiB be written.

    Exit codes: 0 the time is over; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.pairs_listen import ListenRequest, run_listen

    request = ListenRequest(
        options["address"],
        options["port"],
        options["seconds"],
        options["token"],
        int(options["mtu_limit_bytes"]),
        options["once"],
    )
    return int(refusing_usage(run_listen, request))
