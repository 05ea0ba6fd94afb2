"""Will the launch's threads be had: of the pids cgroup, of RLIMIT_NPROC and of the kernel?"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.base.check import CheckSet, the_launch
from checks.base.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    Subject,
    passed,
    skip,
    unknown,
)
from checks.base.needs import LaunchNeeds, ProcessNeeds, RunAs, is_root
from checks.base.pages import MemoryKind
from checks.base.units import counted
from checks.base.unknown import Unknown
from checks.limits.facts import LIMITS, LimitFacts
from checks.limits.launch_limits import is_superuser, may, start_limit
from checks.limits.runtimes import Limit
from checks.limits.threads import Ceiling
from checks.system.facts import SystemFacts

CHECKS = CheckSet()

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
# Taken where the CPUs of this process cannot be told.
_USUAL_CPUS = 64


class _Need(NamedTuple):
    """least: what the launch cannot start without. usual: an estimate for it at work."""

    least: int
    usual: int
    formula: str


@CHECKS.check("limits.threads", the_launch)
def threads(needs: LaunchNeeds, limits: LimitFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether the kernel, the cgroups and the user leave enough threads."""
    if not needs.processes:
        yield skip("the launch has no process on this host")
        return
    facts = limits.threads
    yield _judged("kernel", facts.kernel, _need(needs.processes, facts.cpus))
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
        if origin and not inside:
            text = "the container's own limit is set when it starts: run this check inside it too"
            yield skip(text, subject)
            continue
        need = _need(members, facts.cpus)
        yield _judged(subject, facts.cgroups, need)
        after = [
            (start_limit("nproc", limits.nproc, each, limits, system).limit, each.run_as)
            for each in members
        ]
        first = min(after, key=lambda at: (_tightest(at[0]), is_superuser(at[1], limits) is True))
        yield _of_user(limits, system, subject, need, *first)


def _need(processes: Sequence[ProcessNeeds], cpus: int | Unknown) -> _Need:
    """Add up the threads that processes start for certain (least), and usually have."""
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


def _judged(subject: str, ceilings: tuple[Ceiling, ...] | Unknown, need: _Need) -> Finding:
    """Judge by the ceiling that leaves the fewest threads."""
    wanted = counted(
        need.least, "threads", f"{{}} to start, about {need.usual} under load (estimate)"
    )
    if isinstance(ceilings, Unknown):
        return unknown(subject, ceilings, need=wanted)
    finding = passed(subject, "no limit", wanted, f"{need.formula}, to start")
    if not ceilings:
        return finding
    tightest = min(ceilings, key=_left)
    left = _left(tightest)
    in_use = f"{tightest.limit - left} of {tightest.limit} in use beside this check"
    finding = finding._replace(
        have=counted(left, "threads", f"{{}} left ({in_use})"),
        evidence=(Evidence(tightest.source, str(tightest.limit)),),
    )
    if left >= need.usual:
        return finding
    advice, setting = _remedy(tightest, need)
    finding = finding._replace(advice=advice, settings=(setting,))
    if left < need.least:
        text = "clone() answers EAGAIN: a process aborts with 'Resource temporarily unavailable'"
        return finding.failed(text)
    text = "it starts, and may die of 'can't start new thread' later: the need is an estimate"
    return finding.warned(text, consequence=Consequence.DIES_LATER)


def _left(ceiling: Ceiling) -> int:
    return max(0, ceiling.limit - max(0, ceiling.used - OWN_THREADS))


def _remedy(ceiling: Ceiling, need: _Need) -> tuple[str, Setting]:
    """Say how to raise the ceiling of threads."""
    now = str(ceiling.limit)
    if ceiling.source.endswith("pids.max"):
        advice = (
            "start the container with --pids-limit=-1 (docker, podman), raise podPidsLimit of the "
            "node's kubelet (Kubernetes), or TasksMax of the unit or slice (systemd)"
        )
        return advice, Setting(Kind.CGROUP, ceiling.source, "max", now)
    if ceiling.source == LIMITS:
        advice = "raise RLIMIT_NPROC (ulimit -u) where the launch is started"
        return advice, Setting(Kind.ULIMIT, "nproc", "unlimited", now)
    name = ceiling.source.removeprefix("/proc/sys/").replace("/", ".")
    wanted = str(ceiling.used + need.usual + OWN_THREADS)
    return f"raise {name} on the host", Setting(Kind.SYSCTL, name, wanted, now)


def _tightest(limit: Limit | Unknown) -> float:
    return -1 if isinstance(limit, Unknown) else math.inf if limit.soft is None else limit.soft


def _of_user(
    limits: LimitFacts,
    system: SystemFacts,
    subject: str,
    need: _Need,
    nproc: Limit | Unknown,
    run_as: RunAs,
) -> Finding:
    """Judge RLIMIT_NPROC, which counts the threads of all processes of the user."""
    subject = Subject(f"{subject}, user", "user")
    if isinstance(nproc, Unknown):
        return unknown(subject, nproc)
    most = nproc.soft
    if most is None:
        return _judged(subject, (), need)
    exempt = _is_exempt(run_as, limits, system)
    if isinstance(exempt, Unknown):
        return unknown(subject, exempt)
    if exempt:
        finding = _judged(subject, (), need)
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
    judged = _judged(subject, (Ceiling(LIMITS, most, seen),), need)
    if isinstance(used, Unknown) and judged.status is not Status.FAIL:
        return unknown(subject, used, counted(most, "threads"), judged.need)
    return judged


def _is_exempt(run_as: RunAs, limits: LimitFacts, system: SystemFacts) -> bool | Unknown:
    """Tell whether the kernel exempts the user from RLIMIT_NPROC (copy_process).

    That is user 0 of the initial namespace, or a user with one of two capabilities in it.
    """
    if isinstance(limits.initial_user_namespace, Unknown):
        return limits.initial_user_namespace
    if not limits.initial_user_namespace:
        return False
    root = is_superuser(run_as, limits)
    names = () if root is True else ("SYS_RESOURCE", "SYS_ADMIN")
    effective = (may(run_as, name, None, limits, system) for name in names)
    return next((each for each in effective if each is not False), root)
