"""``fleet pair-listen`` and ``pair-connect``: the two ends that ``fleet pairs`` starts on nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import Integer, NumberOption, Option, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords

MTU: Option = click.option(
    "--mtu",
    "mtu_limit_bytes",
    type=click.Choice(["256", "512", "1024", "2048", "4096"]),
    callback=lambda _context, _option, value: None if value is None else int(value),
    help="Path MTU, where the port's is not smaller. Default: the launch's MC_MTU, or 4096.",
)
PAIRS: Option = click.option(
    "--pairs",
    "paired",
    type=click.Choice(["any", "same"]),
    callback=lambda _context, _option, value: value or "",
    help="Any port with any, or those of one name, as with MC_ENABLE_DEST_DEVICE_AFFINITY. "
    "Default: as the launch has it, or any.",
)
_SECONDS: Option = click.option(
    "--seconds",
    type=NumberOption(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds after which it ends, whatever happens.",
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
@_SECONDS
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
    a LAUNCH it uses only the ports and GIDs that this launch uses here.

    Exit codes: 0 the time is over; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.pairs.end import run_listen

    return run_listen(
        launch,
        address=address,
        port=port,
        seconds=seconds,
        token=token,
        mtu_limit_bytes=mtu_limit_bytes,
        once=once,
    )


@command(
    "pair-connect",
    "mooncake-preflight fleet pair-connect --token TOKEN 10.0.0.12 17471 launch.sh",
)
@click.option("--token", required=True, help="As pair-listen printed it.")
@PAIRS
@_SECONDS
@click.option(
    "--wait",
    "wait_seconds",
    type=NumberOption(0, 3600),
    default=10.0,
    show_default=True,
    help="Seconds for the other side to begin to listen.",
)
@click.option(
    "--address",
    "own_address",
    default="",
    metavar="ADDRESS",
    help="Address of this node, for the other to connect back to. Default: that of the connection.",
)
@MTU
@click.argument("address")
@click.argument("port", type=Integer(1, 65535))
@with_launch
def pair_connect(
    *,
    address: str,
    port: int,
    token: str,
    paired: str,
    seconds: float,
    wait_seconds: float,
    own_address: str,
    mtu_limit_bytes: int | None,
    launch: LaunchWords,
) -> int:
    """Write over each pair of RDMA ports of this node and another, and print what came of it.

    ADDRESS and PORT are those that pair-listen printed on the other node; over them the two agree.
    Each pair gets reliable connections, set up as Mooncake sets up its own, between the GIDs that
    it takes; some writes of 64 B and one of 64 KiB go over them each way. With a LAUNCH
    its devices, GIDs, ports and MTU are those that are tried; both ends have to be given it. The
    answer is JSON, for fleet pairs (schemas/pair-v1.schema.json).

    Exit codes: 0 all that was tried works; 2 something does not; 3 nothing could be tried; 64 usage
    error; 70 a defect of this program.
    """
    from preflight.fleet.pairs.end import Trial

    trial = Trial(
        launch=launch,
        address=address,
        port=port,
        token=token,
        pairs=paired,
        seconds=seconds,
        wait_seconds=wait_seconds,
        mtu_limit_bytes=mtu_limit_bytes,
        own_address=own_address,
    )
    return trial.run()
