"""What of a plan is done by writing to this host: all of it step by step, or none."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from checks.base.finding import Kind, Setting
from checks.base.regex import regex
from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.base.shell import line, visible
from preflight.settings.commands import (
    LIMITS_FILE,
    NR_HUGEPAGES,
    ORDERS,
    SYSCTL_FILE,
    SYSTEMD,
    UNIT_FILE,
    WANTS_FILE,
    commands,
    drop_in,
    is_ours,
    restart,
)
from preflight.settings.dialects import ArtefactNames
from preflight.settings.dialects.kernel import needs_unit, sysctl, sysfs
from preflight.settings.dialects.limits import limits, of_unit, unit_limits
from preflight.settings.plan import safer
from preflight.settings.records import Plan, Planned, Scope
from preflight.settings.undo import Entry, Journal, JournalError, Undone, boot_id, undo
from preflight.settings.writer import Writer

_SYSCTL_NAME = regex(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
# Writing one part of them goes before another: large pages need the largest free pieces.
_NR = "/nr_hugepages"


class ApplyStep(NamedTuple):
    """One change. before: None if nothing is there. pool: the kernel may give less than asked."""

    kind: str
    path: str
    before: str | None
    wanted: str
    name: str
    pool: bool = False


class Steps(NamedTuple):
    """steps: in order. refused: files that are not ours. left: what apply does not do, and how."""

    steps: tuple[ApplyStep, ...]
    refused: tuple[str, ...]
    left: tuple[tuple[Planned, str], ...]


def steps_of(
    plan: Plan, root: Root, writer: Writer, persist: bool = False, force: bool = False
) -> Steps:
    """Return the changes that bring the host to the plan; none if a value is enough."""
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
    order = sorted(plan.pools, key=lambda pool: (-pool.page_bytes, pool.node or 0))
    for target in order:
        now = root.integer(target.file)
        if isinstance(now, Unknown) or now < target.pages:
            before = None if isinstance(now, Unknown) else str(now)
            yield ApplyStep("value", target.file, before, str(target.pages), target.name, True)


def _settings(plan: Plan, root: Root) -> Iterator[ApplyStep]:
    """Yield the steps that write kernel files; a size is never lowered."""
    for setting in (each.setting for each in plan.planned(Kind.SYSCTL, Kind.SYSFS) if each.change):
        path = _path(setting)
        if path is None or path.endswith(_NR):
            continue
        now = root.word(path)
        before = None if isinstance(now, Unknown) else " ".join(now.split())
        if before is not None:  # nothing is ever lowered that is a size
            value, decided = safer(setting.kind, setting.name, before, setting.wanted)
            if before == setting.wanted or (decided and value == before):
                continue
        yield ApplyStep("value", path, before, setting.wanted, setting.name)


def _path(setting: Setting) -> str | None:
    """Return the kernel file of a setting, None if it is not for apply."""
    if setting.name in (NR_HUGEPAGES, *ORDERS):
        return None
    if setting.kind is Kind.SYSCTL:
        fits = _SYSCTL_NAME.fullmatch(setting.name)
        return f"/proc/sys/{setting.name.replace('.', '/')}" if fits else None
    return setting.name if setting.name.startswith(("/sys/", "/proc/sys/")) else None


def _files(plan: Plan, root: Root, writer: Writer) -> Iterator[ApplyStep]:
    """Yield the steps that write the drop-ins: they make the plan last."""
    names = ArtefactNames()
    rendered = [(SYSCTL_FILE, sysctl(plan, names).text)]
    systemd = not isinstance(root.names(SYSTEMD), Unknown)
    unit = systemd and needs_unit(plan)
    if unit:
        rendered.append((UNIT_FILE, sysfs(plan, names).text))
    changing = (s for s in plan.planned(Kind.ULIMIT) if s.change and s.scope is Scope.RUNTIME)
    if any(not setting.setting.unit for setting in changing):
        rendered.append((LIMITS_FILE, _with_rows(limits(plan, names).text, writer)))
    for limited in sorted(unit_limits(plan)) if systemd else ():
        rendered.append((drop_in(limited), of_unit(plan, limited).text))
    for path, text in rendered:
        content = writer.content(path)
        before = None if content is None else content[0]
        if text and before != f"{text}\n":
            yield ApplyStep("file", path, before, f"{text}\n", path)
    if unit and writer.target(WANTS_FILE) != UNIT_FILE:
        yield ApplyStep("link", WANTS_FILE, writer.target(WANTS_FILE), UNIT_FILE, WANTS_FILE)


def _with_rows(text: str, writer: Writer) -> str:
    """Return limits.d text with the rows of an earlier plan added."""
    content = writer.content(LIMITS_FILE)
    earlier = content[0].splitlines() if content is not None and is_ours(content[0]) else []
    kept = {tuple(line.split()[:3]) for line in text.splitlines()}
    rows = (row for row in earlier if row and not row.startswith("#"))
    return "\n".join([text, *(row for row in rows if tuple(row.split()[:3]) not in kept)])


def _left(plan: Plan, steps: tuple[ApplyStep, ...]) -> Iterator[tuple[Planned, str]]:
    """Yield each unmet setting that apply leaves, with the command for it."""
    done = {step.path for step in steps}
    pools = {target.file for target in plan.pools}
    for planned in plan.settings:
        setting = planned.setting
        if not planned.change or setting.name in (NR_HUGEPAGES, *ORDERS):
            continue
        path = _path(setting)
        if path is not None and (path in done or path in pools or path.endswith(_NR)):
            continue
        if path is None or setting.kind not in (Kind.SYSCTL, Kind.SYSFS):
            yield planned, _how(plan, planned, done)


def _how(plan: Plan, setting: Planned, done: set[str]) -> str:
    """Return the command that brings about a setting which apply leaves."""
    unit = setting.setting.unit
    if unit:
        words = f"systemctl daemon-reload && {line(restart(unit))}"
        return words if drop_in(unit) in done else f"apply --persist, then {words}"
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
    """What was done, in lines; why it stopped, or ""; what became of what had been done before."""

    lines: tuple[str, ...]
    failure: str = ""
    undone: tuple[Undone, ...] = ()


class StepError(Exception):
    """A step that did not come to what it was to: a sentence."""


def carry_out(
    steps: tuple[ApplyStep, ...], journal: Journal, writer: Writer, root: Root
) -> ApplyOutcome:
    """Make each change and read it back; if one fails, take all back."""
    start, boot = len(journal.entries), boot_id(root)
    lines: list[str] = []
    try:
        for step in steps:
            lines += _carry_out(step, journal, writer, root, boot)
    except (StepError, JournalError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError):
            text = f"{error.filename or step.path}: {error.strerror}"
        return ApplyOutcome(tuple(lines), text, tuple(undo(journal, root, writer, start)))
    except BaseException:
        undo(journal, root, writer, start)
        raise
    return ApplyOutcome(tuple(lines))


def _carry_out(
    step: ApplyStep, journal: Journal, writer: Writer, root: Root, boot: str
) -> tuple[str, ...]:
    """Make one change, with its entry in the journal. Raises StepError."""
    if step.kind == "value":
        return _value(step, journal, writer, root, boot)
    mode = None
    if step.kind == "file":
        content = writer.content(step.path)
        if (None if content is None else content[0]) != step.before:
            raise StepError(f"{step.path}: somebody changed it meanwhile: run apply again")
        mode = None if content is None else content[1]
    entry = Entry(step.kind, step.path, step.before, step.wanted, None, boot, mode)
    journal.add(entry)
    if step.kind == "file":
        writer.file(step.path, step.wanted, 0o644 if mode is None else mode)
    else:
        writer.link(step.path, step.wanted)
    journal.replace(entry, entry._replace(got=step.wanted))
    return (f"{step.path}: {'written' if step.kind == 'file' else 'enabled'}",)


def _value(
    step: ApplyStep, journal: Journal, writer: Writer, root: Root, boot: str
) -> tuple[str, ...]:
    """Write a kernel file and read it back. Raises StepError if it does not have the value."""
    current = root.word(step.path)
    if isinstance(current, Unknown):
        raise StepError(f"{current.reason}: it could be read when the plan was made")
    current = " ".join(current.split())
    if current == step.wanted or (step.pool and _count(current, step) >= int(step.wanted)):
        return (f"{step.path}: is {current} already",)
    entry = Entry("value", step.path, current, step.wanted, None, boot)
    journal.add(entry)
    if step.pool:
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
    """Ask for pages, which the kernel grants in part without an error."""
    wanted = int(step.wanted)
    writer.value(step.path, step.wanted)
    got = _count(_read_back(step, root), step)
    tries = 0
    while got < wanted and tries < MOST_TRIES:
        tries += 1
        with suppress(OSError):  # a kernel without compaction: a second try may still find more
            writer.value(COMPACT, "1")
        writer.value(step.path, step.wanted)
        before, got = got, _count(_read_back(step, root), step)
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


def _count(text: str, step: ApplyStep) -> int:
    if not text.isdecimal():
        raise StepError(f"{step.path}: not a number of pages: {text[:40]!r}")
    return int(text)


def adopt(journal: Journal, root: Root, writer: Writer) -> list[str]:
    """Record the results of changes that a crash interrupted, so that undo finds them."""
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
