"""What mends a setting, held against a real shell where one can be asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.finding import Fill, Kind, Setting, command
from preflight.settings.commands import Context, commands, takes
from tests.tables import each_row

BARE = Context(root=True, systemd=False)
USER = Context()
DOCKER = Context("docker", root=True, systemd=False)
POD = Context("kubernetes", root=True, systemd=False)
MAPS = Setting(Kind.SYSCTL, "vm.max_map_count", "9")
MEMLOCK = Setting(Kind.ULIMIT, "memlock", "unlimited")
SHM = Setting(Kind.SHM_SIZE, "/dev/shm", "64")
UVERBS = Setting(Kind.DEVICE, "/dev/infiniband/uverbs0", "rw")
STARTED = "# start the container with: docker run "
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
    assert takes([setting], USER) == {"": (), "kubernetes": ("in a new pod",)}.get(
        by, ("in a new container",)
    )


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


@each_row("container", ["", "docker", "podman", "kubernetes", "lxc"])
@each_row("kind", list(Kind))
def test_every_kind_has_a_line_everywhere(kind: Kind, container: str) -> None:
    assert lines(kind, "name", "1", Context(container))


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(Kind))
def test_every_line_is_shell(kind: Kind) -> None:
    """Comments included: what is printed can be pasted as a whole."""
    for container in ("", "docker", "podman", "kubernetes"):
        script = "\n".join(lines(kind, "/sys/a.b", "1", Context(container)))
        subprocess.run(["bash", "-n", "-c", script], check=True)


@pytest.mark.slow
def test_a_limit_is_set_in_the_shell_that_runs_the_line() -> None:
    done = lines(Kind.ULIMIT, "nofile", "321", BARE)
    assert bash(done, "ulimit -Sn; ulimit -Hn; sh -c 'ulimit -n'") == "321\n321\n321"


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


@pytest.mark.slow
def test_an_empty_value_removes_the_variable() -> None:
    """MC_STORE_USE_HUGEPAGE counts by its presence: an empty one would still be on."""
    done = lines(Kind.ENVIRONMENT, "MC_X", "", BARE)
    assert bash(("export MC_X=1", *done), 'echo "${MC_X-gone}"') == "gone"


@pytest.mark.slow
def test_a_search_path_keeps_what_it_had() -> None:
    done = lines(Kind.ENVIRONMENT, "LD_LIBRARY_PATH", "/new dir", BARE)
    shown = 'printf %s "$LD_LIBRARY_PATH"'
    assert bash(("unset LD_LIBRARY_PATH", *done), shown) == "/new dir"
    assert bash(("export LD_LIBRARY_PATH=/old", *done), shown) == "/new dir:/old"


def test_a_loaded_module_is_loaded_anew_with_its_options() -> None:
    setting = Setting(Kind.MODULE, "erdma", "compat_mode=Y", "compat_mode=N")
    assert commands([setting], BARE)[:2] == ("modprobe -r erdma", "modprobe erdma compat_mode=Y")


def test_a_units_limit_is_the_units() -> None:
    setting = Setting(Kind.ULIMIT, "memlock", "unlimited", unit="containerd.service")
    said = "\n".join(commands([setting], USER))
    assert "/etc/systemd/system/containerd.service.d" in said
    assert "LimitMEMLOCK=infinity" in said
    assert "prlimit" not in said


def test_of_a_template_the_instances_are_restarted() -> None:
    """Systemd refuses the template itself: it is missing the instance name."""
    setting = Setting(Kind.ULIMIT, "memlock", "unlimited", unit="sglang@.service")
    said = "\n".join(commands([setting], USER))
    assert "/etc/systemd/system/sglang@.service.d/" in said
    assert "systemctl restart 'sglang@*.service'" in said


def test_equal_settings_give_their_lines_once() -> None:
    setting = MEMLOCK
    assert commands([setting, setting], BARE) == commands([setting], BARE)


def test_what_a_container_is_started_with_stands_in_one_line() -> None:
    settings = [UVERBS, SHM, Setting(Kind.DEVICE, "/dev/infiniband/uverbs1", "rw"), MEMLOCK]
    options = (
        "--device=/dev/infiniband/uverbs0 --shm-size=64 --device=/dev/infiniband/uverbs1 "
        "--ulimit memlock=-1"
    )
    whole, *rest = commands(settings, DOCKER)
    assert whole == f"{STARTED}{options} ..."
    assert (whole.does, whole.restarts) == ("by hand", "container")
    assert not any("docker run" in line for line in rest)


def test_many_devices_of_one_folder_are_given_by_the_folder() -> None:
    devices = [Setting(Kind.DEVICE, f"/dev/infiniband/uverbs{number}", "rw") for number in range(3)]
    (line,) = commands([*devices, Setting(Kind.DEVICE, "/dev/nvidia-uvm", "rw")], DOCKER)
    options = "--device=/dev/infiniband --device=/dev/nvidia-uvm"
    assert line == f"{STARTED}{options} ..."


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
    assert takes([setting, setting], context) == said
