"""``mooncake-preflight plan`` and ``apply``: what a launch needs, printed, or set and undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.base.usage_error import UsageError
from preflight.cli.commands import command, say_answer, with_one_format
from preflight.cli.options import JSON, ROOT, TIMEOUT, with_host, with_launch
from preflight.host_tuning.dialects import FORMATS

if TYPE_CHECKING:
    from preflight.command_inputs.launch_words import LaunchWords
    from preflight.host_tuning.records import Plan
    from preflight.processes.processes import LaunchProcess

NAME = "mooncake-preflight plan"


@command(
    "plan",
    "mooncake-preflight plan launch.sh",
    "mooncake-preflight plan --format sysctl launch.sh > 90-mooncake.conf",
    "mooncake-preflight plan --format k8s --name server launch.sh",
)
@with_one_format(*FORMATS)
@click.option(
    "--name", "service", metavar="NAME", default="",
    help="The compose service, the container of the Pod, or the unit. Default: as the launch "
    "calls it, or sglang.",
)  # fmt: skip
@click.option(
    "--rdma-resource", metavar="NAME", default="rdma/hca", show_default=True,
    help="What the Kubernetes device plugin calls an RDMA device.",
)  # fmt: skip
@click.option(
    "--exit-code", "by_change", is_flag=True, help="Exit with 1 where something is to change."
)
@TIMEOUT
@with_host
@with_launch
def plan(
    *,
    format_: str,
    service: str,
    rdma_resource: str,
    by_change: bool,
    timeout_seconds: float,
    root: str,
    launch: LaunchWords,
) -> int:
    """Print what to set so that a launch runs here, in a format that other tools read.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. Standard output has the file to use, and nothing
    else; remarks about it go to standard error. Nothing is changed.

    Exit codes: 0 the file is complete; 1 with --exit-code, if something has to change; 2 this
    host cannot hold it, and what would take its pages is not printed; 3 what the format needs is
    not known; 64 usage error; 70 a defect of this program.
    """
    from checks.host_snapshot.secrets import public
    from checks.hugetlb.targets import ASK_FIT
    from preflight.base import exit_codes
    from preflight.base.output import say
    from preflight.host_tuning.dialects import ArtefactNames, missing, refused, render
    from preflight.host_tuning.plan import plan_object

    the_plan = plan_of(launch, root, timeout_seconds)
    changes = any(setting.change for setting in the_plan.settings)
    code = exit_codes.WARN if by_change and changes else 0
    if format_ in ("text", "json"):
        if the_plan.impossible and the_plan.grows:
            code = exit_codes.FAIL
        elif the_plan.gaps:
            code = exit_codes.UNKNOWN
    if format_ == "json":
        why = [*the_plan.impossible, *(f"{gap.topic}: {gap.reason}" for gap in the_plan.gaps)]
        why += ["there are settings to change"] if code == exit_codes.WARN else []
        started = the_plan.source, the_plan.processes
        body, word = public(plan_object(the_plan)), "unknown" if the_plan.gaps else "known"
        reason = next(iter(why), None)
        say_answer("plan", code, body, word=word, reason=reason, started=started)
        return code
    gaps, impossible = missing(the_plan, format_), refused(the_plan, format_)
    if FORMATS[format_].launch and not the_plan.source and not gaps:
        instead = "give a script, or a command after --"
        raise UsageError(f"--format {format_} is about a launch: {instead}")
    # Half of a drop-in or of a Pod looks like a whole one; one that cannot be had does harm.
    for reason in (*impossible, *gaps):
        say(public(f"{NAME}: --format {format_}: {reason}"), err=True)
    if impossible:
        say(f"{NAME}: nothing is printed of it: {ASK_FIT}", err=True)
        return exit_codes.FAIL
    if gaps:
        return exit_codes.UNKNOWN
    rendering = render(the_plan, format_, ArtefactNames(service, rdma_resource))
    notes = list(rendering.notes)
    if format_ != "text":
        notes += [*the_plan.conflicts, *the_plan.unread]
    if rendering.text:
        # What a machine reads stays as it is: variables with a secret are not in it.
        say(public(rendering.text) if format_ == "text" else rendering.text)
    else:
        notes.append(f"nothing to set with --format {format_}")
    for note in notes:
        say(public(f"{NAME}: {note}"), err=True)
    return code


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

    Shows what will change, and asks. Reads each value back; if a step fails, takes back the
    steps before it. Never lowers a value, and leaves pages that other programs hold. Lists what it
    cannot set: the container, the launch, limits of processes that run.

    Exit codes: 0 done, or nothing to do; 1 you said no, or undo could not put all back; 2 a step
    failed and the others were taken back; 3 what decides is not known; 64 usage error; 70 a defect
    of this program; 77 not permitted: the commands are printed instead.
    """
    from preflight.host_tuning.apply import (
        Account,
        Consent,
        apply_object,
        apply_plan,
        this_machine,
        undo_changes,
    )

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
        from checks.host_snapshot.secrets import public

        answer, reason = public(apply_object(account)), "; ".join(account.reasons)
        say_answer("apply", code, answer, reason=reason, started=(source, processes))
    return code


def plan_of(launch_words: LaunchWords, root: str, timeout_seconds: float) -> Plan:
    """Return the plan of a launch on a host, or of the host alone without a launch.

    Raises:
        UsageError: If either cannot be read; a launch that is late leaves a gap for every topic.
    """
    from checks.framework.unknown import Unknown
    from checks.run_checks.runner import every_check
    from preflight.host_tuning.plan import kept_settings, plan, unresolved_variables, workload_of
    from preflight.host_tuning.records import TOPICS, Gap
    from preflight.verdict.judge_host import judge_host

    seen = judge_host(launch_words, root, timeout_seconds, list(every_check()))
    unread: list[Gap] = []
    if isinstance(seen.launch, Unknown):
        unread = [Gap(topic, seen.launch.reason) for topic in TOPICS]
    elif seen.launch is not None:
        unread = unresolved_variables(seen.launch.sizing)
    made = plan(seen.needs, seen.facts, seen.findings, kept_settings(seen.host.root), unread)
    if seen.launch is None or isinstance(seen.launch, Unknown):
        return made
    sizing = seen.launch.sizing
    workload, processes = workload_of(seen.launch.needs, sizing), sizing.inputs.processes
    return made._replace(workload=workload, unread=sizing.not_whole, processes=processes)
