"""What of a plan is done by writing to this host, what is left for the user, and the difference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from checks.base.finding import Kind
from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.base.shell import line, visible
from preflight.settings.apply_write import Writer
from preflight.settings.commands import commands
from preflight.settings.dialects import Names
from preflight.settings.dialects.kernel import needs_unit, sysctl, sysfs
from preflight.settings.dialects.limits import limits, of_unit, unit_limits
from preflight.settings.plan import safer
from preflight.settings.records import Plan, Planned, Scope
from preflight.settings.targets import (
    LIMITS_FILE,
    NR_HUGEPAGES,
    ORDERS,
    SYSCTL_FILE,
    SYSTEMD,
    UNIT_FILE,
    WANTS_FILE,
    drop_in,
    is_ours,
)

_SYSCTL_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
# Writing one part of them goes before another: large pages need the largest free pieces.
_NR = "/nr_hugepages"


class Step(NamedTuple):
    """One change. kind: value, file, link. before: None where nothing is there.

    pool: the kernel may give less than it is asked for. name: what it is, for a sentence.
    """

    kind: str
    path: str
    before: str | None
    wanted: str
    name: str
    pool: bool = False


class Steps(NamedTuple):
    """steps: in order. refused: files that are not ours. left: what apply does not do, and how."""

    steps: tuple[Step, ...]
    refused: tuple[str, ...]
    left: tuple[tuple[Planned, str], ...]


def steps_of(
    plan: Plan, root: Root, writer: Writer, persist: bool = False, force: bool = False
) -> Steps:
    """The changes that bring the host to the plan. Nothing that is enough already is touched."""
    values = [*_pools(plan, root), *_settings(plan, root)]
    files: list[Step] = []
    refused: list[str] = []
    if persist:
        for step in _files(plan, root, writer):
            if step.kind == "link":
                refused += [step.path] if step.before is not None else []
            elif not force and not _replaceable(step, writer):
                refused.append(step.path)
            files.append(step)
    steps = (*values, *files)
    return Steps(steps, tuple(refused), tuple(_left(plan, steps)))


def _pools(plan: Plan, root: Root) -> Iterator[Step]:
    """Node by node; the largest pages first, as they need the largest pieces of memory."""
    order = sorted(plan.pools, key=lambda pool: (-pool.page_bytes, pool.node or 0))
    for target in order:
        path = target.file
        now = root.integer(path)
        if isinstance(now, Unknown):
            yield Step("value", path, None, str(target.pages), target.name, True)
        elif now < target.pages:
            yield Step("value", path, str(now), str(target.pages), target.name, True)


def _settings(plan: Plan, root: Root) -> Iterator[Step]:
    for setting in plan.of(Kind.SYSCTL, Kind.SYSFS):
        path = _path(setting)
        if path is None or path.endswith(_NR) or not setting.change:
            continue
        now = root.word(path)
        before = None if isinstance(now, Unknown) else " ".join(now.split())
        if before is not None and _enough(setting, before):
            continue
        yield Step("value", path, before, setting.wanted, setting.name)


def _enough(setting: Planned, before: str) -> bool:
    """Nothing is ever lowered that is measured by its size."""
    value, decided = safer(setting.kind, setting.name, before, setting.wanted)
    return before == setting.wanted or (decided and value == before)


def _path(setting: Planned) -> str | None:
    """The kernel file of a setting, None where it is not for apply."""
    if setting.name in (NR_HUGEPAGES, *ORDERS):
        return None
    if setting.kind is Kind.SYSCTL:
        fits = _SYSCTL_NAME.fullmatch(setting.name)
        return f"/proc/sys/{setting.name.replace('.', '/')}" if fits else None
    return setting.name if setting.name.startswith(("/sys/", "/proc/sys/")) else None


def _files(plan: Plan, root: Root, writer: Writer) -> Iterator[Step]:
    """Drop-ins that make it last."""
    names = Names()
    rendered = [(SYSCTL_FILE, sysctl(plan, names).text)]
    systemd = not isinstance(root.names(SYSTEMD), Unknown)
    unit = systemd and needs_unit(plan)
    if unit:
        rendered.append((UNIT_FILE, sysfs(plan, names).text))
    changing = (s for s in plan.of(Kind.ULIMIT) if s.change and s.scope is Scope.RUNTIME)
    if any(not setting.setting.unit for setting in changing):
        rendered.append((LIMITS_FILE, _with_rows(limits(plan, names).text, writer)))
    for limited in sorted(unit_limits(plan)) if systemd else ():
        rendered.append((drop_in(limited), of_unit(plan, limited).text))
    for path, text in rendered:
        found = writer.content(path)
        before = None if found is None else found[0]
        if text and before != f"{text}\n":
            yield Step("file", path, before, f"{text}\n", path)
    if unit and writer.target(WANTS_FILE) != UNIT_FILE:
        yield Step("link", WANTS_FILE, writer.target(WANTS_FILE), UNIT_FILE, WANTS_FILE)


def _with_rows(text: str, writer: Writer) -> str:
    """Rows that an earlier plan asked for, and this one does not, stay."""
    found = writer.content(LIMITS_FILE)
    if found is None or not is_ours(found[0]):
        return text
    said = {tuple(line.split()[:3]) for line in text.splitlines()}
    rows = [line for line in found[0].splitlines() if line and not line.startswith("#")]
    return "\n".join([text, *(row for row in rows if tuple(row.split()[:3]) not in said)])


def _replaceable(step: Step, writer: Writer) -> bool:
    return not writer.is_link(step.path) and is_ours(step.before or "")


def _left(plan: Plan, steps: tuple[Step, ...]) -> Iterator[tuple[Planned, str]]:
    """What is not as wanted and that apply does not bring about, with what would."""
    done = {step.path for step in steps}
    pools = {target.file for target in plan.pools}
    for setting in plan.settings:
        if not setting.change or setting.name in (NR_HUGEPAGES, *ORDERS):
            continue
        path = _path(setting)
        if path is not None and (path in done or path in pools):
            continue
        if path is not None and path.endswith(_NR):
            continue
        if path is None or setting.kind not in (Kind.SYSCTL, Kind.SYSFS):
            yield setting, _how(plan, setting, done)


def _how(plan: Plan, setting: Planned, done: set[str]) -> str:
    unit = setting.setting.unit
    if unit:
        restart = f"systemctl daemon-reload && {line(('systemctl', 'restart', unit))}"
        return restart if drop_in(unit) in done else f"apply --persist, then {restart}"
    if setting.kind is Kind.ULIMIT and setting.scope is Scope.RUNTIME:
        if LIMITS_FILE in done:
            return "log in again, or plan --format systemd for a service"
        return "plan --format limits (or apply --persist) for logins, systemd for a service"
    if setting.scope is Scope.CONTAINER:
        return "plan --format docker, compose or k8s"
    if setting.scope is Scope.ENVIRONMENT:
        return "plan --format env or shell"
    return "; ".join(commands((setting.setting,), plan.context))


def difference(steps: tuple[Step, ...]) -> str:
    """Every change as a unified diff of the file that it is made in."""
    import difflib

    lines: list[str] = []
    for step in steps:
        before = [] if step.before is None else step.before.splitlines()
        after = step.wanted.splitlines()
        origin = "/dev/null" if step.before is None else step.path
        lines += difflib.unified_diff(before, after, origin, step.path, lineterm="")
    return "\n".join(map(visible, lines))
