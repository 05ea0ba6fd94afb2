"""Known lines about threads and processes that the kernel would not make, and C++'s last words.

Wording: provoked with a pids cgroup and RLIMIT_NPROC: Mooncake 0.3.13's master, client and store,
CPython 3.11, OpenBLAS (numpy 2), libgomp 12, Intel's OpenMP, bash, dash, Rust's std and rayon, Go;
the others from Go's runtime/os_linux.go, tokio, and the kubelet's events.
"""

from __future__ import annotations

from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage, mark, number

_CHECKS = ("limits.threads", "memory.max-map-count")
_RAISE = (
    "start the container with --pids-limit=-1 (docker, podman), raise podPidsLimit of the node's "
    "kubelet (Kubernetes), TasksMax of the unit (systemd), or ulimit -u; OPENBLAS_NUM_THREADS=8 "
    "and OMP_NUM_THREADS=8 take fewer"
)
_APART = (
    "pids.current at pids.max in /sys/fs/cgroup, of this cgroup or one above it, is the cgroup "
    "(dmesg: fork rejected by pids controller); ulimit -u is the user's; where neither is near, a "
    "thread's stack was not mapped (ulimit -v, vm.max_map_count), which has the same words; the "
    "KeyboardInterrupt that ends an import of numpy is OpenBLAS giving up"
)
_EAGAIN = r"[Rr]esource temporarily unavailable"
# Where a cgroup's path tells who made it, and so who bounds it.
_MAKERS = (
    ("kubepods", "Kubernetes: raise podPidsLimit in the kubelet's configuration of that node"),
    ("libpod", "Podman, whose own bound is 2048: start the container with --pids-limit=-1"),
    ("docker", "Docker: start the container with --pids-limit=-1"),
    (".service", "systemd: set TasksMax=infinity in the unit"),
    ("user.slice", "a login: raise UserTasksMax or TasksMax of the user's slice"),
)


def _read_pids(groups: Groups, seen: Seen) -> Reading:
    path = groups.get("name", "")
    for part, advice in _MAKERS:
        if part in path:
            return Reading(decided=f"the path is of {advice}.")
    return Reading()


def _read_refused(groups: Groups, seen: Seen) -> Reading:
    if "kernel.pids" in seen:
        return Reading(
            decided="the kernel names the cgroup whose pids.max is reached.",
            checks=("limits.threads",),
        )
    hit = seen.get("mark.nproc")
    if hit is None:
        return Reading()
    limit = number(hit.first, "limit")
    if limit is None or limit > 1 << 31:
        return Reading(decided="OpenBLAS says that RLIMIT_NPROC has no bound: it is the cgroup.")
    return Reading(
        decided=f"OpenBLAS says that RLIMIT_NPROC is {limit}: root is exempt from it, so for root "
        "it is the cgroup."
    )


def _read_errno_11(groups: Groups, seen: Seen) -> Reading:
    if any(id_ in seen for id_ in ("kernel.pids", "threads.refused", "mark.fork")):
        return Reading(
            decided="a fork, or another refused thread, is in this log: it is a limit of threads.",
            checks=_CHECKS,
            stage=Stage.CAUSE,
        )
    return Reading()


def _read_terminate(groups: Groups, seen: Seen) -> Reading:
    hit = seen.get("mark.what")
    if hit is not None:
        return Reading(decided=f"it says: {hit.first['what']}")
    if groups.get("name", "std::system_error") != "std::system_error":
        return Reading()
    if "without an active" in groups.get("how", ""):
        return Reading()
    return Reading(
        decided="no reason was printed, as where two threads end it at once: a limit of threads "
        "does this.",
        remedy=f"look for 'fork rejected by pids controller' in dmesg; where it is, {_RAISE}",
        checks=_CHECKS,
    )


