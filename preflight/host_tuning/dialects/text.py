"""A plan for a person: what is to change, scope by scope, then what is already so."""

from __future__ import annotations

from collections.abc import Iterator

from checks.framework.finding import Kind
from checks.framework.units import format_bytes
from checks.hugetlb.targets import ASK_FIT, grows_pool
from preflight.base.output import columns
from preflight.base.shell import wanted_text
from preflight.base.text import wrapped
from preflight.host_tuning.dialects import FORMATS, ArtefactNames, Rendering
from preflight.host_tuning.records import Plan, Planned, Scope

# What to render the settings of a scope with.
DIALECTS = {
    Scope.FLAG: "in the launch itself",
    Scope.ENVIRONMENT: "--format env or shell",
    Scope.CONTAINER: "--format docker, compose or k8s",
    Scope.RUNTIME: "--format limits, systemd or containerd",
    Scope.NODE: "--format sysctl or sysfs, or mooncake-preflight apply",
    Scope.BOOT: "on the kernel command line",
}


def text(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return the whole plan, without changes that grow pools if the pages cannot be had now."""
    held_back = plan.impossible and plan.grows
    changes = [setting for setting in plan.settings if setting.change]
    changes = [change for change in changes if not (held_back and grows_pool(change.setting))]
    rest = [setting for setting in plan.settings if not setting.change]
    what = plan.source or "this host"
    plural = "s" * (len(changes) != 1)
    count = f"{len(changes)} setting{plural} to change, {len(rest)} as wanted or not judged here"
    lines = [_wrapped(f"{what}: {count}")]
    for scope in Scope:
        lines += _scope(scope, [setting for setting in changes if setting.scope is scope])
    if rest:
        lines += ["", "as wanted, or not judged here"]
        lines += [_wrapped(f"  {_name(setting)}: {_wanted(setting)}") for setting in rest]
    topics: dict[str, list[str]] = {}
    for gap in plan.gaps:
        topics.setdefault(gap.reason, []).append(gap.topic)
    lines += _listed("not known", [f"{', '.join(of)}: {why}" for why, of in topics.items()])
    undecided = [why for why in plan.undecided if why not in topics]  # each is said once
    if held_back:
        lines += _listed(f"cannot be had now: {ASK_FIT}", plan.impossible)
    lines += _listed("cannot be read here, so apply takes no pages", undecided)
    lines += _listed("decided between", plan.conflicts)
    lines += _listed("not in this plan", plan.unread)
    lines += _listed("left out, because their names look like those of secrets", plan.left_out)
    formats = ", ".join(name for name in FORMATS if name != "text")
    lines += ["", _wrapped(f"formats: {formats}")]
    return Rendering("\n".join(lines))


def _scope(scope: Scope, settings: list[Planned]) -> Iterator[str]:
    """Yield the lines of one scope: each setting, its reasons, and whether it lasts."""
    if not settings:
        return
    yield from ("", _wrapped(f"{scope.value} ({DIALECTS[scope]})"))
    for setting in settings:
        now = _amount(setting, setting.setting.now) if setting.setting.now else "not set"
        yield _wrapped(f"  {_name(setting)}: {now} -> {_wanted(setting)}")
        for reason in setting.reasons:
            about = f"{reason.check}: " if reason.check else ""
            yield _indented(f"{about}{reason.text}")
        yield _indented(f"lasts: {'yes' if setting.lasts else 'no'}, {setting.how}")


def _name(planned: Planned) -> str:
    setting = planned.setting
    return f"{setting.name} pages" if setting.kind is Kind.HUGEPAGES else setting.label


def _wanted(setting: Planned) -> str:
    return _amount(setting, wanted_text(setting.setting)) or "removed"


def _amount(setting: Planned, value: str) -> str:
    """Return a value for a person.

    A number of bytes has its size in a larger unit behind it.
    """
    in_bytes = setting.setting.kind in (Kind.MEMORY, Kind.HUGEPAGES, Kind.SHM_SIZE)
    if not in_bytes or not value.isdecimal():
        return value
    return f"{value} bytes ({format_bytes(int(value))})"


def _indented(line: str) -> str:
    return _wrapped(f"      {line}", 0)


def _listed(title: str, lines: list[str] | tuple[str, ...]) -> list[str]:
    return ["", _wrapped(title), *(_wrapped(f"  {line}") for line in lines)] if lines else []


def _wrapped(line: str, further: int = 2) -> str:
    return "\n".join(wrapped(line, columns(), further))
