"""``mooncake-preflight fleet collect``: the reports in the logs of Kubernetes pods."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.fleet import CONTEXT
from preflight.cli.launch_options import COLOR, refusing_usage
from preflight.cli.option_types import Number


@click.command(context_settings=CONTEXT)
@click.option(
    "--selector",
    "-l",
    default="app.kubernetes.io/name=mooncake-preflight",
    show_default=True,
    help="Of the pods.",
)
@click.option("--namespace", "-n", help="Default: kubectl's own.")
@click.option("--container", metavar="NAME", help="Whose log. Default: preflight, else the first.")
@click.option("--nodes", metavar="NODESET", help="Those that must be there, as gpu[001-064].")
@click.option(
    "--kubectl",
    default="kubectl",
    show_default=True,
    metavar="COMMAND",
    help="As 'kubectl --context prod', or oc.",
)
@click.option(
    "--wait",
    "wait_seconds",
    type=Number(0, 86400),
    default=60.0,
    show_default=True,
    help="Seconds for pods that are not done yet.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(1, 3600),
    default=20.0,
    show_default=True,
    help="Seconds for one call of kubectl.",
)
@click.option("--reports", metavar="FOLDER", help="Keep each node's report there, as NODE.json.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@COLOR
@click.option("-q", "--quiet", count=True, help="The verdict alone.")
@click.option("-v", "--verbose", count=True, help="What passed, too.")
def collect(**options: Any) -> int:
    """Read the reports that the pods of fleet manifest printed, and say which nodes differ.

    Asks kubectl for the pods and for their logs; it needs to get and list pods, and to get
    pods/log, in one namespace. A node whose pod is pending, cannot pull its image, was evicted or
    ended without a report is unknown, under its name and with Kubernetes' reason.

    Exit codes, of the worst node: 0 pass; 1 warn; 2 some node fails; 3 some node is not known; 64
    usage error, or kubectl cannot be asked; 70 a defect of this program.
    """
    from preflight.fleet.kubernetes.collect import FleetCollectRequest, run_fleet_collect

    given = dict(options, verbosity=options["verbose"] - options["quiet"])
    request = FleetCollectRequest(*(given[name] for name in FleetCollectRequest._fields))
    return int(refusing_usage(run_fleet_collect, request))
