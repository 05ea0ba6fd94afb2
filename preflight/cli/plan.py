"""``mooncake-preflight plan`` and ``apply``: what to set, in every dialect, and setting it."""

from __future__ import annotations

from typing import Any

import click

from preflight.cli.launch_options import (
    ROOT,
    TIMEOUT,
    examples,
    launch_words,
    refusing_usage,
    with_launch,
)
from preflight.settings.dialects import FORMATS

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight plan launch.sh",
        "mooncake-preflight plan --format sysctl launch.sh > 90-mooncake-hugepages.conf",
        "mooncake-preflight plan --format k8s --name server launch.sh",
    ),
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(tuple(FORMATS)),
    default="text",
    show_default=True,
    help="The dialect.",
)
@click.option("--json", "as_json", is_flag=True, help="As --format json.")
@click.option(
    "--name",
    "service",
    default="",
    help="The compose service, the container of the Pod, or the unit. Default: as the launch "
    "calls it, or sglang.",
)
@click.option(
    "--rdma-resource",
    default="rdma/hca",
    show_default=True,
    help="What the Kubernetes device plugin calls an RDMA device.",
)
@click.option("--exit-code", "told", is_flag=True, help="Exit with 1 where something is to change.")
@TIMEOUT
@ROOT
@with_launch
def plan(**options: Any) -> int:
    """Print what to set so that a launch runs on this host, as others read it.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Standard output is the artefact alone; what is to be known about it
    is on standard error. Nothing is changed.

    Exit codes: 0 the artefact is whole; 1 with --exit-code, where something is to change; 2 this
    host cannot hold it, and what would take its pages is not printed; 3 what the format needs is
    not known; 64 usage error; 70 a defect of this program.
    """
    from preflight.cli.plan_run import PlanRequest, run_plan

    name = options["format_"]
    if options["as_json"] and name not in ("text", "json"):
        raise click.UsageError(f"--json is --format json, and --format {name} is given")
    request = PlanRequest(
        launch_words(options),
        options["root"],
        options["timeout_seconds"],
        "json" if options["as_json"] else name,
        options["service"],
        options["rdma_resource"],
        options["told"],
    )
    return int(refusing_usage(run_plan, request))


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "mooncake-preflight apply --dry-run launch.sh",
        "sudo mooncake-preflight apply --yes --persist launch.sh",
        "sudo mooncake-preflight apply --undo",
    ),
)
@click.option("--dry-run", is_flag=True, help="Show the difference, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--persist", is_flag=True, help="Write drop-ins too, so that a reboot keeps it.")
@click.option("--force", is_flag=True, help="With --persist: replace files that others wrote.")
@click.option("--undo", is_flag=True, help="Put back what apply changed, in reverse.")
@TIMEOUT
@ROOT
@with_launch
def apply(**options: Any) -> int:
    """Set what a launch needs of this host: huge pages node by node, and kernel settings.

    Shows the difference and asks. Each value is read back; where a step fails, what was done
    before it is taken back. Nothing is ever lowered, and pages that others hold stay theirs.
    What apply does not do (the container, the launch, limits of what runs) is listed.

    Exit codes: 0 done, or nothing to do; 1 not wanted, or undo left something; 2 a step failed and
    the others were taken back; 3 what decides is not known; 64 usage error; 70 a defect of this
    program; 77 not permitted: the commands are printed instead.
    """
    from preflight.cli.apply_run import ApplyRequest, run_apply

    request = ApplyRequest(
        launch_words(options),
        options["root"],
        options["timeout_seconds"],
        options["dry_run"],
        options["yes"],
        options["persist"],
        options["force"],
        options["undo"],
    )
    return int(refusing_usage(run_apply, request))
