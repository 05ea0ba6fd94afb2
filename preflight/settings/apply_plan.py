"""Applying a plan: shows, asks, changes, reads back; and takes it back."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from checks.base.finding import Kind, Setting
from checks.base.root import Root
from preflight.base import exit_codes
from preflight.base.output import say
from preflight.base.shell import comment, line, wanted_text
from preflight.base.usage_error import UsageError
from preflight.render.plain_data import fields
from preflight.settings.apply import ApplyStep, Steps, adopt, carry_out, difference, steps_of
from preflight.settings.commands import Context, commands
from preflight.settings.dialects.kernel import overruled
from preflight.settings.records import Plan, Planned
from preflight.settings.undo import Journal, JournalError, state_folder, undo
from preflight.settings.writer import Writer

NAME = "mooncake-preflight apply"


class Consent(NamedTuple):
    """What the user asked of apply."""

    dry_run: bool = False  # make no change
    yes: bool = False  # do not ask
    as_json: bool = False  # standard output is for one object alone


class Account(NamedTuple):
    """What was done, for ``--json``, filled in on the way; left: what apply does not do."""

    changes: list[ApplyStep]
    left: list[tuple[Planned, str]]
    done: list[str]
    taken_back: list[str]
    reasons: list[str]


class Machine(NamedTuple):
    """Where it is done: this machine, or in a test a folder laid out like one."""

    root: Root
    writer: Writer
    state: str


def this_machine() -> Machine:
    return Machine(Root(), Writer(), state_folder(os.environ, os.geteuid() == 0))


def apply_plan(
    plan: Plan,
    words: Sequence[str],
    machine: Machine,
    consent: Consent,
    *,
    persist: bool = False,
    force: bool = False,
    account: Account | None = None,
) -> int:
    """Bring the machine to ``plan``; ``force`` replaces others' files. Raises UsageError."""
    account = account or Account([], [], [], [], [])
    unknown = [gap for gap in plan.gaps if gap.topic == "pages"]
    if unknown:
        return _refused([gap.reason for gap in unknown], exit_codes.UNKNOWN, account)
    if persist and plan.context.container:
        where = f"this is a container ({plan.context.container}), and drop-ins belong on its host"
        raise UsageError(f"--persist: {where}: run apply there, or see plan --format")
    try:
        steps = steps_of(plan, machine.root, machine.writer, persist, force)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}: nothing was changed") from None
    if steps.refused:
        text = f"{', '.join(steps.refused)} was not written by mooncake-preflight: move it away"
        edit = "or replace it with --force (apply --undo puts it back)"
        raise UsageError(f"--persist: {text}, {edit}")
    account.changes.extend(steps.steps)
    account.left.extend(steps.left)
    _show(steps, plan, persist, consent)
    if not steps.steps:
        say("nothing to change", err=consent.as_json)
        return 0
    grows = any(step.pool for step in steps.steps)
    # Pages that nobody counted the rest of the host against press it out: the others wait too.
    if grows and (reasons := plan.impossible or plan.undecided):
        code = exit_codes.FAIL if plan.impossible else exit_codes.UNKNOWN
        return _refused(reasons, code, account)
    lost = [step.path for step in steps.steps if step.kind == "value" and step.before is None]
    if lost:
        return _refused((f"{', '.join(lost)} cannot be read",), exit_codes.UNKNOWN, account)
    if consent.dry_run:
        say(f"{_count(steps.steps)} to make; nothing was changed (--dry-run)", err=consent.as_json)
        return 0
    forbidden = [s for s in steps.steps if not machine.writer.may_write(s.kind, s.path)]
    if forbidden:
        return _not_permitted(forbidden, words, plan.context, consent, account)
    if not _wanted(consent, f"Make {_count(steps.steps)}?"):
        say("nothing was changed", err=True)
        account.reasons.append("the question was answered with no")
        return exit_codes.WARN
    return _carry_out(steps.steps, machine, consent, account)


def _refused(reasons: Iterable[str], exit_code: int, account: Account) -> int:
    for reason in reasons:
        account.reasons.append(reason)
        say(f"{NAME}: {reason}: nothing was changed", err=True)
    return exit_code


def _carry_out(
    steps: tuple[ApplyStep, ...], machine: Machine, consent: Consent, account: Account
) -> int:
    """Make the changes under the journal's lock, and print what was done or taken back."""
    try:
        with Journal(machine.state) as journal:
            for broken_off in adopt(journal, machine.root, machine.writer):
                say(f"{NAME}: {broken_off}", err=True)
            outcome = carry_out(steps, journal, machine.writer, machine.root)
    except JournalError as error:
        account.reasons.append(str(error))
        say(f"{NAME}: {error}: nothing was changed", err=True)
        return exit_codes.NOT_PERMITTED
    account.done.extend(outcome.lines)
    for done in outcome.lines:
        say(done, err=consent.as_json)
    if not outcome.failure:
        say("done; apply --undo puts it back", err=consent.as_json)
        return 0
    account.reasons.append(outcome.failure)
    account.taken_back.extend(undone.text for undone in outcome.undone)
    say(f"{NAME}: {outcome.failure}", err=True)
    for undone in outcome.undone:
        say(f"{NAME}: taken back: {undone.text}", err=True)
    if not all(undone.whole for undone in outcome.undone):
        say(f"{NAME}: not everything could be undone: see above", err=True)
    return exit_codes.FAIL


