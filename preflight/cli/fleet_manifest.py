"""``mooncake-preflight fleet manifest``: objects of Kubernetes by which nodes print reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import Integer, NumberOption, timeout_option, with_checks, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import Chosen, LaunchWords


@command(
    "manifest",
    "mooncake-preflight fleet manifest --image IMAGE --nodes 8 launch.sh | kubectl apply -f -",
    "mooncake-preflight fleet manifest --image IMAGE --kind daemonset --no-claim launch.yaml",
)
@click.option(
    "--kind",
    type=click.Choice(["job", "daemonset"]),
    default="job",
    show_default=True,
    help="As many pods as --nodes says, once; or one on every node until it is deleted.",
)
@click.option(
    "--image", required=True, help="An image that has this program; best the launch's own."
)
@click.option(
    "--name", default="mooncake-preflight", show_default=True, help="Name of the objects."
)
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
    help="More tolerations; those for the requested resources are added anyway.",
)
@click.option("--gpus", type=Integer(1, 64), help="Ask for this many nvidia.com/gpu.")
@click.option(
    "--rdma-resource",
    "rdma",
    multiple=True,
    metavar="NAME[=N]",
    help="Ask for RDMA devices, by the name of the device plugin's resource.",
)
@click.option(
    "--hugepages", multiple=True, metavar="SIZE=AMOUNT", help="Ask for huge pages, as 2Mi=64Gi."
)
@click.option("--memory", metavar="AMOUNT", help="Ask for memory, as 128Gi.")
@click.option(
    "--host-network", is_flag=True, help="Use the node's network, as the launch's own pod."
)
@click.option("--host-ipc", is_flag=True, help="Use the node's shared memory.")
@click.option(
    "--capability", "capabilities", multiple=True, metavar="NAME", help="Add one, as IPC_LOCK."
)
@click.option(
    "--claim/--no-claim",
    default=True,
    help="Ask for the devices, huge pages and memory of the launch's own pod; or for none, beside "
    "a server that has them.",
)
@click.option(
    "--keep-launch", is_flag=True, help="Send the launch's text, not only what is understood of it."
)
@click.option("--runtime-class", metavar="NAME", help="Of the pod, as nvidia.")
@click.option("--service-account", metavar="NAME", help="One that exists. Default: makes its own.")
@click.option("--image-pull-secret", "pull_secrets", multiple=True, metavar="NAME")
@click.option(
    "--remote-command",
    default="mooncake-preflight",
    show_default=True,
    metavar="COMMAND",
    help="This program in the image.",
)
@timeout_option(NumberOption(1, 3600), 10.0, "Seconds after which what was not read is unknown.")
@with_checks
@with_launch
def manifest(
    *,
    kind: str,
    image: str,
    name: str,
    namespace: str | None,
    nodes: str | None,
    selectors: tuple[str, ...],
    tolerations: tuple[str, ...],
    gpus: int | None,
    rdma: tuple[str, ...],
    hugepages: tuple[str, ...],
    memory: str | None,
    host_network: bool,
    host_ipc: bool,
    capabilities: tuple[str, ...],
    claim: bool,
    keep_launch: bool,
    runtime_class: str | None,
    service_account: str | None,
    pull_secrets: tuple[str, ...],
    remote_command: str,
    timeout_seconds: float,
    chosen: Chosen,
    launch: LaunchWords,
) -> int:
    """Print a Kubernetes Job or DaemonSet whose pods print their nodes' reports, for fleet collect.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. What is understood of it travels in a ConfigMap,
    without secrets, and nothing is executed. The pods are given what the launch's own container is
    given, where it says so, and options add to it. They need no right on the API server.

    Exit codes: 0 the manifest is whole; 64 usage error; 70 a defect of this program.
    """
    from preflight.fleet.kubernetes.manifest import print_manifest
    from preflight.fleet.kubernetes.request import (
        ManifestRequest,
        check_names,
        lent_by,
        resources_of,
        where_of,
    )
    from preflight.fleet.remote.program import option_words
    from preflight.fleet.remote.sent_launch import sent_launch

    check_names(name, namespace, image)
    tool = option_words("--remote-command", remote_command, "the program's path in the image")
    own = lent_by(launch)
    resources = {**own.resources, **resources_of(hugepages, memory, gpus, rdma)}
    lent = own._replace(
        host_network=own.host_network or host_network,
        host_ipc=own.host_ipc or host_ipc,
        capabilities=tuple(dict.fromkeys((*own.capabilities, *capabilities))),
        resources=resources if claim else {},
    )
    sent = sent_launch(launch, timeout_seconds, chosen, as_record=not keep_launch)
    where = where_of(kind, nodes, selectors, tolerations, runtime_class)
    request = ManifestRequest(
        kind, image, name, namespace, where, lent, tool, service_account, pull_secrets
    )
    return print_manifest(request, sent)
