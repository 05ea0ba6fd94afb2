"""The system: what is read of it, in trees and here, and what its checks make of that."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds
from checks.framework.pages import Spot, Usage
from checks.framework.root import Root
from checks.framework.units import GIB, KIB, MIB
from checks.framework.unknown import Unknown
from checks.system.facts import (
    INITIAL_PID_NAMESPACE,
    IO_URING_SETUP,
    Container,
    SystemFacts,
    read_system,
)
from tests.builders.seccomp import KILL, REFUSE, filtered
from tests.checks.launches import one_finding
from tests.checks.limit_hosts import facts, launch, limits, rank, system, tree
from tests.tables import each_row

MACHINE = {
    "architecture": "aarch64",
    "page_bytes": 65536,
    "pid_namespace": "pid:[4026532000]",
    "kubernetes": False,
    "container": "",
    "libc": "glibc 2.39",
}
FILES = {
    "/proc/sys/kernel/osrelease": "6.8.0-1014-nvidia-64k\n",
    "/proc/sys/kernel/io_uring_disabled": "2\n",
    "/etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\n',
    "/proc/self/status": "Name:\tx\nSeccomp:\t2\n",
    "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
    "/sys/class/dmi/id/sys_vendor": "QEMU\n",
    "/sys/class/dmi/id/product_name": "Standard PC\n",
}
CALLS: dict[str, Any] = {"system.machine": MACHINE, "system.io_uring": 1}


def read(root: Path, needs: LaunchNeeds | None = None) -> SystemFacts:
    return read_system(Root(str(root)), needs)


def test_a_whole_host(tmp_path: Path) -> None:
    """Each fact at its place."""
    assert read(tree(tmp_path / "host", FILES, CALLS)) == SystemFacts(
        kernel_release="6.8.0-1014-nvidia-64k",
        kernel=(6, 8),
        architecture="aarch64",
        page_bytes=65536,
        distribution="ubuntu",
        distribution_version="24.04",
        container=Container("none", ""),
        seccomp="filter",
        uring_errno=1,
        uring_disabled=2,
        hypervisor="QEMU Standard PC",
        glibc="2.39",
    )


@pytest.mark.parametrize("content", ["", "garbage\0", "/"])
def test_unreadable_is_unknown_and_nothing_raises(tmp_path: Path, content: str) -> None:
    """Empty, damaged, or a folder where a file should be."""
    seen = read(tree(tmp_path / "host", dict.fromkeys(FILES, content)))
    for name in ("kernel", "architecture", "page_bytes", "distribution", "seccomp", "uring_errno"):
        assert isinstance(getattr(seen, name), Unknown), name
    assert isinstance(seen.uring_disabled, Unknown)


@pytest.mark.parametrize("answer", [[], 3, {"page_bytes": 4097}, {"page_bytes": -4096}, {"x": 1}])
def test_odd_answers_are_unknown(tmp_path: Path, answer: Any) -> None:
    """A page that is no power of two would spoil every count."""
    seen = read(tree(tmp_path / "host", FILES, {"system.machine": answer, "system.io_uring": []}))
    assert isinstance(seen.page_bytes, Unknown)
    assert isinstance(seen.uring_errno, Unknown)


EPERM, ENOMEM, ENOSYS = 1, 12, 38
HOST_NAMESPACE = {"pid_namespace": INITIAL_PID_NAMESPACE}
OVERLAY = "1 0 0:1 / / rw - overlay overlay rw,lowerdir={}\n"


@pytest.mark.parametrize(
    ("files", "machine", "kind"),
    [
        ({}, {}, "unknown"),  # nothing of it is recorded
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({"/.dockerenv": ""}, {"kubernetes": True}, "kubernetes"),
        ({"/var/run/secrets/kubernetes.io/token": "x"}, {}, "kubernetes"),
        ({"/run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"/proc/1/cgroup": "0::/kubepods.slice/pod1\n"}, {}, "kubernetes"),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, {}, "unknown"),
        ({"/proc/self/mountinfo": OVERLAY.format("/var/lib/docker/x")}, {}, "docker"),
        ({"/proc/self/mountinfo": OVERLAY.format("/io.containerd.x/y")}, {}, "containerd"),
        ({"/proc/self/mountinfo": OVERLAY.format("/lower")}, {}, "unnamed"),
        # Hosts that boot from the network or from a live image have an overlay too.
        ({"/proc/self/mountinfo": OVERLAY.format("/lower")}, HOST_NAMESPACE, "none"),
        ({"/proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"}, {}, "none"),
    ],
)
def test_the_container(
    tmp_path: Path, files: dict[str, str], machine: dict[str, Any], kind: str
) -> None:
    """Each sign by itself, the surest first."""
    calls = {"system.machine": {**MACHINE, **machine}}
    assert read(tree(tmp_path / "host", files, calls)).container.kind == kind


@pytest.mark.slow
def test_this_machine() -> None:
    """What Python's own functions say of it."""
    seen = read_system(Root(), None)
    assert seen.kernel_release == os.uname().release
    assert seen.architecture == os.uname().machine
    assert seen.page_bytes == resource.getpagesize()
    assert isinstance(seen.uring_errno, int)


