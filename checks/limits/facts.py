"""What this process, and what starts a launch here, may lock and open.

RDMA pins every registered page. The kernel holds the sum against RLIMIT_MEMLOCK of the process, and
asks for nothing where CAP_IPC_LOCK is in effect in the initial user namespace.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.framework.cgroup_mounts import cgroup_limit, own_mount
from checks.framework.needs import CAPABILITIES, LaunchNeeds
from checks.framework.patterns import answered, count_of, matched, of
from checks.framework.root import Root
from checks.framework.unknown import Unknown, or_unknown, require
from checks.limits.runtimes import (
    Daemon,
    Limit,
    RuntimeLimits,
    limit_of_file,
    limit_of_pair,
    read_runtime_limits,
)
from checks.numa.nodes import STATUS, read_allowed, read_whole_meminfo

# To the kernel a process is its threads: each takes a number, wherever it is counted. Sources:
# kernel/fork.c (copy_process), kernel/cgroup/pids.c, cgroup-v2.rst (PID), getrlimit(2).
THREADS_MAX = "/proc/sys/kernel/threads-max"
PID_MAX = "/proc/sys/kernel/pid_max"
LOAD = "/proc/loadavg"


class Ceiling(NamedTuple):
    """At most ``limit`` threads, of which ``used`` exist; ``source`` is the file that says so."""

    source: str
    limit: int
    used: int


class ThreadFacts(NamedTuple):
    """What bounds threads.

    Attributes:
        kernel: For the whole system.
        cgroups: For this process's cgroup and its ancestors.
        user_threads: Those of this user that were seen, which other containers hide.
        cpus: The number on which this process may run.
    """

    kernel: tuple[Ceiling, ...] | Unknown
    cgroups: tuple[Ceiling, ...] | Unknown
    user_threads: int | Unknown
    cpus: int | Unknown


@or_unknown
def _system_threads(root: Root) -> tuple[Ceiling, ...] | Unknown:
    """Read the kernel's ceilings of threads, and how many threads run."""
    # The fourth field: running and all threads, of the whole system in a container too.
    fourth, wrong = r"\A(?:\S+\s+){3}[^\s/]*/([0-9]{1,18})(?:\s|\Z)", "has no count of threads:"
    used = require(matched(root.text(LOAD), fourth, int, f"{LOAD}: {wrong}"))
    return tuple(Ceiling(name, require(root.count(name)), used) for name in (THREADS_MAX, PID_MAX))


@or_unknown
def _pids_cgroups(root: Root) -> tuple[Ceiling, ...] | Unknown:
    """Return the ceilings of threads that this process's cgroup and its ancestors set, from the
    cgroup up.

    Cgroups without a limit are left out.
    """
    mount = own_mount(root, "pids")
    if mount is None or isinstance(mount, Unknown):
        return () if mount is None else mount
    ceilings = []
    for folder in mount.folders:
        name = f"{folder}/pids.max"
        limit = require(cgroup_limit(root, name))
        if limit is not None:
            ceilings.append(Ceiling(name, limit, require(root.count(f"{folder}/pids.current"))))
    return tuple(ceilings)


@or_unknown
def _cpus(root: Root) -> int | Unknown:
    """Count the CPUs that this process may run on."""
    return len(require(read_allowed(root).cpus)) or Unknown(f"{STATUS}: an empty Cpus_allowed_list")


# Daemons that start containers or jobs, as /proc/PID/status names them (15 characters at most).
DAEMONS = ("containerd", "dockerd", "crio", "cri-dockerd", "slurmd", "kubelet", "podman")


def identity() -> dict[str, Any]:
    """Read the user namespace, the user who called sudo (or None), and the names of user 0."""
    sudo_uid = os.environ.get("SUDO_UID", "")
    rows = (line.split(":") for line in _read_start("/etc/passwd", 1 << 20).decode().splitlines())
    return {
        "user_namespace": os.readlink("/proc/self/ns/user"),
        "sudo_uid": int(sudo_uid) if sudo_uid.isdecimal() else None,
        "root_names": [row[0] for row in rows if len(row) == 7 and row[2] == "0"],
    }


