"""Regular memory, its cgroup, /dev/shm and the limits on mappings, held against launches."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Consequence, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds, ProcessNeeds
from checks.framework.units import GIB, MIB, TIB
from checks.framework.unknown import Unknown
from checks.memory.facts import MemoryFacts, MemoryHeadroom
from checks.numa.nodes import Meminfo
from checks.run_checks.facts import Facts
from tests.builders.hosts import in_memory
from tests.checks.launches import facts_of, findings, launch, one_finding
from tests.tables import each_row


def _facts(**changed: object) -> Facts:
    table = {
        "MemTotal": 200 * GIB,
        "MemAvailable": 100 * GIB,
        "CommitLimit": 90 * GIB,
        "Committed_AS": 10 * GIB,
    }
    memory = MemoryFacts(
        Meminfo("/proc/meminfo", table), None, 0, 262144, 60, 100 * GIB, 100 * GIB, False
    )
    return Facts({"memory": memory._replace(**changed)})  # type: ignore[arg-type]


def _ranks(count: int, each: int | Unknown, **other: object) -> LaunchNeeds:
    ranks = [
        ProcessNeeds(f"rank {rank}", "sglang", {}, gpu=rank, regular_bytes=each)._replace(
            **other  # type: ignore[arg-type]
        )
        for rank in range(count)
    ]
    return launch((), *ranks)


def _one(facts: Facts, needs: LaunchNeeds | None, id_: str) -> Status:
    return one_finding(facts, needs, id_).status


@each_row(
    ("ranks", "each", "expected"),
    [
        (8, 11 * GIB, Status.PASS),  # 88 GiB of 100
        (8, 12 * GIB, Status.WARN),  # 96 GiB: less than 10 GiB left
        (8, 13 * GIB, Status.FAIL),  # each rank by itself would fit
        (1, 0, Status.PASS),
    ],
)
def test_all_ranks_together_must_fit(ranks: int, each: int, expected: Status) -> None:
    """--hicache-size is per rank, and each rank checks for itself alone."""
    assert _one(_facts(), _ranks(ranks, each), "memory.host") is expected


@each_row(
    ("left", "expected"),
    [
        (79 * GIB, Status.FAIL),
        (80 * GIB, Status.WARN),
        (90 * GIB, Status.PASS),
        (300 * GIB, Status.PASS),
    ],
)
def test_the_cgroup_is_the_limit_although_meminfo_shows_more(left: int, expected: Status) -> None:
    facts = _facts(headroom=MemoryHeadroom(left, "/sys/fs/cgroup/memory.max"))
    assert _one(facts, _ranks(8, 10 * GIB), "memory.cgroup") is expected


@each_row(
    ("headroom", "expected"),
    [
        (None, ["pass", "warn"]),
        # Inside of the job its cgroup is what counts.
        (MemoryHeadroom(90 * GIB, "/sys/fs/cgroup/system.slice/slurmstepd/memory.max"), ["pass"]),
    ],
)
def test_a_job_that_asks_for_less_memory_than_the_launch_takes(
    headroom: MemoryHeadroom | None, expected: list[str]
) -> None:
    """A container of Docker is no part of the job's cgroup."""
    job = {"SLURM_MEM_PER_NODE": "40960"}
    docker = ContainerLimits("run.sh:9", "docker")
    needs = launch(
        (),
        ProcessNeeds("rank 0", "sglang", job, regular_bytes=30 * GIB),
        ProcessNeeds("rank 1", "sglang", job, regular_bytes=20 * GIB),
        ProcessNeeds("store", "client", job, regular_bytes=10 * GIB, container=docker),
    )
    found = findings(_facts(headroom=headroom), needs, "memory.cgroup")
    assert [one.status.value for one in found] == expected
    assert [one.need for one in found[1:]] == ["50.00 GiB"] * (len(expected) - 1)


def test_memory_high_throttles_and_kills_nobody() -> None:
    """Beyond it a start slows down; what the kernel kills at is memory.max, further out."""
    high = MemoryHeadroom(20 * GIB, "/sys/fs/cgroup/memory.high")
    for left, kills in ((None, False), (60 * GIB, False), (30 * GIB, True)):
        killing = left and MemoryHeadroom(left, "/sys/fs/cgroup/memory.max")
        facts = _facts(headroom=high, killing_headroom=killing)
        (found,) = findings(facts, _ranks(1, 40 * GIB), "memory.cgroup")
        assert found.status is Status.FAIL
        assert ("slows" in found.text) is not kills
        assert ("kills" in found.text) is kills
        assert found.consequence is (None if kills else Consequence.DEGRADED)


def test_huge_pages_count_against_the_cgroup_only_where_it_is_mounted_so() -> None:
    headroom = MemoryHeadroom(20 * GIB, "/sys/fs/cgroup/memory.max")
    needs = _ranks(1, 10 * GIB, hugetlb_bytes=50 * GIB)
    assert _one(_facts(headroom=headroom), needs, "memory.cgroup") is Status.PASS
    charged = _facts(headroom=headroom, hugetlb_charged=True)
    assert _one(charged, needs, "memory.cgroup") is Status.FAIL
    unread = _facts(headroom=headroom, hugetlb_charged=Unknown("no mountinfo"))
    assert _one(unread, needs, "memory.cgroup") is Status.UNKNOWN


