"""``mooncake-preflight fleet pairs``: its options."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.fleet_pairs_listen import CONTEXT, MTU, mtu_of
from preflight.cli.launch_options import COLOR, launch_words, refusing_usage, with_launch
from preflight.cli.node_options import JSON, with_remote, with_ssh
from preflight.cli.option_types import Integer, Number

# Of --timeout, what is left for the two ends beside ssh and the start of Python.
LEAST_SECONDS = 10.0


@click.command("pairs", context_settings=CONTEXT)
@click.option(
    "--nodes",
    multiple=True,
    metavar="NODESET",
    help="As gpu[001-016], @rack1 or @slurm:partition; may be given again.",
)
@click.option(
    "--nodes-file", "nodes_files", multiple=True, metavar="FILE", help="Node sets, one a line."
)
@click.option("--exclude", multiple=True, metavar="NODESET", help="Not these.")
@click.option(
    "--rounds",
    type=Integer(1),
    metavar="N",
    help="Each node has one partner in each. Default: all up to 32 nodes, else 31.",
)
@click.option(
    "--pairs",
    type=click.Choice(["any", "same"]),
    help="Any port with any, or those of one name, as with MC_ENABLE_DEST_DEVICE_AFFINITY. "
    "Default: as the launch has it, or any.",
)
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
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds that one round may take on a node.",
)
@click.option(
    "--connect-timeout",
    "connect_seconds",
    type=Integer(1, 600),
    default=10,
    show_default=True,
    help="Seconds of these until ssh is through.",
)
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
def pairs(**options: Any) -> int:
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
    from preflight.fleet.pairs.command import PairsRequest, run_pairs
    from preflight.fleet.pairs.rounds import Asked
    from preflight.fleet.ssh.fleet_check import Where

    if options["timeout_seconds"] - options["connect_seconds"] < LEAST_SECONDS:
        raise click.UsageError(
            f"--connect-timeout {options['connect_seconds']} leaves less than {LEAST_SECONDS:g} s "
            f"of --timeout {options['timeout_seconds']:g}: give it less, or --timeout more"
        )
    where = Where(
        options["nodes"],
        options["nodes_files"],
        options["exclude"],
        options["timeout_seconds"],
        options["connect_seconds"],
        options["fanout"],
        options["user"],
        options["ssh_options"],
    )
    request = PairsRequest(
        launch_words(options),
        where,
        Asked(
            options["pairs"] or "",
            options["tcp_ports"],
            options["port"],
            mtu_of(options),
        ),
        options["rounds"],
        options["remote_command"],
        options["remote_python"],
        options["carry"],
        options["as_json"],
        options["color"],
    )
    return int(refusing_usage(run_pairs, request))
