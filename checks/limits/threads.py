"""How many threads the kernel, the pids cgroup and RLIMIT_NPROC still leave this process.

To the kernel a process is its threads: each one takes a number, wherever it is counted.
Sources: kernel/fork.c (copy_process), kernel/cgroup/pids.c, Documentation/admin-guide/cgroup-v2.rst
(PID), getrlimit(2).
"""

from typing import Any, NamedTuple

from checks.base.cgroup_mounts import cgroup_limit, own_mount
from checks.base.root import Root
from checks.base.unknown import Unknown, known, or_unknown
from checks.base.written_numbers import kernel_count
from checks.numa.nodes import parse_cpu_list

THREADS_MAX = "/proc/sys/kernel/threads-max"
PID_MAX = "/proc/sys/kernel/pid_max"
LOAD = "/proc/loadavg"


class Ceiling(NamedTuple):
    """At most ``limit`` threads, of which ``used`` exist; ``source`` is the file that says so."""

    source: str
    limit: int
    used: int


class ThreadFacts(NamedTuple):
    """kernel: the bounds for all threads of the system. cgroups: this process's and its ancestors'.

    user_threads: those of this user that were seen, which other containers hide. cpus: on how many
    this process may run.
    """

    kernel: tuple[Ceiling, ...] | Unknown
    cgroups: tuple[Ceiling, ...] | Unknown
    user_threads: int | Unknown
    cpus: int | Unknown


def read_threads(root: Root, status: dict[str, str] | Unknown, processes: object) -> ThreadFacts:
    """Read what limits threads. status: of /proc/self/status. processes: of limits.processes."""
    return ThreadFacts(_kernel(root), _cgroups(root), _of_user(processes), _cpus(status))


@or_unknown
def _kernel(root: Root) -> tuple[Ceiling, ...] | Unknown:
    """Read the kernel's ceilings of threads, and how many threads run."""
    load = known(root.text(LOAD))
    # The fourth field: running and all threads, of the whole system in a container too.
    fields = load.split()
    used = kernel_count(fields[3].partition("/")[2]) if len(fields) > 3 else None
    if used is None:
        return Unknown(f"{LOAD}: has no count of threads: {load.strip()[:40]!r}")
    return tuple(Ceiling(name, known(root.count(name)), used) for name in (THREADS_MAX, PID_MAX))


def field(answer: object, name: str) -> Any:
    """Return a field of a call's answer, None without. Raises UnknownFactError."""
    answer = known(answer)
    return answer.get(name) if isinstance(answer, dict) else None


@or_unknown
def _cgroups(root: Root) -> tuple[Ceiling, ...] | Unknown:
    """Return the cgroups that have a limit, this process's own first."""
    mount = own_mount(root, "pids")
    if mount is None or isinstance(mount, Unknown):
        return () if mount is None else mount
    ceilings = []
    for folder in mount.folders:
        name = f"{folder}/pids.max"
        limit = known(cgroup_limit(root, name))
        if limit is not None:
            ceilings.append(Ceiling(name, limit, known(root.count(f"{folder}/pids.current"))))
    return tuple(ceilings)


@or_unknown
def _of_user(processes: object) -> int | Unknown:
    count = field(processes, "user_threads")
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return count
    return Unknown("limits.processes: counts no threads of this user")


@or_unknown
def _cpus(status: dict[str, str] | Unknown) -> int | Unknown:
    """Count the CPUs that this process may run on."""
    try:
        count = len(parse_cpu_list(known(status).get("Cpus_allowed_list", "")))
    except ValueError as error:
        return Unknown(f"/proc/self/status: {error}")
    return count or Unknown("/proc/self/status: has no Cpus_allowed_list")
