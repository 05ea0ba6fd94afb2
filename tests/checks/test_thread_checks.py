"""Threads: what the kernel, the pids cgroup and RLIMIT_NPROC leave, held against a launch."""

from __future__ import annotations

from typing import Any

import pytest

from checks.framework.finding import Consequence, Finding, Kind, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds, ProcessNeeds
from checks.framework.pages import MemoryKind, Region
from checks.framework.root import Root
from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from checks.limits.facts import SYS_ADMIN_BIT, SYS_RESOURCE_BIT, Ceiling, ThreadFacts, read_limits
from checks.limits.judge import CHECKS, LEAST_CLIENT_THREADS, OWN_THREADS
from checks.limits.runtimes import Limit
from tests.builders.hosts import in_memory
from tests.checks.judged import judged
from tests.checks.limit_hosts import facts, launch, limits, system
from tests.tables import each_row

DECLARED = next(check for check in CHECKS.problems if check.id == "limits.threads")
CLIENT = ProcessNeeds("client", "mooncake_client", {})
MASTER = ProcessNeeds("master", "mooncake_master", {})
RANKS = tuple(
    ProcessNeeds(f"rank {n}", "sglang", {}, regions=(Region(MemoryKind.SEGMENT, GIB, 4096),))
    for n in range(8)
)
FILE = "/sys/fs/cgroup/pids.max"
UNREADABLE = Unknown("a file: Permission denied")


def found(
    needs: LaunchNeeds | None, threads: ThreadFacts | None = None, inside: str = "none", **more: Any
) -> dict[str, Finding]:
    """The findings by subject."""
    given = threads or ThreadFacts((), (), 0, 2)
    host = facts(limits(threads=given, **more), system_facts=system(inside))
    return {one.subject: one for one in judged(DECLARED, host, needs)}


def of_cgroup(limit: int, used: int = 0, needs: LaunchNeeds | None = None) -> Finding:
    threads = ThreadFacts((), (Ceiling(FILE, limit, used),), 0, 2)
    return found(needs or launch(CLIENT), threads)["host"]


@each_row(
    ("limit", "used", "status"),
    [
        (30, 0, Status.FAIL),
        (31, 0, Status.WARN),
        (49, 0, Status.WARN),
        (50, 0, Status.PASS),
        # What this check has itself is gone when the launch runs.
        (31, 16, Status.WARN),
        (31, 17, Status.FAIL),
        (2048, 2048, Status.FAIL),
        (2048, 2000, Status.PASS),
        (0, 0, Status.FAIL),
    ],
)
def test_a_client_beside_a_bound(limit: int, used: int, status: Status) -> None:
    """31 is what a client of the thriftiest release has with one CPU, 50 what one has with two."""
    finding = of_cgroup(limit, used)
    assert finding.status is status
    if status is Status.FAIL:
        assert finding.consequence is None  # the one that is declared: will not start
    if status is Status.WARN:
        assert finding.consequence is Consequence.DIES_LATER
    if status is not Status.PASS:
        (setting,) = finding.settings
        assert (setting.kind, setting.name, setting.wanted) == (Kind.CGROUP, FILE, "max")


@each_row(
    ("pids", "status"),
    [
        (10, Status.FAIL),
        (30, Status.FAIL),
        (31, Status.WARN),
        (50, Status.PASS),
        (None, Status.SKIP),
    ],
)
def test_a_container_beside_its_own_pids_limit(pids: int | None, status: Status) -> None:
    """Seen from outside: nothing of it runs yet. The host's own cgroup is not the container's."""
    container = ContainerLimits("run.sh:1", "docker", pids=pids)
    needs = launch(CLIENT._replace(container=container))
    threads = ThreadFacts((), (Ceiling(FILE, 5, 0),), 0, 2)
    finding = found(needs, threads)["container, run.sh:1"]
    assert finding.status is status
    if status in (Status.FAIL, Status.WARN):
        assert "--pids-limit" in finding.advice
        assert "at least 50" in finding.advice


def test_all_processes_of_the_launch_share_the_bound() -> None:
    """A client and a master: 31 + 16; and eight ranks with a store and one that has none."""
    both = launch(CLIENT, MASTER)
    assert of_cgroup(46, needs=both).status is Status.FAIL
    assert of_cgroup(47, needs=both).status is Status.WARN
    ranks = launch(*RANKS, RANKS[0]._replace(regions=UNREADABLE))
    assert of_cgroup(8 * 27, needs=ranks).status is Status.FAIL
    assert of_cgroup(8 * 27 + 1, needs=ranks).status is Status.WARN


def test_podmans_default_holds_a_server_of_eight_ranks_and_a_kubelets_1024_may_not() -> None:
    """On 96 CPUs; an estimate, so it warns."""
    for limit, status in ((1024, Status.WARN), (2048, Status.PASS)):
        threads = ThreadFacts((), (Ceiling(FILE, limit, 0),), 0, 96)
        assert found(launch(*RANKS), threads)["host"].status is status