def processes() -> dict[str, Any]:
    """Return the limits of the daemons that start containers or jobs, and the number of threads
    that this user has.

    Processes that are hidden or gone are left out.
    """
    daemons: list[dict[str, Any]] = []
    uid = f"{os.getuid()}".encode()
    user_threads = 0
    # Reading one status takes about 30 us.
    for pid in sorted(map(int, filter(str.isdecimal, os.listdir("/proc"))), reverse=True):
        content = _read_start(f"/proc/{pid}/status")
        name = content[6 : content.find(b"\n")].decode(errors="replace")
        if _first_word(content, b"\nUid:") == uid:
            user_threads += int(_first_word(content, b"\nThreads:") or b"0")
        if name in DAEMONS:
            daemons.append({"name": name, **_limits_of_process(pid)})
    return {"daemons": daemons, "user_threads": user_threads}


def _first_word(content: bytes, name: bytes) -> bytes:
    """Return the first word of a row of /proc/PID/status, b"" if the row is missing.

    Args:
        name: Of the row, behind a line break. In the row Uid that is the user whose threads the
            kernel counts.
    """
    start = content.find(name)
    fields = content[start + len(name) : start + 60].split() if start >= 0 else []
    return fields[0] if fields else b""


def _read_start(path: str, most_bytes: int = 1 << 14) -> bytes:
    """Read the first bytes of a file; b"" if it cannot be read, as of a process that is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def _limits_of_process(pid: int) -> dict[str, list[str]]:
    """Return memlock and nofile of a process, each [soft, hard] as ``/proc/PID/limits`` writes
    them.

    A limit that cannot be read is left out.
    """
    rows = _read_start(f"/proc/{pid}/limits").decode(errors="replace").splitlines()
    titles = (("memlock", "Max locked memory"), ("nofile", "Max open files"))
    return {
        key: row[len(title) :].split()[:2]
        for key, title in titles
        for row in rows
        if row.startswith(title)
    }


LIMITS = "/proc/self/limits"
UID_MAP = "/proc/self/uid_map"
# include/uapi/linux/capability.h
IPC_LOCK_BIT, SYS_ADMIN_BIT, SYS_RESOURCE_BIT = CAPABILITIES.values()
# include/linux/proc_ns.h, PROC_USER_INIT_INO: a namespace can have the initial map and yet not be
# the initial one, so the number beats the map.
INITIAL_USER_NAMESPACE = "user:[4026531837]"
_DAEMON_LIMITS = ("memlock", "nofile")
_WHOLE_RANGE = ["0", "0", "4294967295"]
# Rows of /proc/PID/limits that bound what a process maps, writes or computes; each limit's name.
ADDRESS_SPACE, DATA_SIZE, FILE_SIZE = "Max address space", "Max data size", "Max file size"
STACK_SIZE, CPU_SECONDS = "Max stack size", "Max cpu time"
SIZE_ROWS = {
    ADDRESS_SPACE: "as",
    DATA_SIZE: "data",
    FILE_SIZE: "fsize",
    STACK_SIZE: "stack",
    CPU_SECONDS: "cpu",
}


class LimitFacts(NamedTuple):
    """The limits of this process and of the daemons that start others; its capability masks.

    Attributes:
        initial_user_namespace: This process is in the kernel's first one, so that capabilities
            count.
        sudo_uid: The user who called sudo, None without sudo.
        root_names: The users with number 0.
        sizes: The limits of ``SIZE_ROWS``, in bytes or seconds.
        mappable_bytes: The most that one mapping may be, if the kernel guesses
            (vm.overcommit_memory 0).
    """

    memlock: Limit | Unknown
    nofile: Limit | Unknown
    nproc: Limit | Unknown
    euid: int | Unknown
    effective_capabilities: int | Unknown
    bounding_capabilities: int | Unknown
    initial_user_namespace: bool | Unknown
    sudo_uid: int | Unknown | None
    runtimes: RuntimeLimits
    threads: ThreadFacts
    root_names: tuple[str, ...] | Unknown = Unknown("not recorded")
    sizes: Mapping[str, Limit | Unknown] = {}
    mappable_bytes: int | Unknown = Unknown("not recorded")

    @or_unknown
    def effective(self, bit: int) -> bool | Unknown:
        """Return whether a capability is in effect here, as the kernel's ``capable()`` says."""
        if not require(self.effective_capabilities) >> bit & 1:
            return False
        return self.initial_user_namespace


