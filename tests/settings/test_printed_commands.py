"""What is printed is pasted: a shell that runs it starts the meant programs with the meant words.

Names and values are hostile or merely have spaces, in every kind of setting and every place; the
programs are stand-ins that write down what they were called with.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from checks.base.finding import Fill, Finding, Kind, Setting, command
from checks.base.root import Root
from checks.limits.runtimes import Limit, UnitLimit
from checks.memlock.container_checks import _of_unit
from checks.placement.pci_checks import _redirects
from checks.software.software_checks import pip_install
from checks.storage import folders as storage
from preflight.base.usage_error import UsageError
from preflight.inputs.written_launch import read_launch
from preflight.settings.commands import Context, commands, drop_in
from preflight.settings.dialects import ArtefactNames, render
from tests.builders.plans import environment_plan, of_settings, plain_facts
from tests.checks.launches import facts_of, findings
from tests.checks.test_software_checks import environment
from tests.checks.test_storage_checks import _needs
from tests.paths import ROOT

HOSTILE = (
    "/x$(touch P1); touch P2",
    "/srv/my data/ssd",
    "`touch P3`",
    "'; touch P4; '",
    '"; touch P5; "',
    "a\ntouch P6\n",
    "a\rtouch P7 & | > P8",
    "\x1b]0;t\x07\x9b2J\u202e\u2028touch P9",
    "*",
    "~",
    "a\\",
)
PROGRAMS = (
    *("sudo", "sysctl", "install", "chown", "chmod", "ip", "modprobe", "mount", "mkdir", "prlimit"),
    *("systemctl", "apt-get", "setpci", "touch", "tee", "id", "docker", "python", "rdma"),
    *("kubectl", "helm"),
)
# Writes each word on a line of its own, as printf's %q has it, and a bar between calls.
STAND_IN = """\
#!{bash}
{{ printf '%q\\n' "${{0##*/}}" "$@"; echo '|'; }} >> {log}
case ${{0##*/}} in id) echo 1000;; tee|sudo) {cat} > /dev/null;; esac
"""
PLACES = [
    Context(packages="apt-get"),
    Context(root=True, systemd=False, packages="apt-get"),
    *(Context(name, root=True, systemd=False) for name in ("docker", "podman", "kubernetes")),
]


def called(script: str, folder: Path) -> list[list[str]]:
    """Run ``script`` in ``folder``, where nothing but stand-ins is found; return their words."""
    bash, cat = shutil.which("bash"), shutil.which("cat")
    log, programs = folder / "log", folder / "programs"
    programs.mkdir(parents=True)
    log.write_text("")
    for name in PROGRAMS:
        place = programs / name
        place.write_text(STAND_IN.format(bash=bash, cat=cat, log=log))
        place.chmod(0o755)
    here = folder / "here"
    here.mkdir()
    done = subprocess.run(
        [str(bash), "-c", f"{script}\n:"],
        cwd=here,
        env={"PATH": str(programs), "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, b"syntax" in done.stderr) == (0, False), done.stderr
    made = [path.name for path in here.rglob("*") if re.match(r"P\d", path.name)]
    assert made == []
    calls = [part.splitlines() for part in log.read_text().split("|\n") if part.strip()]
    return [[_unquoted(word, str(bash)) for word in words if word] for words in calls]


def _unquoted(word: str, bash: str) -> str:
    done = subprocess.run([bash, "-c", f"printf %s {word}"], capture_output=True, check=True)
    return done.stdout.decode()


def named(value: str, folder: Path) -> list[tuple[Setting, list[list[str]]]]:
    """Settings that have ``value``, and what a user's shell is meant to start for each."""
    return [
        (
            Setting(Kind.SYSCTL, f"vm.{value}", value),
            [["sudo", "sysctl", "-w", f"vm.{value}={value}"]],
        ),
        (Setting(Kind.SYSFS, f"{folder}/{value}", value), [["sudo", "tee", f"{folder}/{value}"]]),
        (
            Setting(Kind.CGROUP, f"{folder}/{value}/memory.max", value),
            [["sudo", "tee", f"{folder}/{value}/memory.max"]],
        ),
        (Setting(Kind.DEVICE, value, value, "mode 0600"), [["sudo", "chmod", "a+rw", value]]),
        (
            Setting(Kind.SHM_SIZE, "/dev/shm", value),
            [["sudo", "mount", "-o", f"remount,size={value}", "/dev/shm"]],
        ),
        (Setting(Kind.PACKAGE, value, ""), [["sudo", "apt-get", "install", "-y", value]]),
        (Setting(Kind.MODULE, value, ""), [["sudo", "modprobe", value]]),
        (
            Setting(Kind.ULIMIT, "memlock", "unlimited", unit=value),
            [
                ["sudo", "mkdir", "-p", drop_in(value).rpartition("/")[0]],
                ["sudo", "tee", "-a", drop_in(value)],
                ["sudo", "systemctl", "daemon-reload"],
                ["sudo", "systemctl", "restart", value],
            ],
        ),
        (
            command("install", "-d", "-o", Fill.USER_ID, value, as_root=True),
            [["id", "-u"], ["sudo", "install", "-d", "-o", "1000", value]],
        ),
        (command("python", "-m", value), [["python", "-m", value]]),
        *(
            (Setting(kind, value, value), [])
            for kind in (
                *(Kind.ENVIRONMENT, Kind.FLAG, Kind.CAPABILITY, Kind.SECURITY),
                *(Kind.KERNEL_ARGUMENT, Kind.GPUS, Kind.MEMORY),
            )
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("value", HOSTILE)
def test_a_shell_starts_what_is_meant_with_the_words_that_are_meant(
    value: str, tmp_path: Path
) -> None:
    pairs = named(value, tmp_path)
    lines = commands((setting for setting, _ in pairs), PLACES[0])
    assert all(line.isprintable() for line in lines)
    wanted = [words for _, calls in pairs for words in calls]
    # The two ends of a pipe start in no order.
    assert sorted(called("\n".join(lines), tmp_path / "run")) == sorted(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES[1:], ids=lambda place: place.container or "root")
def test_everywhere_else_nothing_else_is_started(place: Context, tmp_path: Path) -> None:
    settings = [setting for value in HOSTILE for setting, _ in named(value, tmp_path)]
    described = [
        setting._replace(described_by=by) for by in ("compose", "docker") for setting in settings
    ]
    lines = commands([*settings, *described], place)
    programs = {words[0] for words in called("\n".join(lines), tmp_path / "run")}
    assert programs <= {*PROGRAMS} - {"sudo", "touch", "docker", "rdma", "ip", "setpci"}


@pytest.mark.slow
def test_checks_carry_words_as_they_found_them(tmp_path: Path) -> None:
    """An offload path, an interpreter, a bridge and a unit, by way of their checks."""
    found: list[Finding] = []
    path = "/x$(touch P1); touch P2/my data"
    needs = _needs(path)
    found += findings(
        storage.CHECKS, facts_of("/", "storage", needs=needs), needs, "storage.offload-path"
    )
    found.append(_redirects(HOSTILE[0], 0x1D))
    found.append(_of_unit(UnitLimit(HOSTILE[0], None, Limit(1, 1), "a file")))
    settings = [setting for finding in found for setting in finding.settings]
    settings.append(pip_install(environment(interpreter="python"), HOSTILE[0]))
    assert len(settings) == 4
    calls = called("\n".join(commands(settings, PLACES[0])), tmp_path)
    assert ["sudo", "install", "-d", "-o", "1000", path] in calls
    assert ["sudo", "setpci", "-s", HOSTILE[0], "ECAP_ACS+0x6.w=0001"] in calls
    assert ["sudo", "systemctl", "restart", f"{HOSTILE[0]}.service"] in calls
    assert ["python", "-m", "pip", "install", HOSTILE[0]] in calls
    assert len(calls) == 8


def test_only_the_constructor_makes_a_command() -> None:
    """A command that is text would be quoted by nobody."""
    for folder in ("checks", "preflight"):
        for path in (ROOT / folder).rglob("*.py"):
            made = re.search(r"Setting\(\s*Kind\.COMMAND", path.read_text())
            assert made is None or path.name == "finding.py", path


@pytest.mark.slow
def test_dialects_that_a_shell_reads_start_nothing(tmp_path: Path) -> None:
    variables = {f"MC_{at}": value for at, value in enumerate(HOSTILE)}
    found = environment_plan(plain_facts(tmp_path / "host"), variables)
    exports = render(found, "shell", ArtefactNames()).text
    assert called(exports, tmp_path / "exports") == []
    options = render(found, "docker", ArtefactNames()).text
    (words,) = called(f"docker run {options} image", tmp_path / "docker")
    assert [word for word in words if word.startswith("MC_")] == [
        f"{name}={value}" for name, value in variables.items()
    ]


@pytest.mark.parametrize("name", ["sysctl", "limits", "systemd", "containerd", "env"])
def test_files_have_no_line_that_nobody_meant(name: str, tmp_path: Path) -> None:
    """What a grammar cannot hold is left out of it, and said."""
    hostile = [Setting(Kind.SYSCTL, "kernel.x", value) for value in HOSTILE]
    found = of_settings(
        tmp_path, *(one._replace(name=f"kernel.x{at}") for at, one in enumerate(hostile))
    )
    found = found._replace(source="run.sh\nvm.overcommit_memory = 1")
    text = render(found, name, ArtefactNames("x\n[Service]\nExecStart=/bin/sh")).text
    assert not any(
        line.startswith(("touch", "vm.over", "ExecStart", "[Service]\nExec"))
        for line in text.splitlines()
    )
    assert "\x1b" not in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my $(touch P1) pod.yaml", "';touch P2;'.yaml", "a b.yaml"])
def test_a_command_in_a_comment_or_a_sentence_is_quoted_too(name: str, tmp_path: Path) -> None:
    """The first line of a patch says how it is merged, and is pasted as any other."""
    folder = str(tmp_path / name)
    found = of_settings(tmp_path, Setting(Kind.ENVIRONMENT, "MC_X", "1"))
    for form, kind, options in (
        ("compose", "", ["docker", "compose", "-f", name, "-f", "FILE", "up"]),
        ("k8s", "Pod", ["kubectl", "patch", "--local", "-o", "yaml", "-f", name]),
    ):
        workload = found.workload._replace(container="server", kind=kind)
        of_file = found._replace(source=name, workload=workload)
        first = render(of_file, form, ArtefactNames()).text.partition("\n")[0]
        (words,) = called(first.rpartition(": ")[2], tmp_path / form)
        assert words[: len(options)] == options
    (tmp_path / name).mkdir()
    for file, options in (
        ("Chart.yaml", ["helm", "template", folder]),
        ("kustomization.yaml", ["kubectl", "kustomize", folder]),
    ):
        (tmp_path / name / file).write_text("resources: [http://a.b/c]\n")
        with pytest.raises(UsageError) as refused:
            read_launch((folder,), (), {}, Root())
        said = str(refused.value).rpartition("give what ")[2].removesuffix(" prints")
        assert called(said, tmp_path / file) == [options]
        (tmp_path / name / file).unlink()
