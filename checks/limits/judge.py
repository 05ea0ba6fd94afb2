"""Checks of open files, of the user that runs a launch, and of threads, which have three limits."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.framework.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    Subject,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.fold import fold
from checks.framework.needs import (
    UNLIMITED,
    ContainerLimits,
    LaunchNeeds,
    ProcessNeeds,
    RunAs,
    is_root,
)
from checks.framework.pages import MemoryKind
from checks.framework.problem import Problems
from checks.framework.units import GIB, KIB, Quantity, counted, format_bytes
from checks.framework.unknown import RUN_INSIDE, Unknown
from checks.limits.facts import (
    ADDRESS_SPACE,
    CPU_SECONDS,
    DATA_SIZE,
    FILE_SIZE,
    LIMITS,
    SIZE_ROWS,
    STACK_SIZE,
    Ceiling,
    LimitFacts,
)
from checks.limits.launch_limits import has_capability, is_superuser, not_started, start_limit
from checks.limits.runtimes import UNBOUNDED, Limit, daemon_of
from checks.numa.nodes import STATUS
from checks.system.facts import SystemFacts

CHECKS = Problems()

# SGLang utils/common.py set_ulimit(target_soft_limit=65535), the same from 0.5.2 to 0.5.23.
SGLANG_FILES = 65535
# With fewer, a client or master of 0.3.8 to 0.3.13.post1 aborts or serves nobody, as tried on TCP
# with 2 CPUs.
LEAST_FILES = 24
# What the kernel gives a process that nobody limits (INR_OPEN_CUR). An idle client of 0.3.13 has 29
# open, on TCP with 2 CPUs, and each peer takes more.
USUAL_FILES = 1024
# What libraries, stacks and arenas of a process's threads map besides: a round figure.
PROGRAM_BYTES = 16 * GIB
# Beside what is mapped for them: clients, masters and stores of 0.3.13.post1 abort with 2,000,000
# KiB of address space, and start with 3,000,000 (on TCP with 2 CPUs).
LEAST_PROGRAM_BYTES = 2_000_000 * KIB
_MEASURED = ("mooncake_client", "mooncake_master", "store_service", "sglang")
USUAL_STACK_BYTES = GIB  # 8 MiB on most hosts; none that serves has less memory than this
_LETTERS = {ADDRESS_SPACE: "v", DATA_SIZE: "d", FILE_SIZE: "f", STACK_SIZE: "s", CPU_SECONDS: "t"}
_RAISE = "raise the limit where the process is started"
_NO_STACK = "each thread's stack is as large: pthread_create fails, and the process aborts"
# Whose description of a container has a place for its limits; a manifest has none.
_TAKE_LIMITS = ("docker", "podman", "nerdctl", "compose")
_NO_MEMORY = "the limit refuses memory though some is free: the process aborts"
_REFUSED = {
    ADDRESS_SPACE: _NO_MEMORY,
    DATA_SIZE: _NO_MEMORY,
    FILE_SIZE: "shared memory is a file, and longer than that limit: SIGXFSZ kills the process",
}


@CHECKS("limits.nofile")
def open_files(needs: LaunchNeeds, limits: LimitFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether each process may open as many files as it needs.

    Programs other than SGLang are shown only if their limit is too low.
    """
    findings = [(process, _judge_files(system, limits, process)) for process in needs.processes]
    # Others ask for no number: they are heard of where somebody gave them few.
    heard = (Status.FAIL, Status.WARN)
    shown = [f for process, f in findings if process.program == "sglang" or f.status in heard]
    yield from fold(shown)
    if not shown:
        yield skip("the launch has no SGLang on this host, and no limit below the usual one")


