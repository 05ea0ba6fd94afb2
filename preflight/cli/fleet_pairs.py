"""``mooncake-preflight fleet pairs``: every two nodes write to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.fleet_pairs_ends import MTU, PAIRS
from preflight.cli.node_options import with_remote, with_ssh_nodes
from preflight.cli.options import COLOR, JSON, Integer, with_launch

if TYPE_CHECKING:
    from preflight.fleet.remote.program import Program, SshNodes
    from preflight.inputs.launch_words import LaunchWords

# Of --timeout, what is left for the two ends beside ssh and the start of Python.
LEAST_SECONDS = 10.0
ROUNDS = click.option(
    "--rounds",
    type=Integer(1),
    metavar="N",
    help="Each node has one partner in each. Default: all up to 32 nodes, else 31.",
)
PORT = click.option(
    "--port",
    type=Integer(1, 65535),
    default=17471,
    show_default=True,
    help="The port on which one node of each pair listens for the other.",
)


@command(
    "pairs",
    "mooncake-preflight fleet pairs --nodes 'gpu[001-016]' launch.sh",
    "mooncake-preflight fleet pairs --nodes gpu001,gpu002 --pairs same",
)
@with_ssh_nodes(
    "gpu[001-016]",
    "Seconds of a round after which a node that did not answer is unknown.",
    click.option(
        "--fanout", type=Integer(2, 4096), help="Nodes at a time, two to a pair. Default: 64."
    ),
    (ROUNDS, PAIRS, PORT, MTU),
)
@with_remote
@JSON
@COLOR
@with_launch
def pairs(
    *,
    where: SshNodes,
    rounds: int | None,
    paired: str,
    port: int,
    mtu_limit_bytes: int | None,
    program: Program,
    as_json: bool,
    color: str,
    launch: LaunchWords,
) -> int:
    """Write over RDMA between all pairs of nodes, both ways, and say what is broken.

    Over ssh, in rounds: in each, every node has one partner; one of the two listens on TCP, at the
    address that ssh reached it at, and both write to each other (fleet pair-listen, pair-connect).
    A node that does not answer is unknown for each of its pairs. Nothing is left running.

    LAUNCH, as for fleet check, says what is tried on each node: the devices that it takes there,
    MC_GID_INDEX, MC_IB_PORT, MC_MTU, which names are paired, and whether it uses RDMA at all. It is
    read there; nothing of it is executed. Without it, every port with a GID is tried with every
    other.

    Exit codes, of the worst pair: 0 pass; 1 warn: TCP connects, and there is no RDMA; 2 some pair
    is broken; 3 some pair is not known; 64 usage error; 70 a defect of this program; 130
    interrupted: what was tried is printed.
    """
    from preflight.fleet.pairs.rounds import PairTest, run_pairs

    if where.timeout_seconds - where.connect_seconds < LEAST_SECONDS:
        raise click.UsageError(
            f"--connect-timeout {where.connect_seconds} leaves less than {LEAST_SECONDS:g} s "
            f"of --timeout {where.timeout_seconds:g}: give it less, or --timeout more"
        )
    test = PairTest(paired, port, mtu_limit_bytes)
    return run_pairs(launch, where, program, test, rounds=rounds, as_json=as_json, color=color)