@each_row(
    ("size", "available", "need", "ranks", "expected"),
    [
        (64 * MIB, 64 * MIB, 0, 2, Status.WARN),  # a container's default
        (64 * MIB, 64 * MIB, 0, 1, Status.PASS),
        (32 * GIB, 32 * GIB, 0, 8, Status.PASS),
        (32 * GIB, GIB, 2 * GIB, 1, Status.FAIL),
        (64 * MIB, 0, 8192, 2, Status.FAIL),  # full of what killed servers left
        (32 * GIB, 0, 0, 1, Status.PASS),  # one rank has no message queue
    ],
)
def test_shm(size: int, available: int, need: int, ranks: int, expected: Status) -> None:
    facts = _facts(shm_size_bytes=size, shm_available_bytes=available)
    needs = _ranks(ranks, 0, shm_bytes=need // ranks)
    assert _one(facts, needs, "shm.space") is expected


@each_row(
    ("container", "expected"),
    [
        (ContainerLimits("run.sh:1", "docker"), Status.WARN),
        (ContainerLimits("run.sh:1", "docker", shm_bytes=32 * GIB), Status.PASS),
        (ContainerLimits("run.sh:1", "docker", host_ipc=True), Status.PASS),
    ],
)
def test_shm_is_the_containers_where_the_launch_is_one(
    container: ContainerLimits, expected: Status
) -> None:
    assert _one(_facts(), _ranks(2, 0, container=container), "shm.space") is expected


@each_row(("count", "expected"), [(65530, Status.WARN), (262144, Status.PASS)])
def test_max_map_count(count: int, expected: Status) -> None:
    assert _one(_facts(max_map_count=count), None, "memory.max-map-count") is expected


@each_row(
    ("policy", "each", "expected"),
    [
        (0, 70 * GIB, Status.PASS),
        (1, 70 * GIB, Status.PASS),
        (2, 40 * GIB, Status.WARN),
        (2, 41 * GIB, Status.FAIL),  # CommitLimit leaves 80 GiB
    ],
)
def test_overcommit(policy: int, each: int, expected: Status) -> None:
    assert _one(_facts(overcommit=policy), _ranks(2, each), "memory.overcommit") is expected


def test_unknown_sizes_and_unreadable_memory_never_pass() -> None:
    unsized = _ranks(1, Unknown("$SIZE is not set"))
    for id_ in ("memory.host", "memory.cgroup"):
        assert _one(_facts(), unsized, id_) is Status.UNKNOWN
        assert _one(_facts(), None, id_) is Status.SKIP
    nothing = facts_of("/no such folder", "memory")
    needs = _ranks(2, GIB)
    for id_ in ("memory.host", "shm.space", "memory.max-map-count", "memory.overcommit"):
        assert _one(nothing, needs, id_) is Status.UNKNOWN


@each_row(("seen", "read_only"), [({"read_only": True}, True), ({"full_of_files": True}, False)])
def test_a_shm_in_which_nothing_can_be_made(seen: dict[str, bool], read_only: bool) -> None:
    """However much room it shows; whoever puts nothing there is not asked."""
    answer = {"size_bytes": GIB, "available_bytes": GIB, **seen}
    facts = facts_of(in_memory({}, calls={"memory.space /dev/shm": answer}), "memory")
    (found,) = findings(facts, _ranks(2, 0, shm_bytes=4096), "shm.space")
    assert found.status is Status.FAIL
    assert [setting.words[-1] for setting in found.settings] == ["/dev/shm"] * read_only
    assert _one(facts, _ranks(1, 0), "shm.space") is Status.PASS


def test_facts_of_this_machine_agree_with_the_system_calls() -> None:
    memory = facts_of("/", "memory").memory
    found = os.statvfs("/dev/shm")
    assert memory.shm_size_bytes == found.f_blocks * found.f_frsize
    total = memory.value("MemTotal")
    assert isinstance(total, int)
    assert abs(total - os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) < GIB


_ORDER = [Status.FAIL, Status.UNKNOWN, Status.WARN, Status.PASS]


@given(st.integers(0, TIB), st.integers(0, TIB), st.integers(0, TIB), st.integers(1, 16))
def test_more_memory_never_worsens_a_verdict(few: int, more: int, each: int, ranks: int) -> None:
    needs = _ranks(ranks, each)

    def status(available: int, id_: str) -> int:
        table = Meminfo("/proc/meminfo", {"MemAvailable": available, "MemTotal": 4 * TIB})
        headroom = MemoryHeadroom(available, "memory.max")
        return _ORDER.index(_one(_facts(meminfo=table, headroom=headroom), needs, id_))

    for id_ in ("memory.host", "memory.cgroup"):
        assert status(few + more, id_) >= status(few, id_)
