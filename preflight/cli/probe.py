"""``mooncake-preflight probe``: measuring what no file tells."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import (
    LAUNCH,
    LAUNCH_OPTIONS,
    MOONCAKE_VERSION,
    NIC_NODES,
    RANK_NODES,
    SIZE,
    Command,
    examples,
    with_options,
)
from preflight.cli.option_types import Number

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_DEFAULT_SPEND = "256mb"


def _launch(function: Command) -> Command:
    versions = (NIC_NODES, RANK_NODES, MOONCAKE_VERSION)
    return with_options(function, (*versions, *LAUNCH_OPTIONS, LAUNCH))


@click.group(context_settings=CONTEXT)
def probe() -> None:
    """Measure what no file tells, by trying it and taking it back."""


@probe.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight probe registration",
        "mooncake-preflight probe registration --device mlx5_0",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, always.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="NAME[,NAME]",
    help="Register with these at once, as Mooncake does. Default: the launch's, or all.",
)
@click.option(
    "--page",
    type=click.Choice(["4k", "2m", "1g"]),
    default="4k",
    show_default=True,
    help="The pages behind the memory: the machine's smallest, or huge ones from its pool.",
)
@click.option(
    "--region",
    "region_bytes",
    type=SIZE,
    help="To the region of this size. Default: the launch's smallest, or 16mb.",
)
@click.option(
    "--up-to",
    "up_to_bytes",
    type=SIZE,
    help="With each device. Default: a quarter more than the launch needs, or the host's memory.",
)
@click.option(
    "--spend",
    "spend_bytes",
    type=SIZE,
    default=_DEFAULT_SPEND,
    show_default=True,
    help="The most memory that may be taken, the kernel's own lists included.",
)
@click.option("--force", is_flag=True, help="Beside others that use the device.")
@click.option("--no-save", is_flag=True, help="Do not keep the result for later checks.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=Number(0, 3600, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds to read the host and the launch; the measuring itself takes what it takes.",
)
@_launch
def registration(**options: Any) -> int:
    """Find how much memory the RDMA devices let this user register, and which limit that is.

    One small buffer is registered over and over, in regions of the sizes of LAUNCH (a file, or a
    command after --): limits and devices see the sum, the memory is spent once. All of it is given
    back, also after Ctrl-C or a crash. A device that others use is left alone without --force.

    Exit codes: 0 measured, and the launch fits; 2 it does not; 3 not measured, or not far enough;
    64 usage error; 70 a defect of this program; 130 interrupted.
    """
    from preflight.base.usage_error import UsageError
    from preflight.cli.probe_run import ProbeRequest, run_probe
    from preflight.inputs.host_source import LaunchWords

    config = options["model_config"]
    launch = LaunchWords(
        options["launch"],
        options["env_files"],
        options["nic_numa_nodes"],
        options["rank_numa_nodes"],
        options["mooncake_version"],
        options["sglang_version"],
        None if config is None else config.read(),
        options["gpu_memory"],
    )
    request = ProbeRequest(
        launch,
        options["devices"],
        options["page"],
        options["region_bytes"],
        options["up_to_bytes"],
        options["spend_bytes"],
        options["force"],
        not options["no_save"],
        options["as_json"],
        options["timeout_seconds"],
    )
    try:
        return run_probe(request)
    except UsageError as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
