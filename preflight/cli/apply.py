"""``mooncake-preflight apply``: setting what a launch needs, and taking it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command
from preflight.cli.options import JSON, ROOT, TIMEOUT, with_launch

if TYPE_CHECKING:
    from preflight.inputs.launch_words import LaunchWords
    from preflight.processes.processes import LaunchProcess


@command(
    "apply",
    "mooncake-preflight apply --dry-run launch.sh",
    "sudo mooncake-preflight apply --yes --persist launch.sh",
    "sudo mooncake-preflight apply --undo",
)
@click.option("--dry-run", is_flag=True, help="Show the difference, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--persist", is_flag=True, help="Write drop-ins too, so that a reboot keeps it.")
@click.option("--force", is_flag=True, help="With --persist: replace files that others wrote.")
@click.option("--undo", is_flag=True, help="Put back what apply changed, in reverse.")
@JSON
@TIMEOUT
@ROOT
@with_launch
def apply(
    *,
    dry_run: bool,
    yes: bool,
    persist: bool,
    force: bool,
    undo: bool,
    as_json: bool,
    timeout_seconds: float,
    root: str,
    launch: LaunchWords,
) -> int:
    """Set what a launch needs of this host: huge pages node by node, and kernel settings.

    Shows what will change, and asks. Reads each value back; where a step fails, takes back the
    steps before it. Never lowers a value, and leaves pages that other programs hold. Lists what it
    cannot set: the container, the launch, limits of processes that run.

    Exit codes: 0 done, or nothing to do; 1 you said no, or undo could not put all back; 2 a step
    failed and the others were taken back; 3 what decides is not known; 64 usage error; 70 a defect
    of this program; 77 not permitted: the commands are printed instead.
    """
    from preflight.base.usage_error import UsageError
    from preflight.settings.apply import (
        Account,
        Consent,
        apply_object,
        apply_plan,
        this_machine,
        undo_changes,
    )
    from preflight.settings.plan import plan_of

    if root.rstrip("/"):
        raise UsageError(
            f"--root {root}: apply changes this machine alone; plan --root shows what another needs"
        )
    if force and not persist:
        raise UsageError("--force is about files, which --persist writes")
    consent = Consent(dry_run, yes, as_json)
    account = Account([], [], [], [], [])
    source = ""
    processes: tuple[LaunchProcess, ...] = ()
    if undo:
        if launch.words or persist:
            raise UsageError("--undo takes back what was done, whatever the launch: give it alone")
        code = undo_changes(this_machine(), consent, account)
    else:
        plan = plan_of(launch, "/", timeout_seconds)
        source, processes, machine = plan.source, plan.processes, this_machine()
        code = apply_plan(
            plan, launch.words, machine, consent, persist=persist, force=force, account=account
        )
    if as_json:
        from checks.capture.secrets import public
        from preflight.base.envelope import envelope
        from preflight.base.output import say_json
        from preflight.reading.understood import about

        answer = public(apply_object(account))
        reason, launched = "; ".join(account.reasons), about(source, processes)
        say_json(envelope("apply", code, answer, reason=reason, launch=launched))
    return code
