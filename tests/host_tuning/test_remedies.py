"""What mends a setting is pasted: a shell that runs it starts the meant programs with meant words.

Names and values are hostile or merely have spaces, in every kind of setting and every place; the
programs are stand-ins that write down what they were called with.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Fill, Finding, Kind, Setting, command
from checks.framework.root import Root
from checks.limits.runtimes import Limit, UnitLimit
from checks.memlock.judge import _judge_unit
from checks.placement.pci_checks import _judge_acs
from checks.software.software_checks import pip_install
from preflight.base.usage_error import UsageError
from preflight.command_inputs.written_launch import read_launch
from preflight.host_tuning.commands import Context, commands, conditions_of, drop_in
from preflight.host_tuning.dialects import ArtefactNames, render
from tests.builders.plans import environment_plan, of_settings, plain_facts
from tests.checks.launches import facts_of, findings
from tests.checks.test_software_checks import environment
from tests.checks.test_storage_checks import _needs
from tests.paths import ROOT
from tests.tables import each_row

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
    (programs / "sh").symlink_to(str(bash))
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
def test_a_shell_starts_what_is_meant_with_meant_words(value: str, tmp_path: Path) -> None:
    pairs = named(value, tmp_path)
    lines = commands((setting for setting, _ in pairs), PLACES[0])
    assert all(line.isprintable() for line in lines)
    wanted = [words for _, calls in pairs for words in calls]
    # The two ends of a pipe start in no order.
    assert sorted(called("\n".join(lines), tmp_path / "run")) == sorted(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES[:2], ids=lambda place: "root" if place.root else "user")
def test_words_to_run_start_without_a_shell_what_the_line_starts_in_one(
    place: Context, tmp_path: Path
) -> None:
    """Each kind of setting, the limit of a shell among them: what needs a shell is not to run."""
    settings = [setting for value in HOSTILE[:3] for setting, _ in named(value, tmp_path)]
    settings += [Setting(Kind.ULIMIT, "memlock", "unlimited"), UVERBS, TEMPLATE, MAPS, MODULE]
    lines = commands(settings, place)
    of_words = called(
        "\n".join(shlex.join(line.argv) for line in lines if line.does == "run"), tmp_path / "run"
    )
    typed = called("\n".join(line for line in lines if line.does == "run"), tmp_path / "typed")
    assert of_words == [words[words[0] == "sudo" :] for words in typed]
    for line in lines:
        assert (line.does == "shell") is ("$$" in line.split() or "$(id" in line.split())
        assert (len(line.argv) > 0) is (line.does == "run")


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
    found += findings(facts_of("/", "storage", needs=needs), needs, "storage.offload-path")
    found.append(_judge_acs(HOSTILE[0], 0x1D))
    found.append(_judge_unit(UnitLimit(HOSTILE[0], None, Limit(1, 1), "a file")))
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
        workload = found.workload._replace(container="server", manifest=kind)
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


BARE = Context(root=True, systemd=False)
USER = Context()
DOCKER = Context("docker", root=True, systemd=False)
POD = Context("kubernetes", root=True, systemd=False)
MAPS = Setting(Kind.SYSCTL, "vm.max_map_count", "9")
MEMLOCK = Setting(Kind.ULIMIT, "memlock", "unlimited")
SHM = Setting(Kind.SHM_SIZE, "/dev/shm", "64")
UVERBS = Setting(Kind.DEVICE, "/dev/infiniband/uverbs0", "rw")
STARTED = "# start the container with: docker run "
MODULE = Setting(Kind.MODULE, "nvidia_peermem", "a=1", "loaded")
TEMPLATE = Setting(Kind.ULIMIT, "memlock", "unlimited", unit="sglang@.service")
MEMORY = Setting(Kind.CGROUP, "/sys/fs/cgroup/memory.max", "1024")


def bash(lines: tuple[str, ...], then: str) -> str:
    """The output of ``then`` in a shell that ran ``lines`` first."""
    script = "\n".join([*lines, then])
    done = subprocess.run(["bash", "-euc", script], capture_output=True, check=True)
    return done.stdout.decode().rstrip("\n")


@pytest.mark.parametrize(
    ("by", "wanted", "line"),
    [
        ("compose", "3", '# in the service\'s environment: MC_GID_INDEX: "3"'),
        ("kubernetes", "3", '# in the container\'s env: - {name: MC_GID_INDEX, value: "3"}'),
        ("docker", "3", STARTED + "-e MC_GID_INDEX=3 ..."),
        ("podman", "3", "# start the container with: podman run -e MC_GID_INDEX=3 ..."),
        ("compose", "", "# take MC_GID_INDEX out of the service's environment"),
        ("docker", "", "# take MC_GID_INDEX out of the container's -e"),
        ("", "3", "export MC_GID_INDEX=3"),
    ],
)
def test_a_variable_is_set_where_the_container_gets_it(by: str, wanted: str, line: str) -> None:
    setting = Setting(Kind.ENVIRONMENT, "MC_GID_INDEX", wanted, described_by=by)
    assert [*commands([setting], USER)] == [line]
    assert conditions_of([setting], USER) == {"": (), "kubernetes": ("in a new pod",)}.get(
        by, ("in a new container",)
    )


SEARCH, PATHS = ("LD_LIBRARY_PATH", "/new dir"), 'printf %s "$LD_LIBRARY_PATH"'


def lines(kind: Kind, name: str, wanted: str, context: Context) -> tuple[str, ...]:
    return commands([Setting(kind, name, wanted)], context)


@each_row(
    ("setting", "context", "first"),
    [
        (MAPS, BARE, "sysctl -w vm.max_map_count=9"),
        (MAPS, USER, "sudo sysctl -w vm.max_map_count=9"),
        (
            Setting(Kind.SYSCTL, "net.ipv4.ip_local_port_range", "40000 60999"),
            DOCKER,
            STARTED + "--sysctl 'net.ipv4.ip_local_port_range=40000 60999' ...",
        ),
        (MAPS, POD, "# on the host, outside of this container:"),
        (Setting(Kind.SYSFS, "/sys/x", "3"), BARE, "echo 3 > /sys/x"),
        (Setting(Kind.SYSFS, "/sys/x", "3"), USER, "echo 3 | sudo tee /sys/x"),
        (MEMORY, DOCKER, "# on the host: docker update --memory=1024 --memory-swap=-1 CONTAINER"),
        (MEMORY._replace(wanted="max"), DOCKER, "# start the container without --memory"),
        (
            Setting(Kind.CGROUP, "/sys/fs/cgroup/hugetlb.2MB.max", "1024"),
            POD,
            "# in the pod: resources.limits.hugepages-2Mi: 1024",
        ),
        (MEMLOCK, BARE, "prlimit --pid $$ --memlock=unlimited:unlimited"),
        (MEMLOCK, DOCKER, STARTED + "--ulimit memlock=-1 ..."),
        (
            Setting(Kind.ULIMIT, "as", "unlimited"),
            DOCKER,
            "# no container engine knows --ulimit as: raise it in the unit of the daemon",
        ),
        (SHM, USER, "sudo mount -o remount,size=64 /dev/shm"),
        (SHM, DOCKER, STARTED + "--shm-size=64 ..."),
        (
            Setting(Kind.DEVICE, "/dev/infiniband/uverbs0", "rw", "mode 0600"),
            BARE,
            "chmod a+rw /dev/infiniband/uverbs0",
        ),
        (
            UVERBS,
            BARE,
            "# /dev/infiniband/uverbs0 does not exist here: start the service that makes "
            "it, or run where it exists",
        ),
        (UVERBS, DOCKER, STARTED + "--device=/dev/infiniband/uverbs0 ..."),
        (
            Setting(Kind.CAPABILITY, "CAP_IPC_LOCK", "added"),
            DOCKER,
            STARTED + "--cap-add=IPC_LOCK ...",
        ),
        (
            Setting(Kind.SECURITY, "seccomp", "unconfined"),
            DOCKER,
            STARTED + "--security-opt seccomp=unconfined ...",
        ),
        (Setting(Kind.MODULE, "nvidia_peermem", ""), BARE, "modprobe nvidia_peermem"),
        (
            Setting(Kind.PACKAGE, "numactl", ""),
            Context(packages="dnf"),
            "sudo dnf install -y numactl",
        ),
        (command("do", "this"), DOCKER, "do this"),
        (command("install", "-d", "/x", as_root=True), BARE, "install -d /x"),
        (command("install", "-d", "/x", as_root=True), USER, "sudo install -d /x"),
        (command("chown", Fill.USER_ID, "/x", as_root=True), USER, "sudo chown $(id -u) /x"),
        (command("ls", "/srv/my data"), USER, "ls '/srv/my data'"),
        (Setting(Kind.FLAG, "--page-size", "64"), BARE, "# in the launch: --page-size 64"),
    ],
)
def test_first_line_by_kind_and_place(setting: Setting, context: Context, first: str) -> None:
    assert commands([setting], context)[0] == first


@pytest.mark.slow
def test_every_kind_has_lines_of_shell_everywhere() -> None:
    """Comments included: what is printed can be pasted as a whole."""
    script: list[str] = []
    for container, kind in product(("", "docker", "podman", "kubernetes", "lxc"), Kind):
        script += (printed := lines(kind, "/sys/a.b", "1", Context(container)))
        assert printed, (kind, container)
    subprocess.run(["bash", "-n", "-c", "\n".join(script)], check=True)


@pytest.mark.slow
@each_row(
    ("setting", "before", "then", "shown"),
    [
        # A limit is that of the shell which runs the line.
        (
            *((Kind.ULIMIT, "nofile", "321"), "true"),
            *("ulimit -Sn; ulimit -Hn; sh -c 'ulimit -n'", "321\n321\n321"),
        ),
        # MC_STORE_USE_HUGEPAGE counts by its presence: an empty one would still be on.
        ((Kind.ENVIRONMENT, "MC_X", ""), "export MC_X=1", 'echo "${MC_X-gone}"', "gone"),
        # A search path keeps what it had.
        ((Kind.ENVIRONMENT, *SEARCH), "unset LD_LIBRARY_PATH", PATHS, "/new dir"),
        ((Kind.ENVIRONMENT, *SEARCH), "export LD_LIBRARY_PATH=/old", PATHS, "/new dir:/old"),
    ],
)
def test_a_shell_that_ran_the_lines_has_the_setting(
    setting: tuple[Kind, str, str], before: str, then: str, shown: str
) -> None:
    assert bash((before, *lines(*setting, BARE)), then) == shown


@pytest.mark.slow
def test_a_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "nr hugepages"
    assert bash(lines(Kind.SYSFS, str(path), "12", BARE), f"cat '{path}'") == "12"


SHELL_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1
)


@pytest.mark.slow
@given(SHELL_TEXT)
def test_an_exported_value_is_read_back_to_the_byte(value: str) -> None:
    done = lines(Kind.ENVIRONMENT, "MC_X", value, BARE)
    assert all(line.isprintable() for line in done)
    assert bash(done, "printf '%s.' \"$MC_X\"") == f"{value}."


@each_row(
    ("setting", "context", "said", "never"),
    [
        (
            Setting(Kind.MODULE, "erdma", "compat_mode=Y", "compat_mode=N"),
            *(BARE, "modprobe -r erdma\nmodprobe erdma compat_mode=Y\n", "sudo"),
        ),
        (
            Setting(Kind.ULIMIT, "memlock", "unlimited", unit="containerd.service"),
            *(USER, "/etc/systemd/system/containerd.service.d", "prlimit"),
        ),
        (
            Setting(Kind.ULIMIT, "memlock", "unlimited", unit="containerd.service"),
            *(USER, "LimitMEMLOCK=infinity", "prlimit"),
        ),
        # Of a template, which is missing the instance name, the instances are restarted.
        (TEMPLATE, USER, "systemctl restart 'sglang@*.service'", "prlimit"),
        (TEMPLATE, USER, "/etc/systemd/system/sglang@.service.d/", "prlimit"),
    ],
)
def test_lines_of_units_modules(setting: Setting, context: Context, said: str, never: str) -> None:
    printed = "\n".join(commands([setting], context))
    assert said in printed
    assert never not in printed
    assert commands([setting, setting], context) == commands([setting], context)


@each_row(
    ("setting", "context", "said"),
    [
        (MAPS, BARE, ("as root",)),
        (MAPS, DOCKER, ("as root",)),
        (MEMLOCK, USER, ("as root",)),
        (MEMLOCK, DOCKER, ("in a new container",)),
        (
            Setting(Kind.ULIMIT, "memlock", "9", described_by="compose"),
            BARE,
            ("in a new container",),
        ),
        (Setting(Kind.ULIMIT, "memlock", "9", unit="docker.service"), DOCKER, ("as root",)),
        (Setting(Kind.SHM_SIZE, "/dev/shm", "9"), POD, ("in a new pod",)),
        (Setting(Kind.KERNEL_ARGUMENT, "iommu", "pt"), BARE, ("as root", "then a reboot")),
        (Setting(Kind.ENVIRONMENT, "MC_GID_INDEX", "3"), DOCKER, ()),
        (command("ip", "link", "set", as_root=True), USER, ("as root",)),
    ],
)
def test_what_it_takes_is_said(setting: Setting, context: Context, said: tuple[str, ...]) -> None:
    assert conditions_of([setting, setting], context) == said
