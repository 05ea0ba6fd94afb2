"""The environment of a plan, as an env file and as exports."""

from __future__ import annotations

from checks.base.finding import Kind
from preflight.base.shell import is_hidden, posix_assignment
from preflight.settings.commands import header, is_variable
from preflight.settings.dialects import ArtefactNames, Rendering
from preflight.settings.records import Plan


def variables(plan: Plan) -> tuple[dict[str, str], list[str], list[str]]:
    """Return (set, removed, notes): the wanted variables, the unwanted, the rest."""
    kept: dict[str, str] = {}
    removed: list[str] = []
    why = "because its name looks like that of a secret: pass it as you do today"
    notes = [f"{name} is left out, {why}" for name in plan.left_out]
    for setting in plan.of(Kind.ENVIRONMENT):
        if not is_variable(setting.name):
            notes.append(f"{setting.name!r} is left out: it is not a valid name of a variable")
        elif setting.wanted or not setting.now:  # of the launch: set to nothing, which counts
            kept[setting.name] = setting.wanted
        else:
            removed.append(setting.name)
    return kept, removed, notes


def env(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a file of plain NAME=value lines for Docker's --env-file and EnvironmentFile=."""
    kept, removed, notes = variables(plan)
    lines = []
    for name, value in kept.items():
        if any(map(is_hidden, value)):
            notes.append(
                f"{name} is left out: an env file cannot hold its line breaks or control characters"
            )
            continue
        if value != value.strip() or value[:1] in "\"'" or "\\" in value:
            notes.append(f"{name}: docker reads {value!r} literally, systemd does not")
        lines.append(f"{name}={value}")
    notes += [f"{name} must not be set: remove it where it is set" for name in removed]
    if not lines:
        return Rendering("", tuple(notes) or ("the launch sets no variable",))
    return Rendering(
        "\n".join([header(plan.source, "docker run --env-file"), *lines]), tuple(notes)
    )


def shell(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return exports for ``.`` in a POSIX shell."""
    kept, removed, notes = variables(plan)
    lines = [posix_assignment(name, value) for name, value in kept.items()]
    lines += [f"unset {name}" for name in removed]
    if not lines:
        return Rendering("", tuple(notes) or ("the launch sets no variable",))
    return Rendering("\n".join([header(plan.source, ". FILE"), *lines]), tuple(notes))
