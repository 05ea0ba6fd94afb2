"""``mooncake-preflight fleet pair-listen``: the end of a pair that is connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import Integer, NumberOption, Option, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords

MTU = click.option(
    "--mtu",
    "mtu_limit_bytes",
    type=click.Choice(["256", "512", "1024", "2048", "4096"]),
    callback=lambda _context, _option, value: None if value is None else int(value),
    help="Path MTU, where the port's is not smaller. Default: the launch's MC_MTU, or 4096.",
)
PAIRS = click.option(
    "--pairs",
    "paired",
    type=click.Choice(["any", "same"]),
    callback=lambda _context, _option, value: value or "",
    help="Any port with any, or those of one name, as with MC_ENABLE_DEST_DEVICE_AFFINITY. "
    "Default: as the launch has it, or any.",
)
TCP = click.option(
    "--tcp",
    "tcp_ports",
    type=Integer(1, 65535),
    multiple=True,
    metavar="PORT",
    help="Connect to this port of each node from the other too; may be given again.",
)


def seconds_option(help_: str) -> Option:
    """Return the option for how long one end runs."""
    return click.option(
        "--seconds", type=NumberOption(1, 3600), default=60.0, show_default=True, help=help_
    )


@command(
    "pair-listen",
    "mooncake-preflight fleet pair-listen --address 10.0.0.12 launch.sh",
)
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="The address of this node on which the other one asks.",
)
@click.option("--port", type=Integer(0, 65535), default=0, help="Default: a free one.")
@click.option("--token", default="", help="What the other side has to give. Default: a new one.")
@seconds_option("Seconds after which it ends, whatever happens.")
@click.option("--once", is_flag=True, help="End after the first conversation.")
@MTU
@with_launch
def pair_listen(
    *,
    address: str,
    port: int,
    token: str,
    seconds: float,
    once: bool,
    mtu_limit_bytes: int | None,
    launch: LaunchWords,
) -> int:
    """Be the other end of a pair, for pair-connect on another node.

    Prints one line of JSON with address, port and token. While it runs, each RDMA port with a GID
    accepts a connection from whoever has the token, and both sides write 64 KiB to each other. With
    a LAUNCH it uses only the ports and GIDs that this launch uses here, and holds its TCP ports
    open.

    Exit codes: 0 the time is over; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.pairs.listen import run_listen

    return run_listen(
        launch,
        address=address,
        port=port,
        seconds=seconds,
        token=token,
        mtu_limit_bytes=mtu_limit_bytes,
        once=once,
    )
