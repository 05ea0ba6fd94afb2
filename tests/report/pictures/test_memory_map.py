"""The memory map: its parts are the memory, to the byte, and what is not there is said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import HugeTlb, NodePool, Pool
from checks.memory.facts import MemoryFacts, MemoryHeadroom
from checks.numa.facts import NumaFacts, NumaNode
from checks.numa.nodes import Meminfo
from checks.run_checks.facts import Facts
from preflight.command_inputs.host_source import Sized, open_host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from preflight.report.pictures.memory_map import (
    KINDS,
    Bar,
    MemoryMap,
    MemoryPlace,
    Take,
    launch_takes,
    memory_map,
)
from tests.builders.synthetic import build_host
from tests.checks.test_synthetic import FITTED, LAUNCH

PAGE = 2 * MIB
WHY = Unknown("not read by this test")


class MemoryNode(NamedTuple):
    """A node: its memory, and its share of the pool of 2 MiB pages."""

    total: int
    available: int
    pages: int = 0
    free_pages: int = 0


def memory_facts(
    nodes: Mapping[int, MemoryNode],
    *,
    available: int | None = None,
    reserved_pages: int = 0,
    cgroup: int | None = None,
    pools: Unknown | None = None,
) -> Facts:
    """``available``: MemAvailable, without it what the nodes have. One node: no NUMA is shown."""
    total = sum(node.total for node in nodes.values())
    left = sum(node.available for node in nodes.values()) if available is None else available
    meminfo = Meminfo("/proc/meminfo", {"MemTotal": total, "MemAvailable": left})
    pool = Pool(
        PAGE,
        "/sys/kernel/mm/hugepages/hugepages-2048kB",
        sum(node.pages for node in nodes.values()),
        sum(node.free_pages for node in nodes.values()),
        reserved_pages,
        0,
        0,
        {number: NodePool(node.pages, node.free_pages) for number, node in nodes.items()},
    )
    hugetlb = HugeTlb(PAGE, {PAGE: pool} if pools is None else pools, True)
    shown = nodes if len(nodes) > 1 else {}
    headroom = None if cgroup is None else MemoryHeadroom(cgroup, "memory.max")
    return Facts(
        {
            "memory": MemoryFacts(meminfo, headroom, WHY, WHY, WHY, WHY, WHY, False),
            "hugetlb": HugetlbFacts(hugetlb, meminfo, {}, WHY, {}, (), WHY, WHY),
            "numa": NumaFacts(
                tuple(
                    NumaNode(number, (number,), node.total, node.available, 0)
                    for number, node in shown.items()
                ),
                tuple(shown),
                WHY,
                WHY,
                WHY,
                WHY,
                "",
                WHY,
                WHY,
            ),
        }
    )


# 2 nodes of 64 GiB: 4 GiB in use, a pool of 20 GiB of which others hold 4 GiB.
TWO_NODES = {
    0: MemoryNode(64 * GIB, 40 * GIB, 10240, 8192),
    1: MemoryNode(64 * GIB, 40 * GIB, 10240, 8192),
}
ONE_NODE = {0: MemoryNode(64 * GIB, 60 * GIB)}


def bar(found: MemoryMap, name: str, *, now: bool = False) -> Bar:
    place = next(place for place in found.places if place.name == name)
    shown = place.now if now else place.shown
    assert isinstance(shown, Bar)
    return shown


def parts(shown: Bar) -> dict[str, int]:
    return {part.key: part.bytes // GIB for part in shown.parts}


def take(owner: str, gib: int, node: int | None = None, page: int | None = PAGE) -> Take:
    return Take(owner, gib * GIB, page, node)


# Cases, in GiB -------------------------------------------------------------------------------


def test_a_launch_that_leaves_less_than_the_reserve_says_how_much() -> None:
    """60 available, 53 asked for: 7 of the reserve's 10 are left, and nothing is free."""
    host = bar(memory_map(memory_facts(ONE_NODE), [take("l2", 53, None, None)]), "host")
    assert parts(host) == {"used": 4, "l2": 53, "reserve": 7}
    assert host.notes == ("7.00 GiB left of 10.00 GiB reserve",)


