"""``mooncake-preflight fit``: the sizes that a host takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.options import COLOR, JSON, SIZE, TIMEOUT, Integer, command, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords

# As preflight.fit.judged_values.Goal, which is imported where it is used.
GOALS = ("l2", "pool", "balanced")


@command(
    "fit",
    "mooncake-preflight fit launch.sh",
    "mooncake-preflight fit --goal balanced --keep 64gb --write launch.sh",
    "mooncake-preflight fit --memory 2tb --gpus 8xH800 --nics 8xmlx5 launch.sh",
)
@click.option(
    "--goal",
    type=click.Choice(GOALS),
    default="l2",
    show_default=True,
    help="What gets the memory: --hicache-size, the segment, or as much to each.",
)
@click.option(
    "--keep",
    type=SIZE,
    default="10gb",
    show_default=True,
    help="Memory of the host that stays available beside the launch.",
)
@click.option("--write", is_flag=True, help="Write the launch's own file, in place of a diff.")
@JSON
@TIMEOUT
@click.option(
    "--root",
    "--host",
    "root",
    default="/",
    show_default=True,
    help="The host: /, a folder laid out like one, a capture, or demo:h800.",
)
@click.option("--memory", type=SIZE, help="Of a host that is described: all of it, as 2tb.")
@click.option("--gpus", help="Of a host that is described, as 8xH800.")
@click.option("--nics", help="Of a host that is described, as 8xmlx5 or 2xerdma.")
@click.option("--numa", type=Integer(1, 64), help="NUMA nodes of a host that is described.")
@COLOR
@with_launch
def fit(
    *,
    goal: str,
    keep: int,
    write: bool,
    as_json: bool,
    timeout_seconds: float,
    root: str,
    memory: int | None,
    gpus: str | None,
    nics: str | None,
    numa: int | None,
    color: str,
    launch: LaunchWords,
) -> int:
    """Say which sizes of a launch this host takes: L2, segment, arena and huge pages.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Its sizes are changed and checked as check does it, on the host as it
    will be with the pages reserved, until one step more no longer passes. Nothing is executed, and
    nothing is written without --write.

    A host that is not there yet is described: --memory 2tb --gpus 8xH800 --nics 8xmlx5 --numa 2.

    Exit codes: 0 the sizes are found; 1 they are, and something that no size changes keeps the
    launch from starting; 2 nothing fits; 3 what decides cannot be read, or is not described; 64
    usage error; 70 a defect of this program.
    """
    from checks.base.unknown import Unknown
    from preflight.base import exit_codes
    from preflight.base.output import columns, painter, say, say_json
    from preflight.fit.fit_launch import Description, fitted, host_to_fit
    from preflight.fit.hints import hints

    described = Description(memory, gpus, nics, numa)
    host, assumptions = host_to_fit(root, described, timeout_seconds)
    if assumptions:
        launch = described.with_gpu(launch)
    found = fitted(launch, host, described, assumptions, goal, keep, write, timeout_seconds)
    if isinstance(found, Unknown):
        if as_json:
            from preflight.base.error_object import error_object
            from preflight.fit.report import SCHEMA

            say_json(error_object(SCHEMA, exit_codes.UNKNOWN, found.reason))
        else:
            say(f"UNKNOWN: {found.reason}")
        return exit_codes.UNKNOWN
    found = found._replace(hints=hints(found.state, found.machine, found.answer))
    # Half of the values would be another launch: neither the old one nor the one that fits.
    if write and found.edited is not None and not found.edited.advice:
        from preflight.fit.fit_launch import write_edits

        found = found._replace(written=write_edits(found.edited.edits))
    if as_json:
        from preflight.fit.report import fit_object

        say_json(fit_object(found))
    else:
        from preflight.fit.report import fit_text

        say(fit_text(found, painter(color), columns()))
    return found.exit_code
