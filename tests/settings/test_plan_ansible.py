"""The playbook of a plan: read back as YAML, and by ansible-playbook where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from checks.base.finding import Kind, Setting
from preflight.settings.commands import CONTAINERD, SYSCTL_FILE, UNIT_FILE, drop_in
from preflight.settings.dialects import ArtefactNames, render
from preflight.settings.plan import plan
from preflight.settings.records import Plan
from tests.builders.plans import (
    anywhere,
    facts_on,
    finding,
    launch,
    of_settings,
    on_nodes,
    plain_facts,
)

HOSTILE = "{{ lookup('pipe', 'touch P1') }}"


class Loader(yaml.SafeLoader):
    """Knows Ansible's tag for a text that is no template."""


Loader.add_constructor("!unsafe", lambda loader, node: ("unsafe", node.value))


def tasks(found: Plan) -> list[dict[str, Any]]:
    (play,) = yaml.load(render(found, "ansible", ArtefactNames()).text, Loader)
    assert (play["hosts"], play["become"]) == ("all", True)
    listed: list[dict[str, Any]] = play["tasks"]
    return listed


def options(found: Plan, module: str) -> list[dict[str, Any]]:
    return [task[module] for task in tasks(found) if module in task]


def test_kernel_settings_and_limits_are_set_and_kept(tmp_path: Path) -> None:
    memlock = Setting(Kind.ULIMIT, "memlock", "8388609", "65536")
    unit = Setting(Kind.ULIMIT, "memlock", "unlimited", unit=CONTAINERD)
    module = Setting(Kind.MODULE, "ib_uverbs", "")
    facts = plain_facts(tmp_path, files={"/proc/sys/vm/max_map_count": "65530"})
    wanted = [finding(setting) for setting in (memlock, unit, module)]
    found = plan(launch(anywhere(7)), facts, wanted)
    sysctls = options(found, "ansible.posix.sysctl")
    assert {each["name"]: each["value"] for each in sysctls} == {
        "vm.nr_hugepages": "7",
        "vm.max_map_count": "262144",
    }
    assert {each["sysctl_file"] for each in sysctls} == {SYSCTL_FILE}
    rows = options(found, "community.general.pam_limits")
    # limits.conf counts in KiB; the launch's registered memory wants all of it.
    assert [(row["domain"], row["limit_item"], row["value"]) for row in rows] == [
        ("*", "memlock", "unlimited"),
        ("root", "memlock", "unlimited"),
    ]
    (written,) = options(found, "ansible.builtin.copy")
    assert written["dest"] == drop_in(CONTAINERD)
    assert "LimitMEMLOCK=infinity" in written["content"]
    (loaded,) = options(found, "community.general.modprobe")
    assert loaded == {"name": "ib_uverbs", "params": "", "persistent": "present"}


def test_pools_that_sysctl_cannot_set_have_the_unit(tmp_path: Path) -> None:
    found = plan(launch(on_nodes(10, 20)), facts_on(tmp_path), [])
    assert [each["name"] for each in options(found, "ansible.posix.sysctl")] == ["vm.max_map_count"]
    (written,) = options(found, "ansible.builtin.copy")
    assert written["dest"] == UNIT_FILE
    assert written["content"] == render(found, "sysfs", ArtefactNames()).text + "\n"
    (started,) = options(found, "ansible.builtin.systemd_service")
    assert (started["enabled"], started["daemon_reload"]) == (True, True)


def test_no_text_is_a_template(tmp_path: Path) -> None:
    """Ansible fills in {{ ... }}, which may run what stands there."""
    setting = Setting(Kind.SYSCTL, "kernel.core_pattern", HOSTILE)
    found = of_settings(tmp_path, setting)
    values = [each["value"] for each in options(found, "ansible.posix.sysctl")]
    assert ("unsafe", HOSTILE) in values


PLAYBOOK = shutil.which("ansible-playbook") or os.environ.get("ANSIBLE_PLAYBOOK")
MODULES = ("ansible/posix/sysctl", "community/general/pam_limits", "community/general/modprobe")


@pytest.mark.skipif(not PLAYBOOK, reason="no ansible-playbook here")
def test_ansible_itself_takes_it(tmp_path: Path) -> None:
    """The collections stand in as empty modules: it is the playbook that is looked at."""
    for module in MODULES:
        space, name, file = module.split("/")
        folder = tmp_path / "ansible_collections" / space / name / "plugins/modules"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{file}.py").write_text("")
    unit = Setting(Kind.ULIMIT, "memlock", "unlimited", unit=CONTAINERD)
    settings = (unit, Setting(Kind.SYSCTL, "kernel.core_pattern", HOSTILE))
    facts = facts_on(tmp_path / "host")
    found = plan(launch(on_nodes(10, 20)), facts, [finding(setting) for setting in settings])
    place = tmp_path / "play.yaml"
    place.write_text(render(found, "ansible", ArtefactNames()).text + "\n")
    done = subprocess.run(
        [str(PLAYBOOK), "--syntax-check", "-i", "localhost,", str(place)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