def test_the_kernels_own_bounds() -> None:
    """A machine with 32768 numbers of which all but 20 are taken."""
    name = "/proc/sys/kernel/pid_max"
    finding = found(launch(CLIENT), ThreadFacts((Ceiling(name, 32768, 32764),), (), 0, 2))["kernel"]
    assert finding.status is Status.FAIL
    (setting,) = finding.settings
    assert (setting.kind, setting.name) == (Kind.SYSCTL, "kernel.pid_max")
    assert finding.advice == "raise kernel.pid_max on the host"
    wanted = ThreadFacts((Ceiling(name, int(setting.wanted), 32764),), (), 0, 2)
    assert found(launch(CLIENT), wanted)["kernel"].status is Status.PASS


ROOT_USER = {"euid": 0, "effective_capabilities": 0}


@each_row(
    ("who", "status"),
    [
        ({}, Status.FAIL),
        (ROOT_USER, Status.PASS),
        ({"effective_capabilities": 1 << SYS_RESOURCE_BIT}, Status.PASS),
        ({"effective_capabilities": 1 << SYS_ADMIN_BIT}, Status.PASS),
        # Another namespace's user 0 is an ordinary user of the host.
        ({**ROOT_USER, "initial_user_namespace": False}, Status.FAIL),
        ({"effective_capabilities": (1 << 41) - 1, "initial_user_namespace": False}, Status.FAIL),
        ({"initial_user_namespace": UNREADABLE}, Status.UNKNOWN),
        ({"effective_capabilities": UNREADABLE}, Status.UNKNOWN),
    ],
)
def test_who_is_exempt_from_the_users_limit(who: dict[str, Any], status: Status) -> None:
    """copy_process asks for INIT_USER, CAP_SYS_RESOURCE or CAP_SYS_ADMIN, in the initial one."""
    least = LEAST_CLIENT_THREADS
    finding = found(launch(CLIENT), nproc=Limit(least - 1, None), **who)["host, user"]
    assert finding.status is status
    if status is Status.FAIL:
        (setting,) = finding.settings
        assert (setting.kind, setting.name) == (Kind.ULIMIT, "nproc")


def test_what_the_user_runs_already_counts() -> None:
    """Where it cannot be counted a limit that would suffice alone is not known to."""
    limit = Limit(100, 100)
    used = 100 - LEAST_CLIENT_THREADS + OWN_THREADS
    for seen, status in (
        (0, Status.PASS),
        (used, Status.WARN),
        (used + 1, Status.FAIL),
        (UNREADABLE, Status.UNKNOWN),
    ):
        threads = ThreadFacts((), (), seen, 2)
        assert found(launch(CLIENT), threads, nproc=limit)["host, user"].status is status
    threads = ThreadFacts((), (), UNREADABLE, 2)
    failing = found(launch(CLIENT), threads, nproc=Limit(3, 3))["host, user"]
    assert failing.status is Status.FAIL
    unlimited = found(launch(CLIENT), threads)["host, user"]
    assert unlimited.status is Status.PASS


KERNEL = {
    "/proc/loadavg": "0.5 0.4 0.3 2/345 9\n",
    "/proc/sys/kernel/threads-max": "1000\n",
    "/proc/sys/kernel/pid_max": "32768\n",
}


def read(files: dict[str, str]) -> ThreadFacts:
    return read_limits(in_memory(files, calls={}), None).threads


PIDS = "/sys/fs/cgroup/pids/a/pids"
CGROUP = {
    "/proc/self/cgroup": "8:pids:/a/b\n0::/\n",
    "/proc/self/mountinfo": "31 23 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    "/sys/fs/cgroup/pids/a/b/pids.max": "max\n",
    "/sys/fs/cgroup/pids/a/b/pids.current": "5\n",
    f"{PIDS}.max": "100\n",
    f"{PIDS}.current": "7\n",
}


def test_the_cgroup_and_its_ancestors() -> None:
    """The own one says max, its parent 100 of which 7 are in use; layouts: test_cgroups.py."""
    threads = read({**KERNEL, **CGROUP})
    assert threads.cgroups == (Ceiling(f"{PIDS}.max", 100, 7),)
    assert threads.kernel == (
        Ceiling("/proc/sys/kernel/threads-max", 1000, 345),
        Ceiling("/proc/sys/kernel/pid_max", 32768, 345),
    )


@each_row(
    ("name", "text"),
    [
        (f"{PIDS}.max", "many\n"),
        (f"{PIDS}.max", "-1\n"),
        (f"{PIDS}.current", "\n"),
        ("/proc/self/mountinfo", ""),
    ],
)
def test_a_cgroup_that_cannot_be_told_is_unknown(name: str, text: str) -> None:
    assert isinstance(read({**CGROUP, name: text}).cgroups, Unknown)


@pytest.mark.parametrize("name", sorted(KERNEL))
@pytest.mark.parametrize("content", ["", "x\n", "1 2 3\n"])
def test_garbage_of_the_kernel_is_unknown(name: str, content: str) -> None:
    assert isinstance(read({**KERNEL, name: content}).kernel, Unknown)


def test_threads_of_this_user_on_this_machine() -> None:
    """At least this process's own, and no more than there are."""
    threads = read_limits(Root(), None).threads
    assert isinstance(threads.user_threads, int)
    assert not isinstance(threads.kernel, Unknown)
    assert 1 <= threads.user_threads <= threads.kernel[0].limit
    assert isinstance(threads.cpus, int)