PATTERNS = (
    mark(
        "mark.nproc",
        Layer.LIBRARY,
        "OpenBLAS blas_thread_init: RLIMIT_NPROC",
        r"OpenBLAS blas_thread_init: RLIMIT_NPROC (?P<limit>-?\d+) current",
    ),
    mark("mark.fork", Layer.LIBRARY, "fork", r"\b(?:_?fork_exec|os\.fork|spawnv_passfds)\("),
    Pattern(
        "kernel.pids",
        Layer.KERNEL,
        Stage.KERNEL,
        ("fork rejected by pids controller in",),
        r"fork rejected by pids controller in (?P<name>[^\s]{1,200})",
        ("limits.threads",),
        "the cgroup {name} has as many threads as its pids.max allows: no process in it may make "
        "another",
        _RAISE,
        "the kernel says it once for each cgroup, at the first refusal; pids.events counts them",
        _read_pids,
    ),
    Pattern(
        "threads.refused",
        Layer.LIBRARY,
        Stage.CAUSE,
        (
            "esource temporarily unavailable",
            "can't start new thread",
            "pthread_create failed (EAGAIN)",
            "failed to create new OS thread",
            "failed to spawn thread",
            "ThreadPoolBuildError",
            "Cannot fork",
        ),
        rf"can't start new thread(?! at interpreter)|pthread_create(?:\(\))? failed"
        rf"(?: for thread \d+ of (?P<threads>\d+))?: {_EAGAIN}|pthread_create failed \(EAGAIN\)|"
        rf"Thread creation failed: {_EAGAIN}|^\s*what\(\):\s+[^\n]{{0,60}}{_EAGAIN}|"
        rf"system_error: [^\n]{{0,60}}{_EAGAIN}|RuntimeError: {_EAGAIN}\s*$|"
        rf"\bfork\b[^\n:]{{0,120}}: (?:retry: )?{_EAGAIN}|OMP: System error #11: {_EAGAIN}|"
        rf"OS can't spawn worker thread: {_EAGAIN}|"
        r"failed to create new OS thread \(have \d+ already; errno=11\)|"
        r"(?:failed to spawn thread|ThreadPoolBuildError)[^\n]{0,80}Os \{ code: 11\b|"
        r": Cannot fork\s*$",
        _CHECKS,
        "the kernel made no further thread (or process, which to it is the same): a bound on "
        "their number is reached, most often that of the container's cgroup",
        _RAISE,
        _APART,
        _read_refused,
    ),
    Pattern(
        "threads.errno-11",
        Layer.LIBRARY,
        Stage.SYMPTOM,
        ("BlockingIOError: [Errno 11]",),
        rf"BlockingIOError: \[Errno 11\] {_EAGAIN}",
        ("limits.threads",),
        "the kernel answered EAGAIN: to a fork it means that no more processes may be made, to "
        "a read, a write or a lock that somebody else was first",
        f"where the traceback ends in fork_exec or os.fork: {_RAISE}",
        "the last lines of the traceback above it",
        _read_errno_11,
    ),
    Pattern(
        "threads.node-pids",
        Layer.RUNTIME,
        Stage.CAUSE,
        ("NodeHasInsufficientPID", "PIDPressure]", "low on resource: pids"),
        r"NodeHasInsufficientPID|had condition: \[[^\]\n]{0,80}PIDPressure|low on resource: pids",
        ("limits.threads",),
        "the Kubernetes node has too few process numbers left, and pods are evicted for it",
        "find what has so many threads (ps -eLf); raise kernel.pid_max and kernel.threads-max",
    ),
    mark("mark.what", Layer.LIBRARY, "what():", r"^\s*what\(\):\s+(?P<what>\S[^\n]{0,160})"),
    Pattern(
        "process.terminate",
        Layer.LIBRARY,
        Stage.SYMPTOM,
        ("terminate called", "terminating due to uncaught exception"),
        r"terminate called after throwing an instance of '(?P<name>[\w:]{1,80}?)"
        r"(?='|[IWEF]\d{4} |terminate called|$)|"
        r"terminate called (?P<how>recursively|without an active exception)|"
        r"terminating due to uncaught exception of type (?P<name2>[\w:]{1,80})",
        ("software.mooncake-duplicate", "software.library-missing"),
        "a C++ program ended itself over an error that nothing in it caught",
        "see what(): behind it, and the last lines of that process before it",
        "without a reason printed, dmesg tells: fork rejected by pids controller is its threads",
        _read_terminate,
        ("threads.refused", "mooncake.bad-alloc", "mooncake.master-refuses", "mooncake.flag-value"),
    ),
)