def _judge_files(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds) -> Finding:
    """Judge the limit of open files of one process.

    Fail if the hard limit is too low for its start; warn if it is below SGLang's 65535, or the
    usual 1024 of other programs.
    """
    limit, source = _files_limit(system, limits, process.container)
    after = start_limit("nofile", limit, process, limits, system)
    limit = after.limit
    if after.by is not None:
        source = after.by.origin
    asked = SGLANG_FILES if process.program == "sglang" else USUAL_FILES
    need = counted(asked, "files")
    if isinstance(limit, Unknown):
        unseen = unknown_finding(process.name, limit, need=need)
        if process.runtime not in _TAKE_LIMITS:
            return unseen
        advice = "run this check inside the container, or set nofile for it"
        return unseen._replace(advice=advice, settings=(_files_setting(process, ""),))
    soft, hard = ("unlimited" if part is None else str(part) for part in limit)
    have = f"{hard} files" if soft == hard else f"{soft} files soft, {hard} hard"
    have = Quantity(have, limit.soft, "files")
    evidence = (Evidence(source, f"Max open files: {soft} {hard}"),)
    finding = passed(process.name, have, need, evidence=evidence)
    if after.refused is not None and after.refused.must:
        return not_started(finding, after.refused)
    if limit.hard is None or limit.hard >= asked:
        return finding
    settings: tuple[Setting, ...] = (_files_setting(process, hard),)
    advice = "raise the limit of open files where the process is started"
    if after.by is not None:
        advice = f"raise the limit of open files that the launch itself sets: {after.by.origin}"
        settings = ()
    if limit.hard < LEAST_FILES:
        least = counted(LEAST_FILES, "files", "{} to start")
        finding = finding._replace(need=least, consequence=Consequence.WILL_NOT_START)
        text = "Too many open files: it aborts at its start"
        return finding.failed(text, advice, settings)
    text = "it runs out of file descriptors under load"
    if asked == SGLANG_FILES:
        text = "SGLang cannot raise its limit, and runs out of file descriptors under load"
    return finding.warned(text, advice, settings)


def _files_setting(process: ProcessNeeds, now: str) -> Setting:
    return Setting(Kind.ULIMIT, "nofile", str(SGLANG_FILES), now, described_by=process.runtime)


def _files_limit(
    system: SystemFacts, limits: LimitFacts, container: ContainerLimits | None
) -> tuple[Limit | Unknown, str]:
    """Return ``(limit, source)`` for the open files of a process at its start.

    The limit is the container's setting, this process's limit, or that of the daemon that starts
    containers.
    """
    if container is not None and container.nofile is not None:
        count = None if container.nofile == UNLIMITED else container.nofile
        return Limit(count, count), container.origin
    if container is None or system.container.inside:
        return limits.nofile, LIMITS
    for unit in limits.runtimes.units_of(container.runtime):
        if unit.running is not None:
            return unit.running.nofile, f"{daemon_of(unit.name)}, running"
    why = "the launch sets no nofile, and no daemon is seen that would pass one on"
    return Unknown(why, advice=RUN_INSIDE), ""


