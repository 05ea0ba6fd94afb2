"""The environment of a plan, as an env file and as exports."""

from __future__ import annotations

import shlex

from checks.base.finding import Kind
from preflight.settings.formats import Names, Rendering, header
from preflight.settings.records import Plan

_NAME_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


def variables(plan: Plan) -> tuple[dict[str, str], list[str], list[str]]:
    """``(set, removed, notes)``: what the launch is to have, what it is not to have."""
    kept: dict[str, str] = {}
    removed: list[str] = []
    notes = [
        f"{name} is left out: by its name it is a secret, so hand it over as you do today"
        for name in plan.left_out
    ]
    for setting in plan.of(Kind.ENVIRONMENT):
        if not setting.name or not _NAME_LETTERS.issuperset(setting.name):
            notes.append(f"{setting.name!r} is left out: it is no name of a variable")
        elif setting.wanted:
            kept[setting.name] = setting.wanted
        else:
            removed.append(setting.name)
    return kept, removed, notes


def env(plan: Plan, names: Names) -> Rendering:
    """Docker's --env-file and systemd's EnvironmentFile=: NAME=value as it stands, no quotes."""
    kept, removed, notes = variables(plan)
    lines = []
    for name, value in kept.items():
        if "\n" in value or "\0" in value:
            notes.append(f"{name} is left out: an env file cannot hold its line breaks")
            continue
        if value != value.strip() or value[:1] in "\"'" or "\\" in value:
            notes.append(f"{name}: docker takes {value!r} as it stands, systemd does not")
        lines.append(f"{name}={value}")
    notes += [f"{name} is not to be set: take it out where it is" for name in removed]
    if not lines:
        return Rendering("", tuple(notes) or ("the launch sets no variable",))
    return Rendering("\n".join([header(plan, "docker run --env-file"), *lines]), tuple(notes))


def shell(plan: Plan, names: Names) -> Rendering:
    """For ``.`` in a POSIX shell."""
    kept, removed, notes = variables(plan)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    lines += [f"unset {name}" for name in removed]
    if not lines:
        return Rendering("", tuple(notes) or ("the launch sets no variable",))
    return Rendering("\n".join([header(plan, ". FILE"), *lines]), tuple(notes))