def read_limits(root: Root, needs: LaunchNeeds | None) -> LimitFacts:
    """Read everything about limits below ``root``; ``needs`` changes nothing here."""
    status, limits = root.text(STATUS), root.text(LIMITS)
    identity, processes = root.call("limits.identity"), root.call("limits.processes")
    return LimitFacts(
        memlock=limit_of_file(limits, "Max locked memory", LIMITS),
        nofile=limit_of_file(limits, "Max open files", LIMITS),
        nproc=limit_of_file(limits, "Max processes", LIMITS),
        # The second of four: the effective one.
        euid=matched(status, r"^Uid:\s*\S+[ \t]+([0-9]+)", int, f"{STATUS}: has no Uid"),
        effective_capabilities=_mask(status, "CapEff"),
        bounding_capabilities=_mask(status, "CapBnd"),
        initial_user_namespace=_initial_namespace(root, identity),
        sudo_uid=_sudo_uid(identity),
        runtimes=read_runtime_limits(root, _daemons(processes)),
        threads=ThreadFacts(
            _system_threads(root),
            _pids_cgroups(root),
            answered(
                processes,
                lambda answer: count_of(answer["user_threads"]),
                "limits.processes: counts no threads of this user",
            ),
            _cpus(root),
        ),
        root_names=answered(
            identity,
            lambda answer: tuple(map(str, of(list, answer["root_names"]))),
            "limits.identity: says of no user whether it is root",
        ),
        sizes={row: limit_of_file(limits, row, LIMITS) for row in SIZE_ROWS},
        mappable_bytes=_mappable(root),
    )


@or_unknown
def _mappable(root: Root) -> int | Unknown:
    """Return the most bytes of one mapping: all memory and swap (mm/util.c, seen on 6.18)."""
    table = require(read_whole_meminfo(root))
    return require(table.value("MemTotal")) + require(table.value("SwapTotal"))


@or_unknown
def status_rows(content: str | Unknown) -> dict[str, str] | Unknown:
    """Return the rows of ``/proc/PID/status`` as name -> value."""
    rows = (line.partition(":") for line in require(content).splitlines())
    return {name: value.strip() for name, colon, value in rows if colon}


def _mask(status: str | Unknown, name: str) -> int | Unknown:
    # The kernel writes 64 bits; a longer number than that could not even be printed.
    row = rf"^{name}:[ \t]*([0-9a-fA-F]{{1,16}})[ \t]*$"
    return matched(status, row, lambda bits: int(bits, 16), f"{STATUS}: has no {name}")


@or_unknown
def _initial_namespace(root: Root, identity: object) -> bool | Unknown:
    """Tell whether this process is in the kernel's first user namespace, by the namespace's number.

    If the number is not known, tell whether uid_map maps all users.
    """
    if isinstance(identity, dict) and isinstance(identity.get("user_namespace"), str):
        return bool(identity["user_namespace"] == INITIAL_USER_NAMESPACE)
    lines = [line.split() for line in require(root.text(UID_MAP)).splitlines() if line.strip()]
    if not lines or any(len(line) != 3 for line in lines):
        return Unknown(f"{UID_MAP}: not a map of user ids")
    return lines == [_WHOLE_RANGE]


@or_unknown
def _sudo_uid(identity: object) -> int | Unknown | None:
    answer = require(identity)
    uid = answer.get("sudo_uid") if isinstance(answer, dict) else None
    return uid if isinstance(uid, int) else None


@or_unknown
def _daemons(processes: object) -> dict[str, Daemon] | Unknown:
    """Return the running daemons that start containers or jobs, by name; the first of each name."""
    wrong = "limits.processes: not a list of processes"
    rows = require(answered(processes, lambda answer: of(list, answer["daemons"]), wrong))
    daemons: dict[str, Daemon] = {}
    for row in (row for row in rows if isinstance(row, dict)):
        limits = [limit_of_pair(row.get(key)) for key in _DAEMON_LIMITS]
        daemons.setdefault(str(row.get("name")), Daemon(*limits))
    return daemons
