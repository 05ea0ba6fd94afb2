"""Containers of a real OCI runtime: this machine's own programs, below limits that a test chooses.

No image is needed: the root file system is a folder of mount points, onto which this machine's
/usr, /etc and Python are mounted read-only. Everything else is as dockerd would write it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent
CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20
# The first that is installed; both take the same words.
RUNTIME = next(filter(shutil.which, ("crun", "runc")), "crun")
# What dockerd leaves user 0 (moby, daemon/pkg/oci/caps).
DOCKER_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP",
    "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
)  # fmt: skip
# What a launch may want and dockerd's default profile refuses: memory policies without
# CAP_SYS_NICE, io_uring since docker 25 and containerd 2.0 (moby, profiles/seccomp).
POLICIES = ("get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node")
RINGS = ("io_uring_setup", "io_uring_enter", "io_uring_register")
# Some of the others that it refuses, which nothing here should notice.
NEVER = (
    "bpf", "fsopen", "fsmount", "keyctl", "add_key", "mount", "move_mount", "open_tree", "setns",
    "perf_event_open", "pivot_root", "reboot", "swapon", "syslog", "umount2", "unshare",
)  # fmt: skip
DEFAULT_PROFILE = (*POLICIES, *RINGS, *NEVER)
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/scsi",
    "/proc/timer_list", "/sys/firmware", "/sys/devices/virtual/powercap",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc")
PROGRAMS = "/opt/programs"
VOLUMES = ("/launch", "/preflight", "/opt/server")
LIMIT_SECONDS = 60.0
_ENDED = "<<exit %s>>"


@dataclass(frozen=True)
class Limits:
    """What a container is given; the defaults are docker's.

    capabilities: all sets but the ambient one, so that they come to take effect for user 0 alone.
    memlock: RLIMIT_MEMLOCK in bytes, -1 without limit, None for this process's own. users: inside 0
    is this id outside, in a user namespace of its own. hugetlb: page size in the kernel's spelling
    -> bytes. pids: threads in all. refused: what the seccomp profile answers with EPERM.
    host_cgroups: the host's /sys/fs/cgroup in place of the container's own, as ``-v`` mounts it.
    rdma: the host's network, /sys and RDMA devices, as ``--network host --device /dev/infiniband``
    gives them. volumes: one of VOLUMES -> what is mounted there to be written."""

    user: int = 0
    capabilities: tuple[str, ...] = DOCKER_CAPABILITIES
    memlock: int | None = None
    memory_bytes: int | None = None
    hugetlb: Mapping[str, int] = field(default_factory=dict)
    pids: int | None = None
    shm_bytes: int = 64 * MIB
    users: int | None = None
    refused: tuple[str, ...] = ()
    cgroup_namespace: bool = True
    host_cgroups: bool = False
    rdma: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """One command's exit code as a shell has it, and what it wrote to standard output."""

    code: int
    out: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def finding(self, check: str) -> Mapping[str, Any]:
        """The one finding of a check, from its report."""
        (found,) = (row for row in self.json["findings"] if row["check"] == check)
        assert isinstance(found, dict)
        return found


class ContainerError(Exception):
    """The runtime did not start the container; carries what it said."""


def product(*words: str) -> str:
    """A command line of the product."""
    return shlex.join([sys.executable, "-m", "preflight.cli.main", *words])


def sizing(*launch: str) -> str:
    """A command line of the sizing of a launch."""
    return shlex.join([sys.executable, "-m", "preflight.cli.sizing", "--json", "--", *launch])


def check(*launch: str, only: str = "*", options: tuple[str, ...] = ()) -> str:
    """A command line that holds a launch against the container."""
    return product("check", "--json", "--timeout", "60", "--only", only, *options, "--", *launch)


def probe(*words: str | int) -> str:
    """A command line that does the real thing: see ``probe.py``."""
    return shlex.join([sys.executable, str(HERE / "probe.py"), *map(str, words)])


def script(commands: Sequence[str]) -> tuple[str, ...]:
    """The words of a shell that runs all ``commands``, whatever becomes of each."""
    lines = (f"( {line} ) </dev/null; printf '\\n{_ENDED}\\n' $?\n" for line in commands)
    return ("/bin/sh", "-c", "".join(lines))


def answers(out: str) -> list[Done]:
    """What such a shell wrote, command by command."""
    parts = re.split(r"\n<<exit (\d+)>>\n", out)
    return [Done(int(parts[n + 1]), parts[n]) for n in range(0, len(parts) - 1, 2)]


