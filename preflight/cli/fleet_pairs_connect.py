"""``mooncake-preflight fleet pair-connect``: the end of a pair that connects, and tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.fleet_pairs_listen import MTU, PAIRS, TCP, seconds_option
from preflight.cli.options import COLOR, Integer, NumberOption, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords


@command(
    "pair-connect",
    "mooncake-preflight fleet pair-connect --token TOKEN 10.0.0.12 17471 launch.sh",
)
@click.option("--token", required=True, help="As pair-listen printed it.")
@PAIRS
@TCP
@seconds_option("Seconds for all pairs: those that are left then stay untried.")
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
@click.option("--json", "as_json", is_flag=True, help="A message to fleet pairs: always v1.")
@COLOR
@click.argument("address")
@click.argument("port", type=Integer(1, 65535))
@with_launch
def pair_connect(
    *,
    address: str,
    port: int,
    token: str,
    paired: str,
    tcp_ports: tuple[int, ...],
    seconds: float,
    wait_seconds: float,
    own_address: str,
    mtu_limit_bytes: int | None,
    as_json: bool,
    color: str,
    launch: LaunchWords,
) -> int:
    """Write over each pair of RDMA ports of this node and another, and say which do not work.

    ADDRESS and PORT are those that pair-listen printed on the other node; over them the two agree.
    Each pair gets reliable connections, set up as Mooncake sets up its own, between the GIDs that
    it takes; some writes of 64 B and one of 64 KiB go over them each way. With a LAUNCH (after --)
    its devices, GIDs, ports and MTU are those that are tried; both ends have to be given it.

    Exit codes: 0 all that was tried works; 2 something does not; 3 nothing could be tried; 64 usage
    error; 70 a defect of this program.
    """
    from preflight.fleet.pairs.connect import Trial, run_connect

    trial = Trial(
        launch=launch,
        address=address,
        port=port,
        token=token,
        pairs=paired,
        tcp_ports=tcp_ports,
        seconds=seconds,
        wait_seconds=wait_seconds,
        mtu_limit_bytes=mtu_limit_bytes,
        own_address=own_address,
    )
    return run_connect(trial, as_json, color)
