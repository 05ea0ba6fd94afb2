"""``mooncake-preflight fit``: the sizes that a host takes."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from checks.framework.unknown import Unknown
from preflight.base import exit_codes
from preflight.base.output import Progress, columns, drawing_encoding, output_to, painter, say
from preflight.cli.checks_options import with_checks
from preflight.cli.commands import command, say_answer, with_formats
from preflight.cli.options import (
    COLOR,
    MEASURED,
    SIZE,
    TIMEOUT,
    AnyParamType,
    Fraction,
    Integer,
    with_described_host,
    with_launch,
    with_workload,
)

if TYPE_CHECKING:
    from preflight.base.command_frame import Answers
    from preflight.cache_sizing.capacity.workload import WorkloadOptions
    from preflight.cache_sizing.fit.fit_launch import FitResult
    from preflight.command_inputs.launch_words import Chosen, LaunchWords


class Keep(AnyParamType):
    """Memory to keep free, or as ``80%`` the part of a workload to keep."""

    name = "size or part"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        of = Fraction() if str(value).strip().endswith("%") else SIZE
        return of.convert(value, param, ctx)


# As preflight.cache_sizing.fit.judged_values.Goal, which is imported where it is used; hits: best,
# by a trace.
GOALS = ("best", "l2", "pool", "balanced", "hits")


@command(
    "fit",
    "mooncake-preflight fit launch.sh",
    "mooncake-preflight fit --goal balanced --keep 64gb --write launch.sh",
    "mooncake-preflight fit --memory 2tb --gpus 8xH800 --nics 8xmlx5 launch.sh",
    "mooncake-preflight fit --model Qwen/Qwen3-32B --memory 2tb --gpus 8xH100 --write launch.sh",
    "mooncake-preflight fit --model Qwen/Qwen3-32B --clients 200 --rounds 10 "
    "--request-length 4096 --keep 80%",
)
@click.option(
    "--goal", type=click.Choice(GOALS),
    help="What gets the memory. Default: best, what answers the most of the workload, where a "
    "launch has L2 and a segment; or all of it --hicache-size (l2), the segment (pool), or as much "
    "to each.",
)  # fmt: skip
@click.option("--trace", metavar="FILE", help="Recorded requests, as the workload.")
@with_workload
@click.option("--ascii", "plain", is_flag=True, help="Draw with plain characters.")
@click.option(
    "--keep", type=Keep(), default="10gb", show_default=True,
    help="Memory of the host that stays available beside the launch; or 80%: with --model, which "
    "hosts keep so much of a workload.",
)  # fmt: skip
@click.option(
    "--model", metavar="NAME", help="Make a first launch for this model, as Qwen/Qwen3-32B."
)
@click.option(
    "--buffer-only", is_flag=True,
    help="The first launch has L2 as staging for the store alone (SGLang 0.5.19 and newer).",
)  # fmt: skip
@click.option("--write", is_flag=True, help="Write the launch's file, in place of a diff.")
@with_formats("text", "json", "html", "svg")
@TIMEOUT
@with_described_host
@click.option("--nodes", type=Integer(1, 1000), help="Hosts like it that share the store.")
@with_checks
@MEASURED
@COLOR
@with_launch
def fit(
    *,
    goal: str | None,
    trace: str | None,
    numbers: WorkloadOptions,
    plain: bool,
    keep: int | float,
    model: str | None,
    buffer_only: bool,
    write: bool,
    answers: Answers,
    timeout_seconds: float,
    root: str,
    nodes: int | None,
    chosen: Chosen,
    measured: str | None,
    color: str,
    launch: LaunchWords,
) -> int:
    """Say which sizes of a launch this host takes: L2, segment, arena and huge pages.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. Its sizes are changed and checked as check does
    it, on the host as it will be with the pages reserved, until one step more no longer passes.
    Nothing is executed, and nothing is written without --write.

    A host that does not exist yet is described: --memory 2tb --gpus 8xH800 --nics 8xmlx5 --numa 2.
    Without a launch, --model makes a first one for all GPUs of the host; LAUNCH is then the file
    that --write makes.

    Without a host, --keep 80% with --model and a workload says which hosts keep that part.

    Exit codes: 0 the sizes are found; 1 they are, and something that no size changes keeps the
    launch from starting; 2 nothing fits; 3 what decides cannot be read, or is not described; 64
    usage error; 70 a defect of this program.
    """
    from checks.host_snapshot.root_names import is_description
    from preflight.base.within import within
    from preflight.cache_sizing.capacity.workload import WorkloadOptions
    from preflight.cache_sizing.fit.fit_launch import (
        first_launch,
        fit_launch,
        hints,
        with_first_launch,
        write_edits,
        write_first,
    )
    from preflight.cache_sizing.fit.judged_values import CompareBy
    from preflight.command_inputs.host_source import open_host

    if goal == "hits" and trace is None:
        raise click.UsageError("--goal hits goes with --trace FILE, recorded requests to answer")
    goal = "best" if goal == "hits" else goal
    if buffer_only and model is None:
        raise click.UsageError("--buffer-only goes with --model; a launch says it itself")
    has_workload = trace is not None or any(number is not None for number in numbers)
    if has_workload and goal not in (None, "best"):
        raise click.UsageError(f"a workload is for --goal best, and not for {goal}")
    if trace is not None and numbers != WorkloadOptions():
        raise click.UsageError("--trace and --clients are two workloads: give the one or the other")
    formats = {name for name, _ in answers}
    if "svg" in formats and trace is None:
        raise click.UsageError("--format svg shows a trace's curve: give --trace FILE")
    if isinstance(keep, float):
        other = root != "/" and not is_description(root)
        if model is None or launch.words or trace or write or other or "html" in formats:
            raise click.UsageError("--keep 80% goes with --model and a workload, and no launch")
        return _print_machines(model, keep, numbers, root, nodes, launch, timeout_seconds, answers)
    host = open_host(root, timeout_seconds)
    first, path = None, ""
    if model is not None:
        path = within(timeout_seconds, "LAUNCH", lambda: _new_file(launch.words, write))
        first = first_launch(model, host, buffer_only)
        launch = launch._replace(words=first.words(), is_command=True)
    edits = write and first is None
    if edits and launch.words == ("-",):
        raise click.UsageError("--write: standard input is no file to write: give the launch's")
    goal = "best" if goal is None and has_workload else goal
    basis = CompareBy(numbers, trace, nodes)
    answer = fit_launch(launch, host, goal, keep, edits, timeout_seconds, chosen, basis)
    if isinstance(answer, Unknown):
        return _say_unknown(answer.reason, answers)
    answer = answer._replace(hints=tuple(hints(answer.state, answer.machine, answer.answer)))
    if measured is not None and any(process.server for process in answer.processes):
        from preflight.benchmark.measuring.findings import tier_notes
        from preflight.cache_sizing.capacity.answer import CapacityRequest, compute_capacity
        from preflight.cache_sizing.capacity.deployment import Cluster

        request, inputs = CapacityRequest(Cluster(), numbers), answer.answer.least.sizing.inputs
        capacity = compute_capacity(inputs, answer.state.options, host.root, request, {})
        sizes = [(each.subject, each.capacity.bytes_per_token) for each in capacity.servers]
        answer = answer._replace(hints=(*answer.hints, *tier_notes(measured, sizes, None)))
    save = None
    if first is not None:
        answer = with_first_launch(answer, first, path)
        if write and answer.command:
            save = partial(write_first, path, answer.command)
    # Half of the values would be another launch: neither the old one nor the one that fits.
    elif write and answer.edited is not None and not answer.edited.advice:
        save = partial(write_edits, answer.edited.edits)
    if save is not None:
        answer = answer._replace(written=within(timeout_seconds, "--write", save))
    for name, written_to in answers:
        with output_to(written_to):
            _say(answer, name, color, plain)
    return answer.exit_code


def _say(result: FitResult, format_: str, color: str, plain: bool) -> None:
    """Print the answer in one format.

    Without a trace, svg prints nothing.

    Args:
        plain: Draw in ASCII.
    """
    from checks.host_snapshot.secrets import public

    hits = result.choice
    if format_ == "json":
        from preflight.cache_sizing.fit.report import WORDS, fit_object

        code, body = result.exit_code, public(fit_object(result))
        started = result.launch, result.processes
        named = {"word": WORDS[code], "reason": result.answer.reason}
        say_answer("fit", code, body, **named, started=started, host=result.host)
    elif format_ == "text":
        from preflight.cache_sizing.fit.report import fit_text
        from preflight.report.pictures.memory_map import draws_blocks

        plain = plain or not draws_blocks(drawing_encoding())
        say(fit_text(result, painter(color), columns(), plain))
    elif format_ == "html":
        from preflight.cache_sizing.fit.report import fit_page

        say(fit_page(result))
    elif hits is not None and hits.capacity and hits.replay:
        from preflight.cache_sizing.capacity.hit_curve import say_picture

        say_picture(format_, hits.capacity, hits.replay)


def _print_machines(
    model: str,
    target: float,
    workload_options: WorkloadOptions,
    root: str,
    nodes: int | None,
    launch: LaunchWords,
    timeout_seconds: float,
    answers: Answers,
) -> int:
    """Print which hosts keep a part of a workload; return the exit code.

    Args:
        target: The part to keep, of 1.
        root: "/", or a description that narrows the hosts.
        nodes: How many hosts; None tries several numbers.

    Raises:
        UsageError: If ``root`` describes no host.
    """
    from checks.host_snapshot.described import Description, description_of
    from checks.host_snapshot.root_names import CaptureError
    from checks.host_snapshot.secrets import public
    from preflight.base.usage_error import UsageError
    from preflight.cache_sizing.fit.machines import machines, machines_object, machines_text

    progress = Progress(after_seconds=2)
    try:
        described = Description() if root == "/" else description_of(root)
        machine_inputs = model, target, workload_options, described, nodes, launch, timeout_seconds
        answer = machines(*machine_inputs, progress.show)
    except CaptureError as error:
        raise UsageError(str(error)) from None
    finally:
        progress.clear()
    if isinstance(answer, Unknown):
        return _say_unknown(answer.reason, answers)
    enough = any(map(answer.enough, answer.rows))
    code, word = (0, "fits") if enough else (exit_codes.FAIL, "nothing-fits")
    for name, written_to in answers:
        with output_to(written_to):
            if name == "json":
                say_answer("fit", code, public(machines_object(answer)), word=word)
            else:
                say(machines_text(answer, columns()))
    return code


def _say_unknown(reason: str, answers: Answers) -> int:
    """Say that there is no answer, and why; return the exit code."""
    for name, written_to in answers:
        with output_to(written_to):
            if name == "json":
                say_answer("fit", exit_codes.UNKNOWN, word="error", reason=reason)
            else:
                say(f"UNKNOWN: {reason}", err=name != "text")
    return exit_codes.UNKNOWN


def _new_file(launch_words: tuple[str, ...], write: bool) -> str:
    """Check the one FILE that ``fit --model`` may be given, and return it, or "" without one.

    Raises:
        UsageError: For several words, a file that exists, or ``--write`` without a file.
    """
    if len(launch_words) > 1:
        raise click.UsageError("--model makes a launch: give the file for it, and no command")
    file = launch_words[0] if launch_words else ""
    if file and os.path.lexists(file):
        raise click.UsageError(f"--model makes a launch, and {file} is there: leave out --model")
    if write and not file:
        raise click.UsageError("--write --model: give the file to write, as launch.sh")
    return file