def undo_changes(machine: Machine, consent: Consent, account: Account | None = None) -> int:
    """Put back all changes of the journal; return the exit code. Raises UsageError."""
    account = account or Account([], [], [], [], [])
    try:
        with Journal(machine.state) as journal:
            entries = list(journal.entries)
            if not entries:
                say("nothing to undo", err=consent.as_json)
                return 0
            if consent.dry_run or not consent.yes:  # else what is done is said soon enough
                for entry in reversed(entries):
                    was = "not there" if entry.before is None else "as it was"
                    shown = entry.before or "nothing" if entry.kind == "value" else was
                    say(f"{entry.path}: to be put back to {shown}", err=consent.as_json)
            if consent.dry_run:
                say("nothing was changed (--dry-run)", err=consent.as_json)
                return 0
            if not _wanted(consent, f"Undo {_count(entries)}?"):
                say("nothing was changed", err=True)
                account.reasons.append("the question was answered with no")
                return exit_codes.WARN
            results = undo(journal, machine.root, machine.writer)
    except JournalError as error:
        account.reasons.append(str(error))
        say(f"{NAME}: {error}", err=True)
        return exit_codes.NOT_PERMITTED
    account.taken_back.extend(result.text for result in results)
    for result in results:
        say(result.text, err=consent.as_json)
    return 0 if all(result.whole for result in results) else exit_codes.WARN


def _wanted(consent: Consent, question: str) -> bool:
    """Ask whether to go on. Raises UsageError if there is nobody to ask."""
    if consent.yes:
        return True
    if not sys.stdin.isatty():
        text = "nobody can be asked, because standard input is not a terminal: give --yes"
        raise UsageError(text)
    import click

    return click.confirm(question, err=True)


def _show(steps: Steps, plan: Plan, persist: bool, consent: Consent) -> None:
    """Print the difference, the settings left to the user, and those that do not last."""
    if steps.steps:
        say(difference(steps.steps), err=consent.as_json)
        say("", err=consent.as_json)
    if steps.left:
        say("left for you:", err=consent.as_json)
        for setting, how in steps.left:
            wanted = wanted_text(setting.setting) or "removed"
            change = f"{setting.setting.now or 'not set'} -> {wanted}: {how}"
            say(f"  {setting.setting.label}: {change}", err=consent.as_json)
    for note in overruled(plan) if persist else ():
        say(note, err=consent.as_json)
    passing = [s for s in plan.planned(Kind.SYSCTL, Kind.SYSFS) if not s.lasts]
    if passing and not persist:
        names = ", ".join(dict.fromkeys(each.setting.name for each in passing))
        say(f"until the next boot: {names}; --persist makes it last", err=consent.as_json)


def _count(changes: Sequence[object]) -> str:
    return f"{len(changes)} change{'s' * (len(changes) != 1)}"


def _not_permitted(
    forbidden: list[ApplyStep],
    words: Sequence[str],
    context: Context,
    consent: Consent,
    account: Account,
) -> int:
    """Print the same changes as commands for a user who may make them."""
    places = ", ".join(step.path for step in forbidden)
    account.reasons.append(f"not permitted to write {places}")
    say(f"{NAME}: not permitted to write {places}: nothing was changed", err=True)
    values = [Setting(Kind.SYSFS, s.path, s.wanted) for s in forbidden if s.kind == "value"]
    for command_line in commands(values, context):
        say(command_line, err=consent.as_json)
    if any(step.kind != "value" for step in forbidden):
        command = ("mooncake-preflight", "apply", "--persist", *words)
        say(comment(f"as root: {line(command)}"), err=consent.as_json)
    return exit_codes.NOT_PERMITTED


def apply_object(account: Account) -> dict[str, Any]:
    """Return the account of an apply: ``schemas/apply-v1.schema.json``."""
    return {
        "changes": [
            {**fields(change, "kind", "path", "wanted"), "now": change.before}
            for change in account.changes
        ],
        "left": [
            {"name": of.label, "now": now, "wanted": wanted_text(of), "how": how}
            for of, now, how in ((x.setting, x.setting.now, how) for x, how in account.left)
        ],
        "done": account.done,
        "taken_back": account.taken_back,
    }
