"""The kernel, the distribution and the container that this process runs in."""

import os
from contextlib import suppress
from typing import Any, NamedTuple

from checks.framework.cgroup_mounts import MOUNTS
from checks.framework.needs import LaunchNeeds
from checks.framework.patterns import MOST_ERRNO, answered, count_of, matched, of
from checks.framework.root import Root, in_child
from checks.framework.unknown import Unknown, none_if_absent, or_unknown, require
from checks.numa.nodes import STATUS

IO_URING_SETUP = 425  # everywhere but on alpha (include/uapi/asm-generic/unistd.h)
PARAMS_BYTES = 120  # struct io_uring_params, include/uapi/linux/io_uring.h
TRY_SECONDS = 2.0


def machine() -> dict[str, Any]:
    """Return facts about this machine, and what the environment says of Kubernetes and containers.

    Of the keys, ``libc`` is name and version, as ``glibc 2.36``; "" for a C library that does not
    tell its version.
    """
    libc = ""
    with suppress(ValueError, OSError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return {
        "architecture": os.uname().machine,
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "pid_namespace": os.readlink("/proc/self/ns/pid"),
        "kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ,
        "container": os.environ.get("container", ""),  # noqa: SIM112 - systemd and Podman write it so
        "libc": libc,
    }


def cgroup_namespace() -> str:
    """Return the namespace of the paths in /proc/self/cgroup, as ``cgroup:[4026531835]``."""
    return os.readlink("/proc/self/ns/cgroup")


def io_uring() -> int:
    """Try to make an io_uring with one entry; return 0 or the errno.

    Tried in a child, because seccomp may kill the process.

    Raises:
        OSError: If the child dies or hangs.
    """
    import ctypes

    # Looked up before the fork: no lock of the loader or of ctypes is taken in the child.
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(PARAMS_BYTES)

    def attempt() -> int:
        return 0 if libc.syscall(IO_URING_SETUP, 1, params) >= 0 else ctypes.get_errno()

    return int(in_child(attempt, TRY_SECONDS))


KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
URING_DISABLED = "/proc/sys/kernel/io_uring_disabled"
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # include/linux/proc_ns.h, PROC_PID_INIT_INO
_OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")  # os-release(5): the first that exists
SECCOMP_MODES = {"0": "off", "1": "strict", "2": "filter"}
# What a path in /proc/1/cgroup or the root's mount says of who made the container.
_TRACES = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("io.containerd", "containerd"),
    ("/lxc", "lxc"),
    ("machine.slice/systemd-nspawn", "systemd-nspawn"),
)


class Container(NamedTuple):
    """The container that this process is in, as far as signs tell."""

    kind: str  # docker, podman, kubernetes, lxc ...; unnamed (some container), none or unknown
    source: str  # why; of unknown, what was not read

    @property
    def inside(self) -> bool:
        """Return whether this is known to be a container."""
        return self.kind not in ("none", "unknown")


_NO_CONTAINER = Container("none", "")
_FILES_OF = {  # the surest first
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/run/.containerenv": "podman",
    "/.dockerenv": "docker",
}


class SystemFacts(NamedTuple):
    """The kernel, the distribution and the container."""

    kernel_release: str | Unknown
    kernel: tuple[int, int] | Unknown  # (major, minor) of ``kernel_release``
    architecture: str | Unknown
    page_bytes: int | Unknown
    distribution: str | Unknown
    distribution_version: str | Unknown
    container: Container
    seccomp: str | Unknown  # off, strict or filter
    uring_errno: int | Unknown | None  # of making a ring, 0 if it works; None if nobody wants one
    uring_disabled: int | Unknown | None  # the sysctl (0 on, 1 not for all, 2 off), None without
    hypervisor: str | Unknown  # the virtual machine's maker as its firmware says, "" if unknown
    glibc: str | Unknown = Unknown("system.machine: has no libc")  # as 2.36


def read_system(root: Root, needs: LaunchNeeds | None) -> SystemFacts:
    """Read the facts of kernel, distribution and container below ``root``. io_uring is tried
    without a launch, and if a process of the launch uses it or may use it.
    """
    release = _kernel_release(root)
    machine = root.call("system.machine")
    mounts = root.text(MOUNTS)
    name, version = _distribution(root)
    wanted = needs is None or any(process.uses_uring is not False for process in needs.processes)
    return SystemFacts(
        kernel_release=release,
        kernel=_kernel(release),
        architecture=_text_of(machine, "architecture"),
        page_bytes=_page_bytes(machine),
        distribution=name,
        distribution_version=version,
        container=_container(root, machine, mounts),
        seccomp=_seccomp(root),
        uring_errno=_errno(root.call("system.io_uring")) if wanted else None,
        uring_disabled=none_if_absent(root.integer(URING_DISABLED), None),
        hypervisor=_hypervisor(root),
        glibc=_glibc(machine),
    )


def read_container(root: Root) -> Container:
    """Return the container that this system is seen to be."""
    return _container(root, root.call("system.machine"), root.text(MOUNTS))


def with_kernel(system: SystemFacts, release: str) -> SystemFacts:
    """Return the same host with another kernel."""
    return system._replace(kernel_release=release, kernel=_kernel(release))


