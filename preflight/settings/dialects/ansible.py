"""A plan as a playbook of Ansible, for the hosts that a launch runs on."""

from __future__ import annotations

from typing import Any

from checks.base.finding import Kind
from preflight.settings.commands import (
    LIMITS_FILE,
    SYSCTL_FILE,
    UNIT_FILE,
    UNIT_NAME,
    drop_in,
    header,
)
from preflight.settings.dialects import ArtefactNames, Rendering
from preflight.settings.dialects.kernel import needs_unit, sysctl_values, sysfs
from preflight.settings.dialects.limits import of_unit, pam_rows, unit_limits
from preflight.settings.records import Plan

_COLLECTIONS = "ansible.posix and community.general"


class _Plain(str):
    """A text that Ansible takes as it stands: ``!unsafe`` keeps it from being a template."""


def ansible(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a playbook of kernel settings, pools, limits and modules; nothing of containers."""
    import yaml

    tasks, notes = _tasks(plan)
    if not tasks:
        return Rendering("", (*notes, "the plan has nothing that a playbook sets"))
    play = {"name": "Hosts of a launch", "hosts": "all", "become": True, "tasks": tasks}
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(_Plain, lambda to, text: to.represent_scalar("!unsafe", str(text)))
    text: str = yaml.dump([play], Dumper=dumper, sort_keys=False, width=1000, allow_unicode=False)
    notes.append(f"it uses the collections {_COLLECTIONS}")
    first = header(plan.source, "ansible-playbook -i HOSTS FILE")
    return Rendering(f"{first}\n{text.rstrip()}", tuple(notes))


def _tasks(plan: Plan) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tasks of a playbook, and notes on settings left to the user."""
    values, notes = sysctl_values(plan)
    tasks = []
    for name, value in values.items():
        row = {"name": name, "value": value, "sysctl_file": SYSCTL_FILE, "sysctl_set": True}
        tasks.append(_task(f"Set {name}", "ansible.posix.sysctl", **row))
    if needs_unit(plan):
        notes = [note for note in notes if "--format sysfs" not in note]
        tasks += _file(UNIT_FILE, sysfs(plan, ArtefactNames()).text)
        title, module = f"Start {UNIT_NAME} now and at each boot", "ansible.builtin.systemd_service"
        row = {"name": UNIT_NAME, "state": "restarted", "enabled": True, "daemon_reload": True}
        tasks.append(_task(title, module, **row))
    for domain, name, value in pam_rows(plan):
        row = {"domain": domain, "limit_type": "-", "limit_item": name, "value": value}
        title, module = f"Limit {name} of {domain}", "community.general.pam_limits"
        tasks.append(_task(title, module, **row, dest=LIMITS_FILE))
    for unit in sorted(unit_limits(plan)):
        tasks += _file(drop_in(unit), of_unit(plan, unit).text)
        notes.append(f"restart {unit} when its processes may end: the playbook does not restart it")
    for loaded in plan.of(Kind.MODULE):
        row = {"name": loaded.name, "params": loaded.wanted, "persistent": "present"}
        tasks.append(_task(f"Load {loaded.name}", "community.general.modprobe", **row))
    return tasks, notes


def _file(path: str, content: str) -> list[dict[str, Any]]:
    """Return the tasks that write a file and make its folder."""
    folder = path.rpartition("/")[0]
    return [
        _task(f"Make {folder}", "ansible.builtin.file", path=folder, state="directory"),
        _task(
            f"Write {path}", "ansible.builtin.copy", dest=path, content=f"{content}\n", mode="0644"
        ),
    ]


def _task(title: str, module: str, /, **options: Any) -> dict[str, Any]:
    """Return a task, in which no text of a host or a launch is a template."""
    plain = {key: _plain(value) for key, value in options.items()}
    return {"name": _plain(title), module: plain}


def _plain(value: Any) -> Any:
    braces = isinstance(value, str) and "{" in value
    return _Plain(value) if braces else value