@CHECKS("limits.memory")
def memory(needs: LaunchNeeds, limits: LimitFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge the limits of address space, data, file size, stack and CPU time that processes start
    with.

    Processes of another container are left out, unless the launch sets such limits.
    """
    names = set(SIZE_ROWS.values())
    here = [
        process
        for process in needs.processes
        if process.container is None
        or system.container.inside
        or any(each.name in names for each in process.limits)
    ]
    yield from fold(_judge_memory(limits, system, process) for process in here)
    if not here:
        yield skip("no process of the launch takes its limits from here")


@or_unjudged
def _judge_memory(limits: LimitFacts, system: SystemFacts, process: ProcessNeeds) -> Finding:
    """Judge one process's limits of address space, data, file size, stack and CPU time.

    Return the worst finding, with the settings of all findings.
    """
    finding = passed(process.name, "no limit")
    outside = process.container is not None and not system.container.inside
    bounded = []
    for row, limit in limits.sizes.items():
        before = UNBOUNDED if outside else limit
        start = start_limit(SIZE_ROWS[row], before, process, limits, system)
        soft = finding.require(start.limit).soft
        if soft is not None and not (row == STACK_SIZE and soft <= USUAL_STACK_BYTES):
            bounded.append((row, start.by, soft))
    if not bounded:
        return finding
    mapped = finding.require(process.regular_bytes) + finding.require(process.hugetlb_bytes)
    files = process.memfd_bytes
    certain = {
        ADDRESS_SPACE: mapped + (LEAST_PROGRAM_BYTES * (process.program in _MEASURED)),
        DATA_SIZE: mapped - sum(files),
        FILE_SIZE: max(files, default=0),
    }
    judged = []
    for row, by, soft in bounded:
        part = finding._replace(evidence=(Evidence(by.origin if by else LIMITS, f"{row}: {soft}"),))
        name, advice = SIZE_ROWS[row], _RAISE
        settings: tuple[Setting, ...] = (Setting(Kind.ULIMIT, name, "unlimited", str(soft)),)
        if by is not None:
            advice = f"lift it at {by.origin}: ulimit -{_LETTERS[row]} unlimited, "
            advice += f"prlimit --{name}=unlimited, Limit{name.upper()}=infinity of a unit"
            settings = ()
        if row == CPU_SECONDS:
            part = part._replace(have=f"{soft} s ({row})", need="no limit")
            text = f"SIGXCPU ends the process once it has computed for {soft} s"
            judged.append(part.warned(text, advice, settings, consequence=Consequence.DIES_LATER))
            continue
        part = part._replace(have=format_bytes(soft, f"{{}} ({row})"))
        if row == STACK_SIZE:
            most = part.require(limits.mappable_bytes)
            part = part._replace(need=format_bytes(most, "at most {}, or unlimited"))
            judged.append(part.failed(_NO_STACK, advice, settings) if soft > most else part)
            continue
        usual = mapped if row == FILE_SIZE else mapped - sum(files) * (row == DATA_SIZE)
        usual += 0 if row == FILE_SIZE else PROGRAM_BYTES
        refused = soft <= certain[row]
        part = part._replace(need=format_bytes(certain[row] if refused else usual, "more than {}"))
        if refused:
            part = part.failed(_REFUSED[row], advice, settings)
        elif row == ADDRESS_SPACE and process.gpu is not None:
            text = "CUDA maps far more than there is, and is refused"
            part = part.warned(text, advice, settings)
        elif soft < usual:
            text = "its threads, libraries and files may reach the limit"
            part = part.warned(text, advice, settings)
        judged.append(part)
    worst = (Status.FAIL, Status.WARN, Status.PASS)
    every = tuple(setting for part in judged for setting in part.settings)
    return min(judged, key=lambda part: worst.index(part.status))._replace(settings=every)


@CHECKS("limits.run-as")
def run_as(needs: LaunchNeeds, limits: LimitFacts, system: SystemFacts) -> Iterator[Finding]:
    yield from fold(_judge_user(system, limits, process) for process in needs.processes)
    if not needs.processes:
        yield skip("the launch has no process on this host")


@or_unjudged
def _judge_user(system: SystemFacts, limits: LimitFacts, process: ProcessNeeds) -> Finding:
    """Judge whether this check runs as the user of the process.

    Warn if not: limits seen here are then another user's. Skip a process whose container this check
    does not run in.
    """
    container, sudo_uid = process.container, limits.sudo_uid
    if container is not None and not system.container.inside:
        text = "the launch runs in a container, and is judged by that container's settings"
        return skip(text, process.name)
    euid = passed(process.name).require(limits.euid)
    finding = passed(process.name, f"user {euid}", evidence=(Evidence(STATUS, f"Uid: {euid}"),))
    other = ""
    inner = None if container is None else container.user
    user = finding.require(process.run_as.user) or inner
    if user is not None:
        uid = 0 if is_root(user) else user.partition(":")[0]
        # A name cannot be told from a number here; that it is not root can.
        named = not str(uid).isdecimal()
        if (named and euid == 0) or (not named and int(uid) != euid):
            other = f"user {user}"
    elif container is None and euid == 0 and isinstance(sudo_uid, int) and sudo_uid != 0:
        other = f"user {sudo_uid}, who called sudo"
    text = "limits and permissions seen here are not those that the server will have"
    return finding.warned(text, "run this check as that user", need=other) if other else finding


# Threads once it serves, with one CPU: the fewest of the releases 0.3.7.post2 to 0.3.14, as
# measured; with fewer the program aborts. A store inside a Python process: its 27 with setup().
LEAST_MASTER_THREADS = 16
LEAST_CLIENT_THREADS = 31
LEAST_STORE_THREADS = 27
# Measured with 0.3.13.post1 and 0.3.14 less what follows the CPUs, rounded up: the pools of the
# RPC library have a thread for each CPU, 16 at most.
STORE_THREADS, MASTER_THREADS, RPC_POOL_THREADS = 48, 32, 16
# numpy's wheels: OpenBLAS makes one thread for each CPU when it is imported, MAX_THREADS at most.
BLAS_THREADS = 64
# torch/_inductor/config.py, decide_compile_threads: worker processes of each rank that compiles.
COMPILE_PROCESSES = 32
# An SGLang process besides: torch, CUDA, NCCL, HiCache, HTTP and tokenizer. A round figure.
OTHER_THREADS = 64
# Of a server besides its ranks: the tokenizer's and the detokenizer's process.
SERVER_PROCESSES = 2
# Threads that this program has itself, one for each topic, and that are gone when the launch runs.
OWN_THREADS = 16
# What the launch itself sets of a container, beside its origin.
PIDS_LIMIT = "the pids limit"
# Taken where the CPUs of this process cannot be told.
_USUAL_CPUS = 64


class _Need(NamedTuple):
    """How many threads a launch needs.

    Attributes:
        least: To start.
        usual: An estimate for it at work.
    """

    least: int
    usual: int
    formula: str


@CHECKS("limits.threads")
def threads(needs: LaunchNeeds, limits: LimitFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether enough threads are left: by the kernel's ceilings, then for each container by
    its cgroup and user.

    Processes in no container are judged together, as those of one container.

    A container that this check does not run in is skipped.
    """
    if not needs.processes:
        yield skip("the launch has no process on this host")
        return
    facts = limits.threads
    yield _judge_ceilings("kernel", facts.kernel, _threads_needed(needs.processes, facts.cpus))
    inside = system.container.inside
    groups: dict[str, list[ProcessNeeds]] = {}
    for process in needs.processes:
        # Each container has a cgroup of its own, and what is in none shares this process's.
        where = "" if process.container is None else process.container.origin
        groups.setdefault(where, []).append(process)
    for origin, members in groups.items():
        subject = "this container" if inside else "container" if origin else "host"
        subject_type = "container" if inside or origin else "host"
        subject = Subject(f"{subject}, {origin}" if origin else subject, subject_type)
        container = members[0].container
        if container is not None and not inside and container.pids is not None:
            ceilings = (Ceiling(f"{PIDS_LIMIT} of {origin}", container.pids, 0),)
            yield _judge_ceilings(subject, ceilings, _threads_needed(members, facts.cpus))
            continue
        if origin and not inside:
            text = "the container's own limit is set when it starts: run this check inside it too"
            yield skip(text, subject)
            continue
        need = _threads_needed(members, facts.cpus)
        yield _judge_ceilings(subject, facts.cgroups, need)
        after = [
            (start_limit("nproc", limits.nproc, each, limits, system).limit, each.run_as)
            for each in members
        ]
        first = min(after, key=lambda at: (_tightness(at[0]), is_superuser(at[1], limits) is True))
        yield _judge_user_threads(limits, system, subject, need, *first)


def _threads_needed(processes: Sequence[ProcessNeeds], cpus: int | Unknown) -> _Need:
    """Add up the threads that processes start for certain (least), and an estimate of those that
    they have under load (usual).
    """
    count = _USUAL_CPUS if isinstance(cpus, Unknown) else cpus
    rpc, blas = min(count, RPC_POOL_THREADS), min(count, BLAS_THREADS)
    of = Counter(each.program for each in processes)
    masters, clients, ranks = of["mooncake_master"], of["mooncake_client"], of["sglang"]
    stores = sum(_has_store(each) for each in processes)
    rest = len(processes) - masters - clients - stores
    parts = (
        (clients, LEAST_CLIENT_THREADS, "mooncake_client"),
        (masters, LEAST_MASTER_THREADS, "mooncake_master"),
        (stores, LEAST_STORE_THREADS, "a store in Python"),
        (rest, 1, "another process"),
    )
    least = sum(many * threads for many, threads, _ in parts)
    servers = ranks + SERVER_PROCESSES * bool(ranks)
    keepers = clients + ranks + of["store_service"]
    usual = (
        servers * (blas + OTHER_THREADS)
        + ranks * min(count, COMPILE_PROCESSES)
        + keepers * (STORE_THREADS + rpc)
        + masters * (MASTER_THREADS + rpc)
    )
    formula = " + ".join(f"{many} x {threads} of {what}" for many, threads, what in parts if many)
    return _Need(least, max(usual, least), formula)


def _has_store(process: ProcessNeeds) -> bool:
    """Tell whether a process certainly calls Mooncake's setup()."""
    regions = () if isinstance(process.regions, Unknown) else process.regions
    segment = any(region.what == MemoryKind.SEGMENT for region in regions)
    return process.program == "store_service" or (process.program == "sglang" and segment)


def _judge_ceilings(subject: str, ceilings: tuple[Ceiling, ...] | Unknown, need: _Need) -> Finding:
    """Judge by the ceiling that leaves the fewest threads; pass if ``ceilings`` is ().

    Fail if the launch cannot start; warn if too few remain under load.
    """
    wanted = counted(
        need.least, "threads", f"{{}} to start, about {need.usual} under load (estimate)"
    )
    if isinstance(ceilings, Unknown):
        return unknown_finding(subject, ceilings, need=wanted)
    finding = passed(subject, "no limit", wanted, f"{need.formula}, to start")
    if not ceilings:
        return finding
    tightest = min(ceilings, key=_threads_left)
    left = _threads_left(tightest)
    in_use = f"{tightest.limit - left} of {tightest.limit} in use beside this check"
    finding = finding._replace(
        have=counted(left, "threads", f"{{}} left ({in_use})"),
        evidence=(Evidence(tightest.source, str(tightest.limit)),),
    )
    if left >= need.usual:
        return finding
    advice, settings = _remedy(tightest, need)
    finding = finding._replace(advice=advice, settings=settings)
    if left < need.least:
        text = "clone() answers EAGAIN: a process aborts with 'Resource temporarily unavailable'"
        return finding.failed(text)
    text = "it starts, and may die of 'can't start new thread' later: the need is an estimate"
    return finding.warned(text, consequence=Consequence.DIES_LATER)


def _threads_left(ceiling: Ceiling) -> int:
    return max(0, ceiling.limit - max(0, ceiling.used - OWN_THREADS))


def _remedy(ceiling: Ceiling, need: _Need) -> tuple[str, tuple[Setting, ...]]:
    """Return advice on how to raise a ceiling of threads, and the setting for that, if any."""
    now = str(ceiling.limit)
    if ceiling.source.startswith(PIDS_LIMIT):
        at_least = f"give it at least {need.usual}: --pids-limit (docker, podman), pids_limit "
        return f"{at_least}(Compose)", ()
    if ceiling.source.endswith("pids.max"):
        advice = (
            "start the container with --pids-limit=-1 (docker, podman), raise podPidsLimit of the "
            "node's kubelet (Kubernetes), or TasksMax of the unit or slice (systemd)"
        )
        return advice, (Setting(Kind.CGROUP, ceiling.source, "max", now),)
    if ceiling.source == LIMITS:
        advice = "raise RLIMIT_NPROC (ulimit -u) where the launch is started"
        return advice, (Setting(Kind.ULIMIT, "nproc", "unlimited", now),)
    name = ceiling.source.removeprefix("/proc/sys/").replace("/", ".")
    wanted = str(ceiling.used + need.usual + OWN_THREADS)
    return f"raise {name} on the host", (Setting(Kind.SYSCTL, name, wanted, now),)


def _tightness(limit: Limit | Unknown) -> float:
    return -1 if isinstance(limit, Unknown) else math.inf if limit.soft is None else limit.soft


def _judge_user_threads(
    limits: LimitFacts,
    system: SystemFacts,
    subject: str,
    need: _Need,
    nproc: Limit | Unknown,
    run_as: RunAs,
) -> Finding:
    """Judge RLIMIT_NPROC, which counts the threads of all processes of a user.

    Args:
        nproc, run_as: The limit and the user of the process with the lowest limit.
    """
    subject = Subject(f"{subject}, user", "user")
    if isinstance(nproc, Unknown):
        return unknown_finding(subject, nproc)
    most = nproc.soft
    if most is None:
        return _judge_ceilings(subject, (), need)
    exempt = _is_exempt(run_as, limits, system)
    if isinstance(exempt, Unknown):
        return unknown_finding(subject, exempt)
    if exempt:
        finding = _judge_ceilings(subject, (), need)
        return finding._replace(have=counted(most, "threads", "{}, from which this user is exempt"))
    used = limits.threads.user_threads
    if run_as.user != "" and not (limits.euid == 0 and is_root(str(run_as.user))):
        # Of another user none or all may run: where even all leave enough, nobody has to know.
        kernel = limits.threads.kernel
        all_of = most if isinstance(kernel, Unknown) else max((c.used for c in kernel), default=0)
        used = Unknown(f"how many threads user {run_as.user} has")
        if most - all_of >= need.usual:
            used = all_of
    seen = 0 if isinstance(used, Unknown) else used
    judged = _judge_ceilings(subject, (Ceiling(LIMITS, most, seen),), need)
    if isinstance(used, Unknown) and judged.status is not Status.FAIL:
        return unknown_finding(subject, used, counted(most, "threads"), judged.need)
    return judged


def _is_exempt(run_as: RunAs, limits: LimitFacts, system: SystemFacts) -> bool | Unknown:
    """Tell whether the user is exempt from RLIMIT_NPROC: as user 0, or with CAP_SYS_RESOURCE or
    CAP_SYS_ADMIN in effect.

    Nobody is exempt outside of the initial user namespace.
    """
    if isinstance(limits.initial_user_namespace, Unknown):
        return limits.initial_user_namespace
    if not limits.initial_user_namespace:
        return False
    root = is_superuser(run_as, limits)
    names = () if root is True else ("SYS_RESOURCE", "SYS_ADMIN")
    effective = (has_capability(run_as, name, None, limits, system) for name in names)
    return next((each for each in effective if each is not False), root)