def _kernel_release(root: Root) -> str | Unknown:
    """Return the kernel's release, as ``6.8.0-45-generic``.

    If its file in /proc/sys cannot be read, take the release from /proc/version.
    """
    release, version = root.word(KERNEL_RELEASE), root.text("/proc/version")
    if isinstance(release, Unknown) and isinstance(version, str):
        fields = version.split()
        return fields[2] if fields[:2] == ["Linux", "version"] and len(fields) > 2 else release
    return release


def _kernel(release: str | Unknown) -> tuple[int, int] | Unknown:
    two, wrong = r"\A([0-9]{1,5})\.([0-9]{1,5})", f"{KERNEL_RELEASE}: not a release:"
    return matched(release, two, lambda major, minor: (int(major), int(minor)), wrong)


def _text_of(machine: object, key: str) -> str | Unknown:
    return answered(machine, lambda has: of(str, has[key]), f"system.machine: has no {key}")


@or_unknown
def _glibc(machine: object) -> str | Unknown:
    name, _, version = require(_text_of(machine, "libc")).partition(" ")
    return version if name == "glibc" else Unknown("system.machine: this is not glibc")


@or_unknown
def _page_bytes(machine: object) -> int | Unknown:
    """Read the base page size; Unknown if it is no power of two from 4096 on."""
    wrong = "system.machine: has no page_bytes"
    value = require(answered(machine, lambda has: of(int, has["page_bytes"]), wrong))
    # A page is a power of two; anything else would spoil every count that is made with it.
    return Unknown(wrong) if value < 4096 or value & (value - 1) else value


def _errno(answer: object) -> int | Unknown:
    wrong = f"not an errno: {str(answer)[:40]!r}"
    return answered(answer, lambda code: count_of(code, MOST_ERRNO), wrong)


def _distribution(root: Root) -> tuple[str | Unknown, str | Unknown]:
    """Return ``ID`` and ``VERSION_ID`` of os-release, each Unknown if the file does not tell it."""
    contents = [root.text(path) for path in _OS_RELEASE]
    content = next((text for text in contents if isinstance(text, str)), contents[-1])
    if isinstance(content, Unknown):
        return content, content
    rows = dict(line.partition("=")[::2] for line in content.splitlines())
    name, version = (rows.get(key, "").strip().strip("\"'") for key in ("ID", "VERSION_ID"))
    missing = Unknown("os-release: says nothing of it")
    return name or missing, version or missing


def _container(root: Root, machine: object, mounts: str | Unknown) -> Container:
    """Return the container that this process is in, by the surest sign.

    Without a sign its kind is none, or unknown if the mounts cannot be read.
    """
    if isinstance(machine, dict) and machine.get("kubernetes") is True:
        return Container("kubernetes", "KUBERNETES_SERVICE_HOST")
    for path, runtime in _FILES_OF.items():
        if not isinstance(root.mode(path), Unknown):
            return Container(runtime, path)
    for word, source in (
        (_text_of(machine, "container"), "environment: container"),
        (root.word("/run/systemd/container"), "/run/systemd/container"),
    ):
        if not isinstance(word, Unknown) and word:
            return Container(word, source)
    for line in root.lines("/proc/1/cgroup"):
        for trace, runtime in _TRACES:
            if trace in line.rpartition(":")[2]:
                return Container(runtime, f"/proc/1/cgroup: {line[:200]}")
    for line in () if isinstance(mounts, Unknown) else mounts.splitlines():
        fields = line.split()
        if len(fields) > 4 and fields[4] == "/" and " - overlay " in line:
            for trace, runtime in _TRACES:
                if trace in line:
                    return Container(runtime, f"{MOUNTS}: the root is an overlay of {runtime}")
            if _text_of(machine, "pid_namespace") == INITIAL_PID_NAMESPACE:
                break  # a host that was booted from the network or a live image has one too
            return Container("unnamed", f"{MOUNTS}: the root is an overlay")
    return Container("unknown", mounts.reason) if isinstance(mounts, Unknown) else _NO_CONTAINER


@or_unknown
def _seccomp(root: Root) -> str | Unknown:
    """Return the seccomp mode of this process: off, strict or filter."""
    text = root.text(STATUS)
    mode = require(matched(text, r"^Seccomp:[ \t]*(.*?)[ \t]*$", str, f"{STATUS}: has no Seccomp"))
    return SECCOMP_MODES.get(mode, Unknown(f"{STATUS}: Seccomp {mode[:20]!r}"))


def _hypervisor(root: Root) -> str | Unknown:
    """Return ``sys_vendor product_name`` if the firmware is a known virtual machine's, or ""."""
    vendor = root.word("/sys/class/dmi/id/sys_vendor")
    if isinstance(vendor, Unknown):
        return none_if_absent(vendor, "")
    product = root.word("/sys/class/dmi/id/product_name")
    name_shown = vendor if isinstance(product, Unknown) else f"{vendor} {product}"
    known = ("QEMU", "KVM", "VMware", "Xen", "Microsoft", "Amazon EC2", "Google", "Alibaba Cloud")
    return name_shown if any(name.lower() in name_shown.lower() for name in known) else ""
