"""``mooncake-preflight exec``: the gate in front of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.checks_options import with_checks
from preflight.cli.commands import command
from preflight.cli.options import TIMEOUT, with_launch

if TYPE_CHECKING:
    from preflight.cli.gate import LockedStart
    from preflight.command_inputs.launch_words import Chosen, LaunchWords, Waiver
    from preflight.verdict.answer import Checked


@command(
    "exec",
    "mooncake-preflight exec -- python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2",
    "MOONCAKE_PREFLIGHT_MODE=warn mooncake-preflight exec -- bash launch.sh",
    "mooncake-preflight exec --locked good.json -- bash launch.sh",
)
@click.option(
    "--fail-on", type=click.Choice(["fail", "unknown", "warn"]), default="fail", show_default=True,
    help="The verdict from which the command is not started.",
)  # fmt: skip
@click.option(
    "--apply-env", is_flag=True, help="Set the variables that findings want set, and check again."
)
@click.option("--report", metavar="FILE", help="Write the JSON of the check, whatever it says.")
@click.option(
    "--json", "as_json", is_flag=True, help="Say it as one object, on standard error as always."
)
@click.option(
    "--locked", metavar="FILE",
    help="Say what differs from that file of check --lock, and refuse only a worse verdict.",
)  # fmt: skip
@click.option(
    "--strict", is_flag=True,
    help="With --locked: refuse any difference, and what cannot be compared.",
)  # fmt: skip
@with_checks
@TIMEOUT
@with_launch
def exec_(
    *,
    fail_on: str,
    apply_env: bool,
    report: str | None,
    as_json: bool,
    locked: str | None,
    strict: bool,
    chosen: Chosen,
    timeout_seconds: float,
    launch: LaunchWords,
) -> int:
    """Check the command after --, then become it; refuse with exit code 78 where it would fail.

    The process keeps its id: signals and exit codes are the command's own. What the check has to
    say goes to standard error. MOONCAKE_PREFLIGHT_MODE: enforce (the default), warn (say it, and
    start), off (start).
    """
    if not launch.words:
        raise click.UsageError("give the command after --, as: exec -- bash launch.sh")
    if strict and locked is None:
        raise click.UsageError("--strict is for --locked FILE: give both")
    from preflight.cli.gate import Gate, run_behind_the_gate

    differs = None
    if locked is not None:
        differs, waivers = _locked_answer(locked, strict, timeout_seconds)
        chosen = chosen._replace(locked=waivers)
    gate = Gate(fail_on, apply_env, report, timeout_seconds, chosen, as_json, differs)
    return run_behind_the_gate(launch._replace(is_command=True), gate)


def _locked_answer(
    path: str, strict: bool, limit_seconds: float
) -> tuple[LockedStart, tuple[Waiver, ...]]:
    """Read a locked answer.

    Return how a start is compared with it, and the waivers in it. Raises UsageError.
    """
    from preflight.base.output import columns, painter
    from preflight.cli.gate import LockDiff, LockedStart
    from preflight.report.diff.full_answer import (
        differences_object,
        differences_text,
        exit_code,
        full_answer,
        read_locked,
        without_secrets,
    )

    name, before, waivers = read_locked(path, limit_seconds)
    names = (f"{name} ({path})", "what is there")

    def differences(checked: Checked) -> LockDiff:
        after = without_secrets(full_answer(checked.judged_host, checked.waivers))
        text = differences_text(names, before, after, 0, painter("never"), columns())
        return LockDiff(exit_code(before, after), text, differences_object(names, before, after))

    return LockedStart(differences, strict), waivers