def test_what_the_cgroup_forbids_is_not_free() -> None:
    """60 available, 20 allowed: 40 are closed; 25 asked for are 5 too many."""
    facts = memory_facts(ONE_NODE, cgroup=20 * GIB)
    now = bar(memory_map(facts, None), "host")
    assert parts(now) == {"used": 4, "closed": 40, "free": 10, "reserve": 10}
    host = bar(memory_map(facts, [take("l2", 25, None, None)]), "host")
    assert parts(host) == {"used": 4, "closed": 40, "l2": 25}
    assert host.over_bytes == 5 * GIB
    assert host.notes == (
        "the memory cgroup allows 20.00 GiB more",
        "over-committed: 5.00 GiB more than the memory cgroup allows",
    )


def test_a_pool_that_cannot_be_read_is_drawn_as_unknown() -> None:
    facts = memory_facts(ONE_NODE, pools=Unknown("/sys: permission denied"))
    assert parts(bar(memory_map(facts, None), "host")) == {"unknown": 4, "free": 50, "reserve": 10}
    with_pages = memory_map(facts, [take("l2", 1)]).places[-1]
    assert isinstance(with_pages.after, Unknown)
    assert with_pages.after.reason == "/sys: permission denied"
    without = bar(memory_map(facts, [take("l2", 1, None, None)]), "host")
    assert parts(without)["l2"] == 1


def test_a_kernel_without_huge_pages_has_none() -> None:
    facts = memory_facts(ONE_NODE, pools=Unknown("no /sys/kernel/mm/hugepages", absent=True))
    assert parts(bar(memory_map(facts, None), "host")) == {"used": 4, "free": 50, "reserve": 10}


@pytest.mark.parametrize("topic", ["memory", "hugetlb", "numa"])
def test_a_topic_that_was_not_read_is_no_number(topic: str) -> None:
    facts = memory_facts(TWO_NODES)
    missing = Facts(
        {name: facts.topic(name) for name in ("memory", "hugetlb", "numa")} | {topic: WHY}
    )
    found = memory_map(missing, None)
    host = found.places[-1]
    assert host.name == "host"
    if topic == "memory":
        assert isinstance(host.now, Unknown)
    elif topic == "hugetlb":
        assert "unknown" in parts(bar(found, "host"))
        assert "unknown" in parts(bar(found, "node 0"))
    else:
        assert len(found.places) == 1


def test_pools_larger_than_the_memory_contradict_it() -> None:
    """A container whose /proc/meminfo is made up, on a host with a large pool."""
    node = MemoryNode(8 * GIB, 6 * GIB, 10240, 10240)
    host = memory_map(memory_facts({0: node}), None).places[-1]
    assert isinstance(host.now, Unknown)
    assert "20.00 GiB" in host.now.reason


# Laws ----------------------------------------------------------------------------------------

amounts = st.integers(0, 1 << 34)


@st.composite
def node_memories(draw: st.DrawFn) -> MemoryNode:
    """A node whose numbers can stand together."""
    used, available = draw(amounts), draw(amounts)
    pages = draw(st.integers(0, 5000))
    total = used + available + pages * PAGE
    return MemoryNode(total, available, pages, draw(st.integers(0, pages)))


hosts = st.lists(node_memories(), min_size=1, max_size=4).map(lambda nodes: dict(enumerate(nodes)))
kinds_of_take = st.sampled_from(["l2", "segment", "arena", "buffer", "other"])
sizes_of_take = st.integers(1, 4000).map(lambda pages: (pages * PAGE, PAGE)) | st.tuples(
    st.integers(1, 1 << 33), st.none()
)
takes_of_any_kind = st.lists(
    st.builds(
        lambda kind, size, node: Take(kind, size[0], size[1], node),
        kinds_of_take,
        sizes_of_take,
        st.none() | st.integers(0, 3),
    ),
    max_size=6,
)