URING = "from checks.system.facts import read_system; facts = read_system(Root(), None)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "answer"),
    [
        (REFUSE | EPERM, "filter 1"),  # Docker's profile
        (REFUSE | ENOSYS, "filter 38"),  # containerd's
        (KILL, "was killed (SIGSYS)"),  # the child dies, not we
    ],
)
def test_io_uring_under_a_real_seccomp_filter(action: int, answer: str) -> None:
    """What a container's profile does is seen, even one that kills."""
    run = filtered(f"{URING}; print(facts.seccomp, facts.uring_errno)", action, IO_URING_SETUP)
    assert not run.returncode, run.stderr
    assert answer in run.stdout


def one(id_: str, needs: LaunchNeeds | None, seen: SystemFacts) -> Finding:
    return one_finding(facts(limits(), 2, seen), needs, id_)


SYSCTL = Setting(Kind.SYSCTL, "kernel.io_uring_disabled", "0", "2")
SECCOMP = Setting(Kind.SECURITY, "seccomp", "unconfined")
UNSET = Setting(Kind.ENVIRONMENT, "MOONCAKE_OFFLOAD_USE_URING", "", "true")


@pytest.mark.parametrize(
    ("seen", "status", "setting"),
    [
        ({}, Status.PASS, None),
        ({"uring_errno": EPERM, "uring_disabled": 2}, Status.FAIL, SYSCTL),
        ({"uring_errno": EPERM, "seccomp": "filter"}, Status.FAIL, SECCOMP),
        ({"uring_errno": ENOSYS, "uring_disabled": None}, Status.FAIL, UNSET),
        # Seen in a container with a memlock limit of 0, whatever else it has.
        (
            {"uring_errno": ENOMEM, "seccomp": "filter", "uring_disabled": 1},
            Status.FAIL,
            Setting(Kind.ULIMIT, "memlock", "unlimited"),
        ),
        ({"uring_errno": Unknown("killed by signal 31")}, Status.UNKNOWN, None),
        ({"uring_errno": None}, Status.UNKNOWN, None),
    ],
)
def test_io_uring(seen: dict[str, Any], status: Status, setting: Setting | None) -> None:
    """Who refuses it decides what is to be changed."""
    process = rank(uses_uring=True, environment={"MOONCAKE_OFFLOAD_USE_URING": "true"})
    finding = one("io-uring.unavailable", launch(process), system(**seen))
    assert finding.status is status
    assert finding.settings == (() if setting is None else (setting,))