class Machine:
    """Makes containers; ``folder`` is theirs alone. Programs: name -> text, on their PATH."""

    def __init__(self, folder: Path, programs: Mapping[str, str]) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        folder.chmod(0o755)
        root = folder / "root"
        root.mkdir(mode=0o755)
        self._binds = list(_build_root(root))
        for name in ("proc", "sys", "dev", "tmp", "run", *(place[1:] for place in VOLUMES)):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / PROGRAMS[1:]).mkdir(parents=True)
        for name, text in programs.items():
            program = root / PROGRAMS[1:] / name
            program.write_text(text)
            program.chmod(0o755)

    def run(self, limits: Limits, *commands: str) -> list[Done]:
        """Run ``commands`` with sh, one after the other, in one container."""
        runtime = self.start(limits, *script(commands))
        out, errors = runtime.communicate(timeout=LIMIT_SECONDS)
        done = answers(out)
        if len(done) != len(commands):
            raise ContainerError(f"exit {runtime.returncode}: {errors[-2000:]}{out[-500:]}")
        return done

    def command(self, limits: Limits, *words: str, name: str = "") -> list[str]:
        """The runtime's command line for a container whose process 1 is ``words``."""
        name = name or f"mooncake-{os.getpid()}-{next(self._numbers)}"
        bundle = self._folder / name
        bundle.mkdir()
        config = _config(self._folder / "root", self._binds, limits, words, f"/{name}")
        (bundle / "config.json").write_text(json.dumps(config))
        return [RUNTIME, "run", "--bundle", str(bundle), name]

    def start(self, limits: Limits, *words: str, name: str = "") -> subprocess.Popen[str]:
        """Start a container whose process 1 is ``words``; it is the runtime's own process."""
        return subprocess.Popen(
            [*_own_mounts(), *self.command(limits, *words, name=name)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def kill(self, name: str, signal: str) -> None:
        """Send a signal to a container's process 1, as ``docker stop`` does."""
        subprocess.run([*_own_mounts(), RUNTIME, "kill", name, signal], check=True)


@contextmanager
def machine(programs: Mapping[str, str]) -> Iterator[Machine]:
    """A Machine whose files, cgroups and hierarchies are gone at the end."""
    # Not below pytest's folder, which others than root cannot pass: a user namespace's root is one.
    folder = Path(tempfile.mkdtemp(prefix="containers-"))
    try:
        yield Machine(folder, programs)
    finally:
        shutil.rmtree(folder)
        give_back_hugetlb()


def _build_root(root: Path) -> Iterator[str]:
    """The mount points below ``root``; yields what is to be mounted there, read-only."""
    for name in SYSTEM_FOLDERS:
        source = Path("/", name)
        if source.is_symlink():
            (root / name).symlink_to(source.readlink())
        elif source.is_dir():
            (root / name).mkdir()
            yield str(source)
    above = tuple(Path("/", name) for name in SYSTEM_FOLDERS)
    wanted = {Path(sys.base_prefix).resolve(), Path(sys.prefix), REPOSITORY}
    for path in sorted(wanted):
        outside = not any(path.is_relative_to(other) for other in (*above, *(wanted - {path})))
        if outside:
            (root / str(path)[1:]).mkdir(parents=True, exist_ok=True)
            yield str(path)


def _config(
    root: Path, binds: list[str], limits: Limits, words: tuple[str, ...], cgroup: str
) -> dict[str, Any]:
    """config.json of the OCI runtime specification."""
    capabilities = [f"CAP_{name}" for name in limits.capabilities]
    namespaces = ["pid", "mount", "ipc", "uts"] + ["network"] * (not limits.rdma)
    namespaces += ["cgroup"] * limits.cgroup_namespace + ["user"] * (limits.users is not None)
    environment = {
        "PATH": f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        **limits.environment,
    }
    process: dict[str, Any] = {
        "terminal": False,
        "user": {"uid": limits.user, "gid": limits.user},
        "args": list(words),
        "env": [f"{name}={text}" for name, text in environment.items()],
        "cwd": "/",
        # None is inheritable or ambient, as dockerd has it: a user other than 0 ends up without.
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
    }
    if limits.memlock is not None:
        size = limits.memlock % (1 << 64)
        process["rlimits"] = [{"type": "RLIMIT_MEMLOCK", "soft": size, "hard": size}]
    resources: dict[str, Any] = {
        "devices": [{"allow": limits.rdma, "access": "rwm"}],
        "hugepageLimits": [
            {"pageSize": size, "limit": limit} for size, limit in limits.hugetlb.items()
        ],
    }
    if limits.pids is not None:
        resources["pids"] = {"limit": limits.pids}
    if limits.memory_bytes is not None:
        resources["memory"] = {"limit": limits.memory_bytes, "swap": limits.memory_bytes}
    linux: dict[str, Any] = {
        "namespaces": [{"type": kind} for kind in namespaces],
        "cgroupsPath": cgroup,
        "resources": resources,
        "maskedPaths": list(MASKED),
        "readonlyPaths": list(READ_ONLY),
    }
    if limits.users is not None:
        mapping = [{"containerID": 0, "hostID": limits.users, "size": 65536}]
        linux |= {"uidMappings": mapping, "gidMappings": mapping}
    if limits.refused:
        linux["seccomp"] = {
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [
                {"names": list(limits.refused), "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
                # ENOSYS, so that the C library takes clone.
                {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
            ],
        }
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": str(root), "readonly": True},
        "hostname": "container",
        "mounts": list(_mounts(binds, limits)),
        "linux": linux,
    }


def _mounts(binds: list[str], limits: Limits) -> Iterator[dict[str, Any]]:
    quiet = ["nosuid", "noexec", "nodev"]
    shm = [*quiet, "mode=1777", f"size={limits.shm_bytes}"]
    if limits.rdma:  # before what is mounted below it
        yield {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]}
    for path, kind, options in (
        ("/proc", "proc", quiet),
        ("/dev", "tmpfs", ["nosuid", "mode=755", "size=65536k"]),
        ("/dev/shm", "tmpfs", shm),
        *([] if limits.rdma else [("/sys", "sysfs", [*quiet, "ro"])]),
        *([] if limits.host_cgroups else [("/sys/fs/cgroup", "cgroup", [*quiet, "ro"])]),
    ):
        yield {"destination": path, "type": kind, "source": kind, "options": options}
    if limits.host_cgroups:
        options = ["rbind", *quiet, "ro"]
        yield {
            "destination": "/sys/fs/cgroup",
            "type": "bind",
            "source": str(CGROUPS),
            "options": options,
        }
    if limits.rdma:
        devices = {"destination": "/dev/infiniband", "source": "/dev/infiniband"}
        yield {**devices, "type": "bind", "options": ["rbind", "nosuid", "noexec"]}
    for path, folder in limits.volumes.items():
        yield {"destination": path, "type": "bind", "source": str(folder), "options": ["rbind"]}
    for path in binds:
        options = ["rbind", "ro", "nosuid", "nodev"]
        yield {"destination": path, "type": "bind", "source": path, "options": options}


# crun takes cgroups of one version or the other. On a machine with both, version 2 is hidden from
# it, and a hugetlb controller that is version 2's gets a mount of version 1; in a mount namespace
# of the runtime's own, which takes the mount with it.
_MOUNTS = f"""
umount {CGROUPS}/unified 2>/dev/null
if ! [ -e {CGROUPS}/hugetlb/tasks ] && grep -q '^hugetlb' /proc/cgroups; then
    mkdir -p {CGROUPS}/hugetlb && mount -t cgroup -o hugetlb cgroup {CGROUPS}/hugetlb
fi
exec "$@"
"""
# A hierarchy with a dying cgroup outlives its mount, until it is mounted again without one.
_GIVE_BACK = f"""
[ -e {CGROUPS}/hugetlb/tasks ] && exit
for attempt in $(seq 50); do
    grep -q '^hugetlb[[:space:]]0[[:space:]]' /proc/cgroups && break
    mkdir -p {CGROUPS}/hugetlb && mount -t cgroup -o hugetlb cgroup {CGROUPS}/hugetlb || break
    umount {CGROUPS}/hugetlb
    sleep 0.2
done
rmdir {CGROUPS}/hugetlb 2>/dev/null
true
"""


def version_2() -> bool:
    """Whether this machine has version 2 of cgroups alone."""
    return (CGROUPS / "cgroup.controllers").exists()


def _own_mounts() -> list[str]:
    if version_2():
        return []
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _MOUNTS, "sh"]


def give_back_hugetlb() -> None:
    """Let version 2 have the hugetlb controller again, where this machine itself mounts it not."""
    if not version_2():
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _GIVE_BACK]
        subprocess.run(command, check=False)
