"""Who runs the launch, what the host hands on, sizes: the checks beside memlock.limit."""

from __future__ import annotations

from typing import Any

from checks.framework.finding import Kind, Setting, Status
from checks.framework.needs import ContainerLimits
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.limits.facts import ADDRESS_SPACE, DATA_SIZE, FILE_SIZE, SIZE_ROWS
from checks.limits.runtimes import Daemon, Limit, UnitLimit
from tests.checks.limit_hosts import IPC_LOCK, NO_RUNTIMES, launch, limits, rank, system
from tests.checks.test_limits_memlock import ROOT, UNREADABLE, docker, one, unit
from tests.tables import each_row


def pod(**settings: Any) -> ContainerLimits:
    return docker(runtime="kubernetes", **settings)


@each_row(
    ("host", "status"),
    [
        (limits(), Status.PASS),
        (limits(**ROOT), Status.PASS),
        (limits(initial_user_namespace=False), Status.PASS),
        (limits(**ROOT, initial_user_namespace=False), Status.WARN),
        (limits(UNREADABLE, **ROOT, initial_user_namespace=False), Status.WARN),
        (limits(None, **ROOT, initial_user_namespace=False), Status.PASS),
        (limits(initial_user_namespace=UNREADABLE), Status.UNKNOWN),
        (limits(effective_capabilities=UNREADABLE), Status.UNKNOWN),
    ],
)
def test_root_of_a_user_namespace_looks_privileged_and_is_not(host: Any, status: Status) -> None:
    """Worth a word only where the capability shows and a limit is in force."""
    assert one("memlock.user-namespace", None, host).status is status
    assert one("memlock.user-namespace", launch(rank()), host).status is status
    assert one("memlock.user-namespace", launch(rank(rdma=None)), host).status is Status.SKIP


def stopped(name: str, configured: Any) -> Any:
    """Return the runtimes of a host on which a unit does not run."""
    return NO_RUNTIMES._replace(units=(UnitLimit(name, None, configured, "x"),))


@each_row(
    ("runtimes", "status"),
    [
        (NO_RUNTIMES, Status.SKIP),
        (unit(None), Status.PASS),
        (unit(8 * MIB), Status.WARN),
        (stopped("crio", None), Status.SKIP),
        (stopped("crio", UNREADABLE), Status.UNKNOWN),
        (stopped("slurmd", Limit(MIB, None)), Status.WARN),
    ],
)
def test_what_daemons_would_hand_on(runtimes: Any, status: Status) -> None:
    """Without a launch every daemon that is seen is judged by itself."""
    finding = one("memlock.runtime-limit", None, limits(None, runtimes=runtimes))
    assert finding.status is status


@each_row(
    ("propagates", "status"),
    [(True, Status.SKIP), (False, Status.WARN), (None, Status.WARN), (UNREADABLE, Status.WARN)],
)
def test_slurm_jobs_may_have_the_submitting_shells_limit(propagates: Any, status: Status) -> None:
    runtimes = unit(8 * MIB, "slurmd")._replace(slurm_propagates=propagates)
    assert one("memlock.runtime-limit", None, limits(runtimes=runtimes)).status is status


def test_a_drop_in_without_a_restart_changes_nothing() -> None:
    runtimes = unit(8 * MIB, configured=Limit(None, None))
    finding = one("memlock.runtime-limit", None, limits(None, runtimes=runtimes))
    assert finding.status is Status.WARN
    assert finding.advice == "restart containerd.service"


@each_row(
    ("container", "runtimes", "status"),
    [
        (docker(memlock_bytes=-1), unit(8 * MIB), Status.PASS),
        (docker(memlock_bytes=MIB), unit(8 * MIB), Status.PASS),
        (docker(), unit(8 * MIB), Status.WARN),
        (docker(), unit(None), Status.PASS),
        (docker(), NO_RUNTIMES, Status.UNKNOWN),
        (docker(), unit(None)._replace(docker_default=Limit(MIB, MIB)), Status.WARN),
        (docker(), unit(MIB)._replace(docker_default=Limit(None, None)), Status.PASS),
        (docker(runtime="kubernetes"), unit(8 * MIB), Status.WARN),
        (docker(runtime="kubernetes"), NO_RUNTIMES, Status.UNKNOWN),
        (pod(user="0", privileged=True), NO_RUNTIMES, Status.PASS),
        (pod(user="0", capabilities=("IPC_LOCK",)), unit(8 * MIB), Status.PASS),
        (pod(user="0"), NO_RUNTIMES, Status.UNKNOWN),
        (pod(user="1000", privileged=True), NO_RUNTIMES, Status.UNKNOWN),
        (pod(privileged=True), NO_RUNTIMES, Status.UNKNOWN),  # the image's own user
        (pod(user="0", privileged=True, own_users=True), NO_RUNTIMES, Status.UNKNOWN),
        (None, unit(8 * MIB), Status.SKIP),
    ],
)
def test_a_launch_that_relies_on_its_runtime(
    container: ContainerLimits | None, runtimes: Any, status: Status
) -> None:
    """This shell is unlimited, and that says nothing of the container."""
    needs = launch(rank(container=container))
    finding = one("memlock.runtime-limit", needs, limits(None, runtimes=runtimes))
    assert finding.status is status, finding