def every_bar(places: tuple[MemoryPlace, ...]) -> list[Bar]:
    return [
        shown for place in places for shown in (place.now, place.after) if isinstance(shown, Bar)
    ]


@given(hosts, takes_of_any_kind, st.none() | amounts, st.integers(0, 100))
def test_the_parts_are_the_memory_and_what_is_over(
    nodes: dict[int, MemoryNode], takes: list[Take], cgroup: int | None, reserved: int
) -> None:
    """Sum of the parts = MemTotal + what is asked for and not there; nothing is negative."""
    facts = memory_facts(nodes, cgroup=cgroup, reserved_pages=reserved)
    found = memory_map(facts, takes)
    for shown in every_bar(found.places):
        size = sum(part.bytes for part in shown.parts)
        if shown.total_bytes is not None:
            assert size == shown.total_bytes + shown.over_bytes
        assert all(part.bytes > 0 for part in shown.parts)
        assert shown.over_bytes >= 0
        order = [list(KINDS).index(part.key) for part in shown.parts]
        assert order == sorted(set(order))
        if shown.over_bytes:
            assert not shown.bytes_of("free")
            assert not shown.bytes_of("reserve")
    host = found.places[-1]
    assert isinstance(host.after, Bar)
    assert host.after.total_bytes == sum(node.total for node in nodes.values())


@given(hosts, takes_of_any_kind)
def test_the_launch_is_shown_whole_however_short_memory_is(
    nodes: dict[int, MemoryNode], takes: list[Take]
) -> None:
    """No part of the launch is clipped: of the host its sum is the sum of what is taken."""
    host = memory_map(memory_facts(nodes), takes).places[-1]
    assert isinstance(host.after, Bar)
    owners = ("l2", "segment", "arena", "buffer", "other")
    kinds = {*owners, *(f"{owner}_huge" for owner in owners)}
    shown = sum(part.bytes for part in host.after.parts if part.key in kinds)
    assert shown == sum(take.bytes for take in takes)


# A launch as it is written ----------------------------------------------------------------------


def sized(path: Path, text: str) -> Sized:
    tree, script = path / "tree", path / "launch.sh"
    tree.mkdir()
    script.write_text(text)
    words = LaunchWords((str(script),), mooncake_version="0.3.14", sglang_version="0.5.23")
    found = size_and_needs(words, open_host(str(build_host(tree, FITTED))))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        LAUNCH,
        LAUNCH.replace("export MC_STORE_USE_HUGEPAGE=1", ""),
        f"export MC_MMAP_ARENA_POOL_SIZE=20gb\n{LAUNCH}",
    ],
    ids=["huge pages", "regular pages", "arena"],
)
def test_what_is_drawn_is_what_the_checks_judge_by(tmp_path: Path, text: str) -> None:
    """The takes of a launch come to the sums of its processes' needs, on either kind of page."""
    found = sized(tmp_path, text)
    takes = launch_takes(found)
    assert not isinstance(takes, Unknown)
    huge = sum(take.bytes for take in takes if take.page_bytes is not None)
    regular = sum(take.bytes for take in takes if take.page_bytes is None)
    processes = found.needs.processes
    assert huge == sum(p.hugetlb_bytes for p in processes if isinstance(p.hugetlb_bytes, int))
    assert regular == sum(p.regular_bytes for p in processes if isinstance(p.regular_bytes, int))
    assert huge + regular > 200 * GIB
    assert {take.numa_node for take in takes} == {0, 1}


def test_a_launch_of_unknown_size_is_unknown(tmp_path: Path) -> None:
    """--hicache-ratio of a model that nobody knows: the L2 pool has no upper bound."""
    launch = LAUNCH.replace("--hicache-size 30", "--hicache-ratio 2")
    found = sized(tmp_path, re.sub(r"--model-path \S+", "--model-path nobody/knows", launch))
    takes = launch_takes(found)
    assert isinstance(takes, Unknown)
    assert "nobody/knows" in takes.reason