@pytest.mark.parametrize(
    ("limits", "kind", "errno", "status"),
    [
        # Seen from the host, a container's own profile is not known.
        ({}, "none", 0, Status.UNKNOWN),
        ({}, "none", EPERM, Status.FAIL),
        ({}, "docker", 0, Status.PASS),
        ({"privileged": True}, "none", 0, Status.PASS),
        ({"security_options": ("seccomp=unconfined",)}, "none", 0, Status.PASS),
    ],
)
def test_io_uring_of_a_container(limits: Any, kind: str, errno: int, status: Status) -> None:
    """What the host allows, a container's seccomp profile may not."""
    process = rank(uses_uring=True, container=ContainerLimits("x", "docker", **limits))
    seen = system(kind, uring_errno=errno)
    assert one("io-uring.unavailable", launch(process), seen).status is status


@pytest.mark.parametrize(("errno", "status"), [(0, Status.PASS), (EPERM, Status.UNKNOWN)])
def test_io_uring_that_may_be_on(errno: int, status: Status) -> None:
    """Where a ring can be made, it does not matter; where not, the variable decides."""
    process = rank(uses_uring=Unknown("$U is not set"))
    finding = one("io-uring.unavailable", launch(process), system(uring_errno=errno))
    assert finding.status is status
    assert ("$U is not set" in finding.text) is (status is Status.UNKNOWN)


def test_io_uring_is_skipped_where_nobody_uses_it() -> None:
    """Skips."""
    assert one("io-uring.unavailable", None, system()).status is Status.SKIP
    assert one("io-uring.unavailable", launch(rank()), system()).status is Status.SKIP


def mapping(page: int) -> LaunchNeeds:
    pages = {Spot(page, None): 4}
    return LaunchNeeds("launch.sh", (rank(),), (Usage("rank 0", pages, pages, False, {}),))


@each_row(
    ("architecture", "base", "page", "status"),
    [
        ("aarch64", 4 * KIB, GIB, Status.PASS),
        ("aarch64", 64 * KIB, 512 * MIB, Status.WARN),
        ("aarch64", 64 * KIB, GIB, Status.FAIL),
        ("aarch64", 4 * KIB, 512 * MIB, Status.FAIL),
        ("ppc64le", 64 * KIB, 2 * MIB, Status.WARN),
        (Unknown("no uname"), 64 * KIB, 2 * MIB, Status.UNKNOWN),
        ("x86_64", Unknown("no sysconf"), 2 * MIB, Status.UNKNOWN),
    ],
)
def test_page_sizes(architecture: Any, base: Any, page: int, status: Status) -> None:
    """An arm64 kernel with 64 KiB pages has no 1 GiB page, and one with 4 KiB none of 512 MiB."""
    seen = system(architecture=architecture, page_bytes=base)
    assert one("system.page-size", mapping(page), seen).status is status


BY_DMA_BUF = rank(gpu_registered_bytes=1, environment={"WITH_NVIDIA_PEERMEM": "0"})


@pytest.mark.parametrize(
    ("kernel", "process", "status"),
    [
        ((6, 8), rank(hugetlb_bytes=1, uses_uring=True), Status.PASS),
        ((4, 13), rank(hugetlb_bytes=1), Status.WARN),
        ((4, 14), rank(hugetlb_bytes=1), Status.PASS),
        ((4, 13), rank(hugetlb_bytes=Unknown("x")), Status.WARN),
        ((5, 0), rank(uses_uring=True), Status.WARN),
        ((5, 1), rank(uses_uring=True), Status.PASS),
        ((5, 4), rank(gpu_registered_bytes=1), Status.PASS),
        ((5, 11), BY_DMA_BUF, Status.WARN),
        ((5, 12), BY_DMA_BUF, Status.PASS),
        (Unknown("no release"), rank(), Status.UNKNOWN),
    ],
)
def test_old_kernels(kernel: Any, process: Any, status: Status) -> None:
    """Only what the launch uses makes a kernel old."""
    seen = system(kernel=kernel)
    assert one("system.kernel-old", launch(process), seen).status is status
    assert one("system.kernel-old", None, seen).status is Status.SKIP