def test_inside_a_container_the_runtime_is_not_judged() -> None:
    needs = launch(rank(container=docker()))
    finding = one("memlock.runtime-limit", needs, limits(), 2, system("docker"))
    assert finding.status is Status.SKIP


@each_row(
    ("container", "status"),
    [
        (docker(capabilities=("IPC_LOCK",), user="1000"), Status.WARN),
        (docker(privileged=True, user="app"), Status.WARN),
        (docker(capabilities=("IPC_LOCK",), user="1000", memlock_bytes=-1), Status.PASS),
        (docker(capabilities=("IPC_LOCK",), user="0:1000"), Status.PASS),
        (docker(capabilities=("IPC_LOCK",)), Status.PASS),
        (docker(user="1000"), Status.PASS),
    ],
)
def test_an_added_capability_that_is_not_in_effect(
    container: ContainerLimits, status: Status
) -> None:
    """IPC_LOCK for runAsUser 1000 is in CapBnd alone."""
    finding = one("memlock.inert-capability", launch(rank(container=container)))
    assert finding.status is status
    if status is Status.WARN:
        lift = Setting(Kind.ULIMIT, "memlock", "unlimited", described_by="docker")
        assert finding.settings == (lift,)


@each_row(
    ("host", "status"),
    [
        (limits(bounding_capabilities=IPC_LOCK), Status.WARN),
        (limits(None, bounding_capabilities=IPC_LOCK), Status.PASS),
        (limits(bounding_capabilities=0), Status.PASS),
        (limits(**ROOT, bounding_capabilities=IPC_LOCK), Status.PASS),
        (limits(bounding_capabilities=UNREADABLE), Status.UNKNOWN),
    ],
)
def test_the_capability_of_this_container(host: Any, status: Status) -> None:
    finding = one("memlock.inert-capability", None, host, 2, system("kubernetes"))
    assert finding.status is status
    # Outside of containers the bounding set is full for everybody.
    assert one("memlock.inert-capability", None, host).status is Status.SKIP


@each_row(
    ("container", "nofile", "status"),
    [
        (None, Limit(1024, 1048576), Status.PASS),
        (None, Limit(1024, 65535), Status.PASS),
        (None, Limit(1024, 65534), Status.WARN),
        (None, Limit(None, None), Status.PASS),
        (None, UNREADABLE, Status.UNKNOWN),
        (docker(nofile=1024), Limit(None, None), Status.WARN),
        (docker(nofile=65535), Limit(1024, 4096), Status.PASS),
        (docker(nofile=-1), Limit(1024, 4096), Status.PASS),
        (docker(), Limit(None, None), Status.UNKNOWN),
    ],
)
def test_sglang_wants_65535_files(container: Any, nofile: Any, status: Status) -> None:
    """It raises its soft limit itself as far as the hard one."""
    finding = one("limits.nofile", launch(rank(container=container)), limits(nofile=nofile))
    assert finding.status is status
    if status is Status.WARN:
        (setting,) = finding.settings
        # What is set makes it pass.
        wanted = int(setting.wanted)
        again = limits(nofile=Limit(wanted, wanted))
        assert one("limits.nofile", launch(rank()), again).status is Status.PASS


def test_files_of_a_container_are_its_daemons() -> None:
    runtimes = NO_RUNTIMES._replace(
        units=(UnitLimit("containerd", Daemon(UNREADABLE, Limit(1024, 4096)), None, ""),)
    )
    needs = launch(rank(container=docker()))
    assert one("limits.nofile", needs, limits(runtimes=runtimes)).status is Status.WARN


@each_row("program", ["sglang", "mooncake_client", "mooncake_master"])
def test_with_a_handful_of_files_nothing_starts(program: str) -> None:
    for files, status in ((23, Status.FAIL), (24, Status.WARN), (64, Status.WARN)):
        host = limits(nofile=Limit(files, files))
        finding = one("limits.nofile", launch(rank(program=program)), host)
        assert finding.status is status


