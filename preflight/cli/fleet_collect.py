"""``mooncake-preflight fleet collect``: the reports in the logs of Kubernetes pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.node_options import with_answer
from preflight.cli.options import NumberOption, timeout_option

if TYPE_CHECKING:
    from preflight.fleet.merge.command import Shown


@command(
    "collect",
    "mooncake-preflight fleet collect --nodes 'gpu[001-064]'",
    "mooncake-preflight fleet collect --kubectl 'kubectl --context prod' -n inference",
)
@click.option(
    "--selector",
    "-l",
    default="app.kubernetes.io/name=mooncake-preflight",
    show_default=True,
    help="Of the pods.",
)
@click.option("--namespace", "-n", help="Default: kubectl's own.")
@click.option(
    "--container",
    metavar="NAME",
    help="The container that printed it. Default: preflight, else the first.",
)
@click.option("--nodes", metavar="NODESET", help="Nodes that must be there, as gpu[001-064].")
@click.option(
    "--kubectl",
    default="kubectl",
    show_default=True,
    metavar="COMMAND",
    help="The command, as 'kubectl --context prod', or oc.",
)
@click.option(
    "--wait",
    "wait_seconds",
    type=NumberOption(0, 86400),
    default=60.0,
    show_default=True,
    help="Seconds for pods that are not done yet.",
)
@timeout_option(
    NumberOption(1, 3600),
    20.0,
    "Seconds after which a pod which kubectl says nothing of is unknown.",
)
@with_answer()
def collect(
    *,
    selector: str,
    namespace: str | None,
    container: str | None,
    nodes: str | None,
    kubectl: str,
    wait_seconds: float,
    timeout_seconds: float,
    shown: Shown,
) -> int:
    """Read the reports that the pods of fleet manifest printed, and say which nodes differ.

    Asks kubectl for the pods and for their logs; it needs to get and list pods, and to get
    pods/log, in one namespace. A node whose pod is pending, cannot pull its image, was evicted or
    ended without a report is unknown, under its name and with Kubernetes' reason.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error, or kubectl cannot be asked; 70 a defect of this program.
    """
    from preflight.fleet.kubernetes.collect import run_fleet_collect

    return run_fleet_collect(
        selector=selector,
        namespace=namespace,
        container=container,
        nodes=nodes,
        kubectl=kubectl,
        wait_seconds=wait_seconds,
        timeout_seconds=timeout_seconds,
        shown=shown,
    )
