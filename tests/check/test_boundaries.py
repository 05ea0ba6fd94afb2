"""Exactly what a launch takes is enough, and one less is not, through readers and checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from checks.base.finding import Status
from checks.base.needs import LaunchNeeds
from checks.base.pages import Spot
from checks.hugetlb.wanted import Wanted
from checks.memlock.demand import Demand, demand
from checks.memory.judge import regular_bytes
from tests.builders.mutated_hosts import GOOD, LAUNCH, REGULAR, Bench
from tests.builders.synthetic import GIB, MIB
from tests.builders.synthetic_system import CGROUP, limits_file

KIB = 1 << 10
CGROUP_FOLDER = f"/sys/fs/cgroup{CGROUP}"
POOLS = "hugepages/hugepages-2048kB/free_hugepages"
# Of GOOD: what its cgroup has used before the launch, none of it page cache.
USED_BYTES = GIB


class Boundary(NamedTuple):
    """check: the one that answers. file: what decides. text: its content for a number.

    least: the smallest number that is enough, in the file's unit. short: what one less is.
    """

    check: str
    file: str
    text: Callable[[int, str], str]
    least: Callable[[LaunchNeeds], int]
    short: Status
    launch: str = LAUNCH


def plain(number: int, content: str) -> str:
    return f"{number}\n"


def row(name: str) -> Callable[[int, str], str]:
    """One row of /proc/meminfo."""
    return lambda number, content: re.sub(rf"{name}:\s+\d+", f"{name}: {number}", content)


def locked(number: int, content: str) -> str:
    return limits_file((str(number), str(number)), ("1048576", "1048576"))


def files(number: int, content: str) -> str:
    return limits_file(("unlimited", "unlimited"), ("1024", str(number)))


def pages(node: int | None) -> Callable[[LaunchNeeds], int]:
    return lambda needs: Wanted(needs).everything[Spot(2 * MIB, node)]


def pinned(needs: LaunchNeeds) -> int:
    found = demand(needs.processes[0], len(GOOD.nics), 4 * KIB)
    assert isinstance(found, Demand)
    return found.bytes


def regular(needs: LaunchNeeds) -> int:
    size = regular_bytes(needs)
    assert isinstance(size, int)
    return size


BOUNDARIES = {
    # Each node still has its share here; one page less in all need not be missing from any of them.
    "the pool": Boundary(
        "hugetlb.shortage", f"/sys/kernel/mm/{POOLS}", plain, pages(None), Status.UNKNOWN
    ),
    "a node's share": Boundary(
        "hugetlb.node-shortage",
        f"/sys/devices/system/node/node1/{POOLS}",
        plain,
        pages(1),
        Status.FAIL,
    ),
    "the hugetlb cgroup": Boundary(
        "hugetlb.cgroup-limit",
        f"{CGROUP_FOLDER}/hugetlb.2MB.max",
        plain,
        lambda needs: Wanted(needs).taken[Spot(2 * MIB, None)] * 2 * MIB,
        Status.FAIL,
    ),
    "its reservations": Boundary(
        "hugetlb.cgroup-limit",
        f"{CGROUP_FOLDER}/hugetlb.2MB.rsvd.max",
        plain,
        lambda needs: Wanted(needs).taken[Spot(2 * MIB, None)] * 2 * MIB,
        Status.FAIL,
    ),
    "the memory cgroup": Boundary(
        "memory.cgroup",
        f"{CGROUP_FOLDER}/memory.max",
        plain,
        lambda needs: regular(needs) + USED_BYTES,
        Status.FAIL,
        REGULAR,
    ),
    "the memory cgroup's throttle": Boundary(
        "memory.cgroup",
        f"{CGROUP_FOLDER}/memory.high",
        plain,
        lambda needs: regular(needs) + USED_BYTES,
        Status.FAIL,
        REGULAR,
    ),
    "the host's memory": Boundary(
        "memory.host",
        "/proc/meminfo",
        row("MemAvailable"),
        lambda needs: -(-regular(needs) // KIB),
        Status.FAIL,
        REGULAR,
    ),
    "mappings": Boundary(
        "memory.max-map-count",
        "/proc/sys/vm/max_map_count",
        plain,
        lambda needs: 262144,
        Status.WARN,
    ),
    "open files": Boundary(
        "limits.nofile", "/proc/self/limits", files, lambda needs: 65535, Status.WARN
    ),
    "locked memory": Boundary("memlock.limit", "/proc/self/limits", locked, pinned, Status.FAIL),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDARIES)
def test_one_less_than_enough_is_seen(tmp_path: Path, name: str) -> None:
    """Enough may still be a warning, where it leaves nothing over."""
    boundary = BOUNDARIES[name]
    # CAP_IPC_LOCK would make any limit of locked memory void.
    bench = Bench(tmp_path, replace(GOOD, capabilities=0), boundary.launch)
    content = bench.text(boundary.file)
    least = boundary.least(bench.needs)
    seen = []
    for number in (least, least - 1):
        found = bench.mutated(("texts", boundary.file), boundary.text(number, content))
        seen.append({one.status for one in found if one.check == boundary.check})
    assert not seen[0] & {boundary.short, Status.FAIL, Status.UNKNOWN}
    assert boundary.short in seen[1]
