"""Applying a plan: shows, asks, changes step by step, all or none, reads back; and undoes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from checks.framework.finding import Kind, Setting
from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.base import exit_codes
from preflight.base.output import say
from preflight.base.plain_data import fields
from preflight.base.shell import comment, line, visible, wanted_text
from preflight.base.usage_error import UsageError
from preflight.host_tuning.commands import (
    LIMITS_FILE,
    NR_HUGEPAGES,
    ORDERS,
    SYSCTL_FILE,
    SYSTEMD,
    UNIT_FILE,
    WANTS_FILE,
    Context,
    commands,
    drop_in,
    is_ours,
    restart,
)
from preflight.host_tuning.dialects import ArtefactNames
from preflight.host_tuning.dialects.host import (
    limits,
    needs_unit,
    of_unit,
    overruled,
    sysctl,
    sysfs,
    unit_limits,
)
from preflight.host_tuning.plan import safer
from preflight.host_tuning.records import Plan, Planned, Scope
from preflight.host_tuning.undo import (
    Entry,
    Journal,
    JournalError,
    Undone,
    Writer,
    boot_id,
    state_folder,
    undo,
)

NAME = "mooncake-preflight apply"


class Consent(NamedTuple):
    """What the user asked of apply."""

    dry_run: bool = False  # make no change
    yes: bool = False  # do not ask
    as_json: bool = False  # standard output is for one object alone


class Account(NamedTuple):
    """What apply did, for ``--json``, filled in on the way.

    Attributes:
        left: The settings that apply does not make, and how the user makes each.
        reasons: Why a change was not made, or not kept.
    """

    changes: list[ApplyStep]
    left: list[tuple[Planned, str]]
    done: list[str]
    taken_back: list[str]
    reasons: list[str]


class Machine(NamedTuple):
    """The machine to change: this one, or in a test a folder laid out like one.

    Attributes:
        state: The folder of the journal.
    """

    root: Root
    writer: Writer
    state: str


def this_machine() -> Machine:
    return Machine(Root(), Writer(), state_folder(os.environ, os.geteuid() == 0))


def apply_plan(
    plan: Plan,
    argv: Sequence[str],
    machine: Machine,
    consent: Consent,
    *,
    persist: bool = False,
    force: bool = False,
    account: Account | None = None,
) -> int:
    """Show the changes that bring the machine to ``plan``, ask, make them, and return the exit
    code.

    Args:
        argv: The launch, for the command that is shown to root.
        persist: Write drop-ins too.
        force: Replace files that we did not write.
        account: Filled in.

    Raises:
        UsageError: With nothing changed.
    """
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
    grows = any(step.is_pool for step in steps.steps)
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
        return _leave_to_root(steps.steps, forbidden, argv, plan.context, consent, account)
    if not _confirmed(consent, f"Make {_count(steps.steps)}?", account):
        return exit_codes.WARN
    return _make_and_report(steps.steps, machine, consent, account)


def _refused(reasons: Iterable[str], exit_code: int, account: Account) -> int:
    for reason in reasons:
        account.reasons.append(reason)
        say(f"{NAME}: {reason}: nothing was changed", err=True)
    return exit_code


def _make_and_report(
    steps: tuple[ApplyStep, ...], machine: Machine, consent: Consent, account: Account
) -> int:
    """Make the changes under the journal's lock, print what was done or taken back, and return the
    exit code.
    """
    try:
        with Journal(machine.state) as journal:
            for broken_off in settle_interrupted(journal, machine.root, machine.writer):
                say(f"{NAME}: {broken_off}", err=True)
            outcome = carry_out(steps, journal, machine.writer, machine.root)
    except JournalError as error:
        return _refused([str(error)], exit_codes.NOT_PERMITTED, account)
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
    """Show the changes of the journal, ask, and put all back; return the exit code.

    Args:
        account: Filled in.

    Raises:
        UsageError: If nobody can be asked.
    """
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
            if not _confirmed(consent, f"Undo {_count(entries)}?", account):
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


def _confirmed(consent: Consent, question: str, account: Account) -> bool:
    """Return whether the user says yes to the question, or gave --yes; a no goes into ``account``.

    Raises:
        UsageError: If there is nobody to ask.
    """
    if consent.yes:
        return True
    if not sys.stdin.isatty():
        text = "nobody can be asked, because standard input is not a terminal: give --yes"
        raise UsageError(text)
    import click

    if click.confirm(question, err=True):
        return True
    say("nothing was changed", err=True)
    account.reasons.append("the question was answered with no")
    return False


def _show(steps: Steps, plan: Plan, persist: bool, consent: Consent) -> None:
    """Print the difference, the settings left to the user, and those that a reboot undoes."""
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


def _leave_to_root(
    steps: tuple[ApplyStep, ...],
    forbidden: list[ApplyStep],
    argv: Sequence[str],
    context: Context,
    consent: Consent,
    account: Account,
) -> int:
    """Print all changes as commands, as none is made; return the exit code.

    Args:
        forbidden: Those that this user may not make.
        argv: The launch, for the command of ``apply --persist``.
    """
    places = ", ".join(step.path for step in forbidden)
    _refused([f"not permitted to write {places}"], exit_codes.NOT_PERMITTED, account)
    values = [Setting(Kind.SYSFS, s.path, s.wanted) for s in steps if s.kind == "value"]
    for command_line in commands(values, context):
        say(command_line, err=consent.as_json)
    if any(step.kind != "value" for step in steps):
        command = ("mooncake-preflight", "apply", "--persist", *argv)
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
            {"name": of.label, "now": of.now, "wanted": wanted_text(of), "how": how}
            for of, how in ((planned.setting, how) for planned, how in account.left)
        ],
        "done": account.done,
        "taken_back": account.taken_back,
    }


_SYSCTL_NAME = regex(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
# Writing one part of them goes before another: large pages need the largest free pieces.
_NR = "/nr_hugepages"


class ApplyStep(NamedTuple):
    """One change.

    Attributes:
        kind: Value (a kernel file), file or link.
        before: None if ``path`` is missing or unreadable.
        is_pool: A HugeTLB pool, which may get fewer pages than wanted.
    """

    kind: str
    path: str
    before: str | None
    wanted: str
    name: str
    is_pool: bool = False


class Steps(NamedTuple):
    """All changes, in order.

    Attributes:
        refused: Files that are not ours.
        left: Settings that apply does not make, and how the user makes each.
    """

    steps: tuple[ApplyStep, ...]
    refused: tuple[str, ...]
    left: tuple[tuple[Planned, str], ...]


def steps_of(
    plan: Plan, root: Root, writer: Writer, persist: bool = False, force: bool = False
) -> Steps:
    """Return the changes that bring the host to the plan, and the settings left to the user.

    A value that is enough already has no step.

    Args:
        persist: Write drop-ins.
        force: Replace files that are not ours; a link that leads elsewhere is refused even then.
    """
    values = [*_pools(plan, root), *_settings(plan, root)]
    files: list[ApplyStep] = []
    refused: list[str] = []
    if persist:
        for step in _files(plan, root, writer):
            if step.kind == "link":
                refused += [step.path] if step.before is not None else []
            elif not (force or (is_ours(step.before or "") and not writer.is_link(step.path))):
                refused.append(step.path)
            files.append(step)
    steps = (*values, *files)
    return Steps(steps, tuple(refused), tuple(_left(plan, steps)))


def _pools(plan: Plan, root: Root) -> Iterator[ApplyStep]:
    """Yield the steps that grow the pools, node by node, the largest pages first."""
    order = sorted(plan.pools, key=lambda target: (-target.page_bytes, target.node or 0))
    for target in order:
        now = root.integer(target.file)
        if isinstance(now, Unknown) or now < target.pages:
            before = None if isinstance(now, Unknown) else str(now)
            yield ApplyStep("value", target.file, before, str(target.pages), target.name, True)


def _settings(plan: Plan, root: Root) -> Iterator[ApplyStep]:
    """Yield the steps that write kernel files other than the pools' (those are of ``_pools``).

    A value that is enough already has no step: a size is never lowered.
    """
    for setting in (each.setting for each in plan.planned(Kind.SYSCTL, Kind.SYSFS) if each.change):
        path = _kernel_file(setting)
        if path is None or path.endswith(_NR):
            continue
        now = root.word(path)
        before = None if isinstance(now, Unknown) else " ".join(now.split())
        if before is not None:  # nothing is ever lowered that is a size
            value, decided = safer(setting.kind, setting.name, before, setting.wanted)
            if decided and value == before:
                continue
        yield ApplyStep("value", path, before, setting.wanted, setting.name)


def _kernel_file(setting: Setting) -> str | None:
    """Return the kernel file of a setting; None if apply writes no such setting."""
    if setting.name in (NR_HUGEPAGES, *ORDERS):
        return None
    if setting.kind is Kind.SYSCTL:
        fits = _SYSCTL_NAME.fullmatch(setting.name)
        return f"/proc/sys/{setting.name.replace('.', '/')}" if fits else None
    return setting.name if setting.name.startswith(("/sys/", "/proc/sys/")) else None


def _files(plan: Plan, root: Root, writer: Writer) -> Iterator[ApplyStep]:
    """Yield the steps that write the drop-ins, which make the plan last, and the link that enables
    the unit.

    A file that has this text already is left out.
    """
    names = ArtefactNames()
    rendered = [(SYSCTL_FILE, sysctl(plan, names).text)]
    systemd = not isinstance(root.names(SYSTEMD), Unknown)
    unit = systemd and needs_unit(plan)
    if unit:
        rendered.append((UNIT_FILE, sysfs(plan, names).text))
    changing = (s for s in plan.planned(Kind.ULIMIT) if s.change and s.scope is Scope.RUNTIME)
    if any(not setting.setting.unit for setting in changing):
        rendered.append((LIMITS_FILE, _with_earlier_rows(limits(plan, names).text, writer)))
    for limited in sorted(unit_limits(plan)) if systemd else ():
        rendered.append((drop_in(limited), of_unit(plan, limited).text))
    for path, text in rendered:
        content = writer.content(path)
        before = None if content is None else content[0]
        if text and before != f"{text}\n":
            yield ApplyStep("file", path, before, f"{text}\n", path)
    if unit and writer.target(WANTS_FILE) != UNIT_FILE:
        yield ApplyStep("link", WANTS_FILE, writer.target(WANTS_FILE), UNIT_FILE, WANTS_FILE)


def _with_earlier_rows(text: str, writer: Writer) -> str:
    """Return ``text`` for limits.d with the rows of an earlier plan that ``text`` does not set."""
    content = writer.content(LIMITS_FILE) or ("", 0)
    earlier = content[0].splitlines() if is_ours(content[0]) else []
    kept = {tuple(line.split()[:3]) for line in text.splitlines()}
    rows = (row for row in earlier if row and not row.startswith("#"))
    return "\n".join([text, *(row for row in rows if tuple(row.split()[:3]) not in kept)])


def _left(plan: Plan, steps: tuple[ApplyStep, ...]) -> Iterator[tuple[Planned, str]]:
    """Yield each unmet setting of the plan that apply leaves, and how the user makes it."""
    done = {step.path for step in steps}
    pools = {target.file for target in plan.pools}
    for planned in plan.settings:
        setting = planned.setting
        if not planned.change or setting.name in (NR_HUGEPAGES, *ORDERS):
            continue
        path = _kernel_file(setting)
        if path is not None and (path in done or path in pools or path.endswith(_NR)):
            continue
        if path is None or setting.kind not in (Kind.SYSCTL, Kind.SYSFS):
            yield planned, _way_to_make(plan, planned, done)


def _way_to_make(plan: Plan, setting: Planned, done: set[str]) -> str:
    """Return the command or format that brings about a setting which apply leaves.

    Args:
        done: The paths that apply writes.
    """
    unit = setting.setting.unit
    if unit:
        command = f"systemctl daemon-reload && {line(restart(unit))}"
        return command if drop_in(unit) in done else f"apply --persist, then {command}"
    if setting.setting.kind is Kind.ULIMIT and setting.scope is Scope.RUNTIME:
        if LIMITS_FILE in done:
            return "log in again, or plan --format systemd for a service"
        return "plan --format limits (or apply --persist) for logins, systemd for a service"
    if setting.scope is Scope.CONTAINER:
        return "plan --format docker, compose or k8s"
    if setting.scope is Scope.ENVIRONMENT:
        return "plan --format env or shell"
    return "; ".join(commands((setting.setting,), plan.context))


def difference(steps: tuple[ApplyStep, ...]) -> str:
    """Return every change as a unified diff of the file that it is made in."""
    import difflib

    lines: list[str] = []
    for step in steps:
        before = [] if step.before is None else step.before.splitlines()
        after = step.wanted.splitlines()
        origin = "/dev/null" if step.before is None else step.path
        lines += difflib.unified_diff(before, after, origin, step.path, lineterm="")
    return "\n".join(map(visible, lines))


COMPACT = "/proc/sys/vm/compact_memory"
# Each try compacts first; a try that brings no page ends them.
MOST_TRIES = 4


class ApplyOutcome(NamedTuple):
    """The result of an apply.

    Attributes:
        lines: The changes that were made.
        failure: Why apply stopped, or "".
        undone: How each change was taken back after a failure.
    """

    lines: tuple[str, ...]
    failure: str = ""
    undone: tuple[Undone, ...] = ()


class StepError(Exception):
    """A step of apply has failed: a sentence."""


def carry_out(
    steps: tuple[ApplyStep, ...], journal: Journal, writer: Writer, root: Root
) -> ApplyOutcome:
    """Make each change with its entry in the journal, and read kernel files back.

    If a change fails or is interrupted, all changes are taken back; an interruption is raised
    again.
    """
    start, boot = len(journal.entries), boot_id(root)
    lines: list[str] = []
    try:
        for step in steps:
            lines += _make(step, journal, writer, root, boot)
    except (StepError, JournalError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"{error.filename or step.path}: {error.strerror}"
        return ApplyOutcome(tuple(lines), text, tuple(undo(journal, root, writer, start)))
    except BaseException:
        undo(journal, root, writer, start)
        raise
    return ApplyOutcome(tuple(lines))


def _make(
    step: ApplyStep, journal: Journal, writer: Writer, root: Root, boot: str
) -> tuple[str, ...]:
    """Make one change, with its entry in the journal, and return a line that reports it.

    Raises StepError, JournalError or OSError.

    Args:
        boot: The id of this boot.
    """
    if step.kind == "value":
        return _set_value(step, journal, writer, root, boot)
    is_file = step.kind == "file"
    content, mode = (writer.content(step.path) if is_file else None) or (None, None)
    if is_file and content != step.before:
        raise StepError(f"{step.path}: somebody changed it meanwhile: run apply again")
    entry = Entry(step.kind, step.path, step.before, step.wanted, None, boot, mode)
    journal.add(entry)
    if is_file:
        writer.file(step.path, step.wanted, 0o644 if mode is None else mode)
    else:
        writer.link(step.path, step.wanted)
    journal.replace(entry, entry._replace(got=step.wanted))
    return (f"{step.path}: {'written' if is_file else 'enabled'}",)


def _set_value(
    step: ApplyStep, journal: Journal, writer: Writer, root: Root, boot: str
) -> tuple[str, ...]:
    """Write a kernel file, read it back, and return a line that reports it.

    A pool may have more pages than wanted.

    Raises:
        StepError: If the file cannot be read or has another value.
    """
    current = root.word(step.path)
    if isinstance(current, Unknown):
        raise StepError(f"{current.reason}: it could be read when the plan was made")
    current = " ".join(current.split())
    if current == step.wanted or (step.is_pool and _pages(current, step) >= int(step.wanted)):
        return (f"{step.path}: is {current} already",)
    entry = Entry("value", step.path, current, step.wanted, None, boot)
    journal.add(entry)
    if step.is_pool:
        got, tries = _grow(step, writer, root)
        note = f", after compacting memory {tries} times" if tries else ""
    else:
        writer.value(step.path, step.wanted)
        got, note = _read_back(step, root), ""
        if got != step.wanted:
            raise StepError(f"{step.path}: wrote {step.wanted}, and it reads {got}")
    journal.replace(entry, entry._replace(got=got))
    return (f"{step.path}: {current or 'nothing'} -> {got or 'nothing'}{note}",)


def _grow(step: ApplyStep, writer: Writer, root: Root) -> tuple[str, int]:
    """Ask the kernel for pages, which it may grant only in part; then compact memory and ask again,
    while that brings more.

    Return (the pages as text, how often it compacted).

    Raises:
        StepError: If pages are missing.
    """
    wanted = int(step.wanted)
    writer.value(step.path, step.wanted)
    got = _pages(_read_back(step, root), step)
    tries = 0
    while got < wanted and tries < MOST_TRIES:
        tries += 1
        with suppress(OSError):  # a kernel without compaction: a second try may still find more
            writer.value(COMPACT, "1")
        writer.value(step.path, step.wanted)
        before, got = got, _pages(_read_back(step, root), step)
        if got <= before:
            break
    if got < wanted:
        tried = f"the kernel gave {got} of {wanted} pages, after compacting memory {tries} times"
        boot = "reserve them at boot (plan --format cmdline, sysfs or sysctl, then a reboot)"
        raise StepError(f"{step.name}: {tried}: memory is in use or in pieces; {boot}")
    return str(got), tries


def _read_back(step: ApplyStep, root: Root) -> str:
    content = root.word(step.path)
    if isinstance(content, Unknown):
        raise StepError(f"{content.reason}: it cannot be read back")
    return " ".join(content.split())


def _pages(text: str, step: ApplyStep) -> int:
    if not text.isdecimal():
        raise StepError(f"{step.path}: not a number of pages: {text[:40]!r}")
    return int(text)


def settle_interrupted(journal: Journal, root: Root, writer: Writer) -> list[str]:
    """Settle the entries of kernel values that a crash left unfinished, so that undo finds them;
    return a sentence for each.

    An entry gets the value that its file has now. It is dropped if that is the value before, or if
    the host was rebooted since. Leftover parts of files are removed.
    """
    lines = []
    for entry in list(journal.entries):
        if entry.got is None and entry.kind == "file":
            writer.discard_part(entry.path)
        if entry.got is not None or entry.kind != "value":
            continue
        current = root.word(entry.path)
        if isinstance(current, Unknown):
            continue
        current = " ".join(current.split())
        text = f"an earlier apply stopped here; it was {entry.before}, should have become"
        lines.append(f"{entry.path}: {text} {entry.wanted}, and is {current}")
        mine = boot_id(root) == entry.boot and current != entry.before
        journal.replace(entry, entry._replace(got=current) if mine else None)
    return lines
