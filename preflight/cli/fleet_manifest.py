"""``mooncake-preflight fleet manifest``: objects of Kubernetes by which nodes print reports."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.fleet import CONTEXT
from preflight.cli.launch_options import launch_words, refusing_usage, with_launch
from preflight.cli.option_types import Integer, Number


@click.command(context_settings=CONTEXT)
@click.option(
    "--kind",
    type=click.Choice(["job", "daemonset"]),
    default="job",
    show_default=True,
    help="As many pods as --nodes says, once; or one on every node until it is deleted.",
)
@click.option("--image", required=True, help="One that has this program: the launch's own, best.")
@click.option("--name", default="mooncake-preflight", show_default=True, help="Of the objects.")
@click.option("--namespace", "-n", help="Default: kubectl's own.")
@click.option(
    "--nodes", metavar="N|NODESET", help="How many, or which, as gpu[001-064], by host name."
)
@click.option("--node-selector", "selectors", multiple=True, metavar="LABEL=VALUE")
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    metavar="KEY[=VALUE][:EFFECT]",
    help="Those of the resources that the pod asks for are there anyway.",
)
@click.option("--gpus", type=Integer(1, 64), help="Ask for so many nvidia.com/gpu.")
@click.option(
    "--rdma-resource",
    "rdma",
    multiple=True,
    metavar="NAME[=N]",
    help="Ask for RDMA devices, by the name of the device plugin's resource.",
)
@click.option("--hugepages", multiple=True, metavar="SIZE=AMOUNT", help="As 2Mi=64Gi.")
@click.option("--memory", metavar="AMOUNT", help="As 128Gi.")
@click.option("--host-network", is_flag=True, help="The node's network, as the launch's own pod.")
@click.option("--host-ipc", is_flag=True, help="The node's shared memory.")
@click.option("--capability", "capabilities", multiple=True, metavar="NAME", help="As IPC_LOCK.")
@click.option(
    "--claim/--no-claim",
    default=True,
    help="Ask for the devices, huge pages and memory of the launch's own pod; or for none, beside "
    "a server that has them.",
)
@click.option("--runtime-class", metavar="NAME", help="As nvidia.")
@click.option("--service-account", metavar="NAME", help="One that is there. Default: an own one.")
@click.option("--image-pull-secret", "pull_secrets", multiple=True, metavar="NAME")
@click.option(
    "--remote-command",
    default="mooncake-preflight",
    show_default=True,
    metavar="COMMAND",
    help="This program in the image.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(1, 3600),
    default=10.0,
    show_default=True,
    help="Seconds after which what was not read is unknown.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="ID=REASON",
    help="Show what this check finds, and do not count it.",
)
@with_launch
def manifest(**options: Any) -> int:
    """Print a Kubernetes Job or DaemonSet whose pods print their nodes' reports, for fleet collect.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. It travels in a ConfigMap, without secrets, and is not executed. The
    pods are given what the launch's own container is given, where it says so, and options add to
    it. They need no right on the API server.

    Exit codes: 0 the manifest is whole; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.kubernetes.manifest_command import FleetManifestRequest, run_fleet_manifest

    names = [name for name in FleetManifestRequest._fields if name != "launch"]
    request = FleetManifestRequest(launch_words(options), *(options[name] for name in names))
    return int(refusing_usage(run_fleet_manifest, request))
