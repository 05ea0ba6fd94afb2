"""Findings about what bounds registration: cgroup, device counts, lengths, page ends, tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Consequence, Finding, Kind, Status
from checks.framework.needs import LaunchNeeds
from checks.framework.pages import Region
from checks.framework.unknown import Unknown
from checks.rdma.fork import touching_threads
from checks.rdma.registration import pieces
from tests.checks.rdma_hosts import GIB, MIB, RXE0, RXE1, FakeHost, found, launch, process
from tests.tables import each_row

FAIL, WARN, PASS, UNKNOWN, SKIP = Status.FAIL, Status.WARN, Status.PASS, Status.UNKNOWN, Status.SKIP
HUGE = 2 * MIB
NOT_KNOWN = Unknown("$SIZE is not set")


def only(check: str, host: FakeHost, needs: LaunchNeeds | None = None) -> Finding:
    (finding,) = found(check, host, needs)
    return finding


def fork(host: FakeHost, needs: LaunchNeeds) -> Finding:
    return only("rdma.fork-safe", host, needs)


def limited(maximum: str, used: str = "rxe0 hca_handle=0 hca_object=0\n") -> FakeHost:
    return FakeHost(cgroup={"rdma.max": f"{maximum}\n", "rdma.current": used})


@each_row(
    ("maximum", "used", "processes", "status"),
    [
        # Measured with 0.3.13.post1 on soft-RoCE: one client with a local buffer and a segment
        # makes 1 handle and 4 objects; with 3 it fails with EAGAIN, with 4 it starts.
        ("rxe0 hca_handle=5 hca_object=3", "", 1, FAIL),
        ("rxe0 hca_handle=5 hca_object=4", "", 1, PASS),
        ("rxe0 hca_handle=0 hca_object=1000", "", 1, FAIL),
        ("rxe0 hca_handle=1 hca_object=max", "", 1, PASS),
        ("rxe0 hca_handle=1 hca_object=max", "", 2, FAIL),
        ("rxe0 hca_handle=2 hca_object=max", "rxe0 hca_handle=1 hca_object=9", 2, FAIL),
        ("rxe0 hca_handle=max hca_object=8", "", 2, WARN),  # 8 at start, 4 queue pairs more
        ("rxe0 hca_handle=max hca_object=12", "", 2, PASS),
        ("rxe0 hca_handle=max hca_object=12", "rxe0 hca_handle=0 hca_object=1", 2, WARN),
        ("rxe1 hca_handle=0 hca_object=0", "", 1, PASS),  # a device that is not used
        ("rxe0 hca_handle=max hca_object=max", "", 1, PASS),
        ("rxe0 hca_handle=many", "", 1, UNKNOWN),
    ],
)
def test_the_cgroup_counts_handles_and_objects(
    maximum: str, used: str, processes: int, status: Status
) -> None:
    needs = launch(*(process(name=f"rank {rank}") for rank in range(processes)))
    one = only("rdma.cgroup-limit", limited(maximum, used), needs)
    assert one.status is status
    if status in (FAIL, WARN):
        (setting,) = one.settings
        file = "/sys/fs/cgroup/a/rdma.max"
        assert (setting.kind, setting.name, setting.now) == (Kind.CGROUP, file, maximum)
        raised = limited(setting.wanted, used)
        assert only("rdma.cgroup-limit", raised, needs).status is PASS


NO_HANDLE = ("rxe0 hca_handle=0 hca_object=max", "rxe1 hca_handle=0 hca_object=max")
ONE_HANDLE = "rxe0 hca_handle=1 hca_object=max"


@each_row(
    ("lines", "devices", "environment", "status", "consequence"),
    [
        # Seen with the real library on soft-RoCE: Found 0 HCAs, and setup returns 0.
        (NO_HANDLE, (), {}, FAIL, Consequence.DEGRADED),
        (NO_HANDLE, (), {"MC_FORCE_HCA": "1"}, FAIL, None),
        (NO_HANDLE, ("rxe0", "rxe1"), {}, FAIL, None),
        (NO_HANDLE, ("rxe1",), {}, FAIL, None),
        (NO_HANDLE[:1], (), {}, WARN, None),
        (NO_HANDLE[:1], ("rxe0", "rxe1"), {}, WARN, None),
        (NO_HANDLE[:1], ("rxe0",), {}, FAIL, None),
        (NO_HANDLE[1:], ("rxe0",), {}, PASS, None),
        ((ONE_HANDLE,), (), {}, WARN, None),
        ((ONE_HANDLE,), ("rxe0",), {}, FAIL, None),
        ((ONE_HANDLE, NO_HANDLE[1]), (), {}, FAIL, Consequence.DEGRADED),
        # The engine is told before it looks for any device.
        (NO_HANDLE, (), {"MC_FORCE_TCP": "0"}, PASS, None),
        # Registration fails too, in the process that does open the device.
        (("rxe0 hca_handle=1 hca_object=1", NO_HANDLE[1]), (), {}, FAIL, None),
    ],
)
def test_a_handle_that_is_refused_ends_in_tcp_or_with_fewer_nics_or_at_start(
    lines: tuple[str, ...],
    devices: tuple[str, ...],
    environment: Mapping[str, str],
    status: Status,
    consequence: Consequence | None,
) -> None:
    """Two processes: who chose the devices, and what is left of them, decides what comes of it."""
    ranks = [process(*devices, environment=environment, name=f"rank {n}") for n in range(2)]
    used = "rxe0 hca_handle=0 hca_object=0\nrxe1 hca_handle=0 hca_object=0\n"
    cgroup = {"rdma.max": "\n".join(lines), "rdma.current": used}
    host = FakeHost((RXE0, RXE1), cgroup=cgroup)
    seen = found("rdma.cgroup-limit", host, launch(*ranks))
    worst = min(seen, key=lambda one: list(Status).index(one.status))
    assert (worst.status, worst.consequence) == (status, consequence)
    silent = "over TCP, without a message" in worst.text
    assert silent is (consequence is Consequence.DEGRADED)


def test_a_limit_and_memory_that_is_not_known() -> None:
    """What is certain is still said: no handle is no handle, whatever is registered."""
    needs = launch(process(regions=NOT_KNOWN))
    for handles, expected in ((9, UNKNOWN), (0, FAIL)):
        host = limited(f"rxe0 hca_handle={handles} hca_object=9")
        one = only("rdma.cgroup-limit", host, needs)
        assert one.status is expected


@each_row(
    ("changes", "size", "status"),
    [
        ({}, None, PASS),
        ({"resources": {"mr": 524286, "qp": 1}}, None, FAIL),
        ({"resources": {"mr": 500000, "qp": 1}}, None, WARN),
        ({"resources": {"mr": 0, "qp": 999999}}, None, WARN),
        ({"limits": {"max_mr": 1}}, None, FAIL),
        ({"limits": {"max_mr": -1, "max_qp": -1}}, None, PASS),  # eRDMA: no number
        ({}, "16MB", FAIL),  # 16 bytes: 6 million regions for 96 MiB
        ({}, "0", PASS),
    ],
)
def test_the_device_has_so_many_objects(
    changes: dict[str, Any], size: str | None, status: Status
) -> None:
    needs = launch(process(environment={} if size is None else {"MC_MAX_MR_SIZE": size}))
    host = FakeHost((replace(RXE0, **changes),))
    assert only("rdma.resources", host, needs).status is status


def test_queue_pairs_grow_with_hosts_and_devices() -> None:
    """Two per pair of NICs; with the affinity one NIC of each peer."""
    nics = tuple(replace(nic, limits={"max_qp": 60}) for nic in (RXE0, RXE1))

    def status(environment: Mapping[str, str], hosts: int) -> set[Status]:
        ranks = [process(name=f"rank {n}", environment=environment) for n in range(2)]
        seen = found("rdma.resources", FakeHost(nics), launch(*ranks, hosts=hosts))
        return {one.status for one in seen}

    # 2 ranks x (8 x 2 - 1 peers) x 2 NICs x 2 = 120 on each NIC.
    assert status({}, 1) == {PASS}
    assert status({}, 8) == {WARN}
    assert status({"MC_ENABLE_DEST_DEVICE_AFFINITY": "1"}, 4) == {PASS}


SMALL = replace(RXE0, limits={"max_mr_size": 2 * GIB})
POOL, SEGMENT = Region("L2 host pool", 3 * GIB, 4096), Region("global segment", 3 * GIB, 4096)


@each_row(
    ("region", "version", "environment", "status"),
    [
        (POOL, "0.3.12.post1", {}, FAIL),  # cut off, and peers told the whole
        (POOL, "0.3.13", {}, PASS),
        (POOL, "", {}, UNKNOWN),
        (SEGMENT, "0.3.12.post1", {}, PASS),  # mounted in pieces since ever
        (POOL._replace(bytes=2 * GIB), "0.3.9", {}, PASS),
        (POOL._replace(bytes=2 * GIB + 1), "0.3.9", {}, FAIL),
        (POOL._replace(bytes=MIB), "0.3.9", {"MC_MAX_MR_SIZE": "4096"}, FAIL),
        (POOL._replace(page_bytes=HUGE), "0.3.14", {"MC_MAX_MR_SIZE": "1048576"}, FAIL),
        (POOL._replace(page_bytes=HUGE), "0.3.13", {"MC_MAX_MR_SIZE": "1048576"}, PASS),
        (POOL._replace(page_bytes=HUGE), "0.3.14", {}, PASS),
    ],
)
def test_a_region_longer_than_the_device_takes(
    region: Region, version: str, environment: Mapping[str, str], status: Status
) -> None:
    needs = launch(process(regions=(region,), environment=environment), version=version)
    host = FakeHost((SMALL, RXE1))  # the smaller of the two counts
    found = only("rdma.region-too-large", host, needs)
    assert found.status is status


def on_huge(what: str, size: int, page: int = HUGE) -> Region:
    return Region(what, size, page)


@each_row(
    ("region", "version", "cpus", "status"),
    [
        # Measured on rdma-core 44 (ids of the measurements): T1b, T1, T1d, T2.
        (on_huge("L2 host pool", 64_000_000), "0.3.13.post1", "0-5", FAIL),
        (on_huge("L2 host pool", 64_000_000), "0.3.14", "0-5", PASS),
        (on_huge("L2 host pool", 32 * HUGE), "0.3.13.post1", "0-5", PASS),
        (on_huge("L2 host pool", 64_000_000, 4096), "0.3.13.post1", "0-5", PASS),
        # T1e, W6: the local buffer, in both.
        (on_huge("local buffer", 16777217), "0.3.13.post1", "0-5", FAIL),
        (on_huge("local buffer", 16777217), "0.3.14", "0-5", FAIL),
        # X1, X4, X3: blocks touched in advance by 6 threads.
        (on_huge("global segment", 4 * GIB), "0.3.13.post1", "0-5", FAIL),
        (on_huge("global segment", 4 * GIB), "0.3.14", "0-5", PASS),
        (on_huge("global segment", 6 * 704 * MIB), "0.3.13.post1", "0-5", PASS),
        # No threads below 4 CPUs, powers of two above 7.
        (on_huge("global segment", 4 * GIB), "0.3.13.post1", "0-2", PASS),
        (on_huge("global segment", 4 * GIB), "0.3.13.post1", "0-7", PASS),
        (on_huge("global segment", 4 * GIB), "0.3.13.post1", "0-63,128-191", PASS),
        (on_huge("global segment", 4 * GIB), "0.3.13.post1", "?", UNKNOWN),
        # Pages of 1 GiB: 16 blocks want a multiple of 16 GiB, and 16 MiB never ends on a page.
        (on_huge("global segment", 8 * GIB, GIB), "0.3.13.post1", "0-127", FAIL),
        (on_huge("global segment", 16 * GIB, GIB), "0.3.13.post1", "0-127", PASS),
        (on_huge("local buffer", 16 * MIB, GIB), "0.3.14", "0-127", FAIL),
        (on_huge("L2 host pool", 64_000_000), "", "0-5", UNKNOWN),
        # SGLang registers some pools in halves; with 0.3.14 that was not run.
        (on_huge("K half of the L2 host pool", 32_000_000), "0.3.13.post1", "0-5", FAIL),
        # In the arena, which has MADV_DONTFORK already.
        (Region("local buffer", 16777217, HUGE, dontfork=True), "0.3.13.post1", "0-5", PASS),
        (Region("global segment", 4 * GIB, HUGE, dontfork=True), "0.3.13.post1", "0-5", PASS),
        # The one thing that Mooncake does without.
        (on_huge("hot cache", 30_000_000), "0.3.13.post1", "0-5", WARN),
        (on_huge("K half of the L2 host pool", 32_000_000), "0.3.14", "0-5", UNKNOWN),
    ],
)
def test_registrations_that_end_inside_a_huge_page(
    region: Region, version: str, cpus: str, status: Status
) -> None:
    needs = launch(process(regions=(region,)), version=version)
    one = fork(FakeHost(cpus=cpus), needs)
    assert one.status is status
    if status is FAIL:
        (setting,) = one.settings
        changed = process(regions=(region,), environment={setting.name: setting.wanted})
        after = fork(FakeHost(cpus=cpus), launch(changed, version=version))
        assert after.status is PASS


@each_row(
    ("more", "status"),
    [
        ({"rdma_core": 50}, FAIL),
        ({"rdma_core": 51}, PASS),
        ({"rdma_core": 51, "copy_on_fork": False}, FAIL),
        ({"rdma_core": 51, "calls": {"rdma.kernel": {"unknown": "no netlink"}}}, UNKNOWN),
        ({"links": {"/usr/lib64/libibverbs.so.1": "libibverbs.so.1.0.0"}}, UNKNOWN),
    ],
)
def test_it_depends_on_the_library_and_the_kernel(more: dict[str, Any], status: Status) -> None:
    needs = launch(process(regions=(on_huge("L2 host pool", 64_000_000),)))
    host = FakeHost(**more)
    if "links" in more:
        host = replace(host, files={"/usr/lib64/libibverbs.so.1.0.0": ""})
    assert fork(host, needs).status is status


@each_row(
    ("driver", "number", "region", "status"),
    [
        # One region's length is vouched for; 95 GiB worked for one user, 96 GiB did not.
        ("erdma", 19, Region("global segment", 64 * GIB, 4096), PASS),
        ("erdma", 19, Region("global segment", 64 * GIB + 4096, 4096), WARN),
        ("erdma", 19, Region("global segment", 96 * GIB, 4096), WARN),
        ("erdma", 19, Region("global segment", 500 * GIB, HUGE), PASS),
        ("ionic", 21, Region("global segment", 5 * GIB, 4096), WARN),
        ("ionic", 21, Region("global segment", 5 * GIB, HUGE), PASS),
        # Tables in host memory; a driver that exists but tells no bound; one that nobody knows.
        ("mlx5_core", 1, Region("global segment", 5 * GIB, 4096), PASS),
        ("bnxt_en", 6, Region("global segment", 5 * GIB, 4096), UNKNOWN),
        ("qede", 11, Region("global segment", 5 * GIB, 4096), UNKNOWN),
        ("other", 99, Region("global segment", 5 * GIB, 4096), UNKNOWN),
    ],
)
def test_page_tables_of_some_devices(
    driver: str, number: int, region: Region, status: Status
) -> None:
    host = FakeHost((replace(RXE0, driver=driver, driver_id=number),))
    needs = launch(process(regions=(region,)))
    found = only("rdma.table-capacity", host, needs)
    assert found.status is status


@given(size=st.integers(1, 1 << 50), largest=st.integers(1, 1 << 41))
def test_pieces_cover_a_region_and_none_is_spare(size: int, largest: int) -> None:
    count = pieces(size, largest)
    assert (count - 1) * largest < size <= count * largest


@given(cpus=st.integers(1, 4096))
def test_threads_are_few_and_never_more_than_cpus(cpus: int) -> None:
    threads = touching_threads(cpus)
    assert threads <= min(cpus, 16)
    assert (threads == 0) == (cpus < 4)


@each_row(
    ("regions", "most", "status"),
    [
        *((419429, 524287, PASS), (419430, 524287, WARN), (800, 1000, PASS), (801, 1000, WARN)),
        (10**6, 0, PASS),  # a device that tells no bound
    ],
)
def test_a_crowded_device_is_seen_without_a_launch(regions: int, most: int, status: Status) -> None:
    nic = replace(RXE0, resources={"mr": regions, "qp": 1}, limits={"max_mr": most})
    (one,) = found("rdma.resources", FakeHost((nic,)), None)
    assert one.status is status