def test_only_sglang_is_asked_about_files() -> None:
    """Others raise their soft limit to the hard one and ask for no number; few are told of."""
    client = launch(rank(program="mooncake_client"))
    for files, status in ((1023, Status.WARN), (1024, Status.SKIP)):
        assert one("limits.nofile", client, limits(nofile=Limit(24, files))).status is status


@each_row(
    ("container", "inside", "host", "status"),
    [
        (None, "none", limits(), Status.PASS),
        (None, "none", limits(**ROOT), Status.PASS),
        (None, "none", limits(**ROOT, sudo_uid=1000), Status.WARN),
        (None, "none", limits(**ROOT, sudo_uid=0), Status.PASS),
        (None, "none", limits(euid=UNREADABLE), Status.UNKNOWN),
        (docker(user="1000"), "none", limits(**ROOT), Status.SKIP),
        (docker(user="1000"), "docker", limits(**ROOT), Status.WARN),
        (docker(user="1000:1000"), "docker", limits(), Status.PASS),
        (docker(user="app"), "docker", limits(**ROOT), Status.WARN),
        (docker(user="app"), "docker", limits(), Status.PASS),
        (docker(user="root"), "docker", limits(), Status.WARN),
        (docker(user=""), "docker", limits(), Status.PASS),
        (docker(), "docker", limits(**ROOT), Status.PASS),
    ],
)
def test_the_check_should_run_as_the_launch_does(
    container: Any, inside: str, host: Any, status: Status
) -> None:
    """Limits and permissions belong to a user, so another user's prove little."""
    needs = launch(rank(container=container))
    assert one("limits.run-as", needs, host, 2, system(inside)).status is status


def _judged(row: str, size: int | None, **other: Any) -> Status:
    sizes = {name: Limit(size if name == row else None, None) for name in SIZE_ROWS}
    needs = launch(rank(regular_bytes=10 * GIB, hugetlb_bytes=10 * GIB, **other))
    finding = one("limits.memory", needs, limits(sizes=sizes))
    if finding.status is not Status.PASS:
        assert row in finding.have
        (setting,) = finding.settings
        assert (setting.kind, setting.name, setting.wanted) == (
            Kind.ULIMIT,
            SIZE_ROWS[row],
            "unlimited",
        )
    return finding.status


PASS, WARN, FAIL = Status.PASS, Status.WARN, Status.FAIL
SHARED = {"memfd_bytes": (6 * GIB, 4 * GIB)}  # all that is on huge pages


@each_row(
    ("row", "gib", "other", "expected"),
    [
        # Everything that is mapped counts, and the program besides.
        (ADDRESS_SPACE, None, {}, PASS),
        (ADDRESS_SPACE, 20, {}, FAIL),
        (ADDRESS_SPACE, 20, SHARED, FAIL),
        (ADDRESS_SPACE, 21, {}, FAIL),  # the program itself: 1.9 GiB at the least, as tried
        (ADDRESS_SPACE, 22, {}, WARN),
        (ADDRESS_SPACE, 36, {}, PASS),
        (ADDRESS_SPACE, 900, {"gpu": 0}, WARN),
        # Private mappings alone: on huge pages, too, but no memfd.
        (DATA_SIZE, None, {}, PASS),
        (DATA_SIZE, 20, {}, FAIL),
        (DATA_SIZE, 20, SHARED, WARN),
        (DATA_SIZE, 10, SHARED, FAIL),
        (DATA_SIZE, 900, {"gpu": 0}, PASS),
        # The largest memfd alone, for certain; on regular pages nobody here tells what is one.
        (FILE_SIZE, None, SHARED, PASS),
        (FILE_SIZE, 5, SHARED, FAIL),
        (FILE_SIZE, 7, SHARED, WARN),
        (FILE_SIZE, 7, {}, WARN),
        (FILE_SIZE, 20, SHARED, PASS),
    ],
)
def test_a_limit_is_held_against_what_counts_to_it(
    row: str, gib: int | None, other: dict[str, object], expected: Status
) -> None:
    assert _judged(row, gib and gib * GIB, **other) is expected


def test_limits_and_sizes_that_are_not_known_are_unknown() -> None:
    unread = limits(sizes={"Max data size": Unknown("not read")})
    for limit_facts, needs in (
        (unread, launch(rank())),
        (
            limits(sizes={"Max data size": Limit(GIB, None)}),
            launch(rank(regular_bytes=Unknown("?"))),
        ),
    ):
        assert one("limits.memory", needs, limit_facts).status is Status.UNKNOWN
