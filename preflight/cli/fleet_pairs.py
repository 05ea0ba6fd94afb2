"""``mooncake-preflight fleet pairs``: every two nodes write to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.fleet_pairs_listen import MTU, PAIRS, bytes_of
from preflight.cli.node_options import CONNECT_TIMEOUT, with_nodes, with_remote, with_ssh
from preflight.cli.options import (
    COLOR,
    JSON,
    Integer,
    Number,
    command,
    timeout_option,
    with_launch,
)

if TYPE_CHECKING:
    from preflight.fleet.node.asked_nodes import Remote
    from preflight.inputs.launch_words import LaunchWords

# Of --timeout, what is left for the two ends beside ssh and the start of Python.
LEAST_SECONDS = 10.0


@command("pairs")
@with_nodes("gpu[001-016]")
@click.option(
    "--rounds",
    type=Integer(1),
    metavar="N",
    help="Each node has one partner in each. Default: all up to 32 nodes, else 31.",
)
@PAIRS
@click.option(
    "--tcp",
    "tcp_ports",
    type=Integer(1, 65535),
    multiple=True,
    metavar="PORT",
    help="Connect to this port of each node from the other too; may be given again.",
)
@click.option(
    "--port",
    type=Integer(1, 65535),
    default=17471,
    show_default=True,
    help="On which one node of each pair listens for the other.",
)
@MTU
@timeout_option(Number(1, 3600), 60.0, "Seconds that one round may take on a node.")
@CONNECT_TIMEOUT
@click.option(
    "--fanout",
    type=Integer(2, 4096),
    help="Nodes at a time, two to a pair. Default: 64.",
)
@with_ssh
@with_remote
@JSON
@COLOR
@with_launch
def pairs(
    *,
    nodes: tuple[str, ...],
    nodes_files: tuple[str, ...],
    exclude: tuple[str, ...],
    rounds: int | None,
    paired: str | None,
    tcp_ports: tuple[int, ...],
    port: int,
    mtu: str | None,
    timeout_seconds: float,
    connect_seconds: int,
    fanout: int | None,
    user: str | None,
    ssh_options: str,
    remote: Remote,
    as_json: bool,
    color: str,
    launch: LaunchWords,
) -> int:
    """Write over RDMA between all pairs of nodes, both ways, and say what is broken.

    Over ssh, in rounds: in each, every node has one partner; one of the two listens on TCP, at the
    address that ssh reached it at, and both write to each other (fleet pair-listen, pair-connect).
    A node that does not answer is unknown for each of its pairs. Nothing is left running.

    LAUNCH, as for fleet check, says what is tried on each node: the devices that it takes there,
    MC_GID_INDEX, MC_IB_PORT, MC_MTU, which names are paired, whether it uses RDMA at all, and the
    TCP ports on which its nodes meet. It is read there; nothing of it is executed. Without it,
    every port with a GID is tried with every other.

    Exit codes, of the worst pair: 0 pass; 1 warn: TCP connects, and there is no RDMA; 2 some pair
    is broken; 3 some pair is not known; 64 usage error; 70 a defect of this program; 130
    interrupted: what was tried is printed.
    """
    from preflight.fleet.node.asked_nodes import SshNodes
    from preflight.fleet.pairs.command import run_pairs
    from preflight.fleet.pairs.rounds import Asked

    if timeout_seconds - connect_seconds < LEAST_SECONDS:
        raise click.UsageError(
            f"--connect-timeout {connect_seconds} leaves less than {LEAST_SECONDS:g} s "
            f"of --timeout {timeout_seconds:g}: give it less, or --timeout more"
        )
    limits = (timeout_seconds, connect_seconds, fanout)
    where = SshNodes(nodes, nodes_files, exclude, *limits, user, ssh_options)
    asked = Asked(paired or "", tcp_ports, port, bytes_of(mtu))
    return run_pairs(launch, where, remote, asked, rounds=rounds, as_json=as_json, color=color)
