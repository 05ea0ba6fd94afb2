"""Shares of one mapping are told by what made them, not by how alike their neighbours are."""

from __future__ import annotations

import pytest

from checks.framework.pages import Spot, Usage
from checks.hugetlb.fit import Fit, Stock, judge_fit
from checks.releases.mooncake import mooncake_release
from preflight.engines.mooncake.allocations import mappings
from preflight.engines.mooncake.replay import heap, hugetlb_usages, replay_endless
from preflight.engines.programs.memory_records import (
    HotCache,
    Launch,
    MappedProcess,
    OwnAllocator,
    Protocol,
    StoreClient,
    StoreSettings,
)
from preflight.engines.programs.store_environment import read_store_settings
from tests.builders.hosts import MIB


@pytest.mark.parametrize(
    ("block_bytes", "records"), [(16 * MIB, []), (64 * 1024, []), (1, [82 * MIB * 118])]
)
def test_each_hot_block_has_a_record(block_bytes: int, records: list[int]) -> None:
    """MC_STORE_LOCAL_HOT_BLOCK_SIZE=1MB is a byte: a cache of 82 MiB then takes about 10 GB."""
    cache = HotCache(82 * MIB, block_bytes, shared_memory=False)
    settings = StoreSettings(hugepages=True, hugepage_bytes=2 * MIB, hot_cache=cache)
    client = StoreClient(32 * MIB, 0, Protocol.TCP)
    process = MappedProcess("rank", settings, (), (client,))
    assert [allocation.bytes for allocation in heap(process)] == records
    assert not heap(process._replace(clients=(client._replace(dummy=True),)))


@pytest.mark.parametrize(
    ("version", "hca", "size", "pages", "mappings_"),
    [
        ("0.3.14", True, 80 * MIB, [24, 16], 2),
        ("0.3.14", True, 80 * MIB + 1, [24, 24], 2),
        ("0.3.14", True, 96 * MIB + 1, [32, 24], 2),
        ("0.3.14", False, 80 * MIB, [20, 20], 1),
        ("0.3.14", False, 80 * MIB + 1, [21, 21], 1),
        ("0.3.13", True, 80 * MIB, [20, 20], 1),
    ],
)
def test_a_segment_for_each_node_has_whole_slabs(
    version: str, hca: bool, size: int, pages: list[int], mappings_: int
) -> None:
    """80 MiB on two nodes, as 0.3.14 took them with two NICs: 48 and 32 MiB. A byte more takes one
    slab of 16 MiB more, or a page of each node."""
    variables = ("MC_STORE_USE_HUGEPAGE", "MC_STORE_HCA_AFFINITY", "MC_STORE_HCA_NUMA_SEGMENTS")
    release = mooncake_release(version)
    settings, _ = read_store_settings(dict.fromkeys(variables[: 3 if hca else 2], "1"), release)
    client = StoreClient(size, 0, Protocol.RDMA)
    process = MappedProcess("rank 0", settings, clients=(client,))
    (replay,) = replay_endless(Launch((process,), release, (0, 1)))
    assert [allocation.pages for allocation in replay.allocations] == pages
    assert len(list(mappings(replay.allocations))) == mappings_


def test_pools_of_sglangs_own_allocator_are_a_usage_of_their_own() -> None:
    """They may lie on regular pages, so nothing of them has to be there, arena or not."""
    settings = StoreSettings(hugepages=True, hugepage_bytes=2 * MIB)
    process = MappedProcess("a", settings, (3 * MIB,), own_allocator=OwnAllocator(2 * MIB))
    _, own = hugetlb_usages(Launch((process,), mooncake_release("0.3.13")))
    assert own == Usage("a, own allocator", {Spot(2 * MIB, None): 2}, {}, True, {})


@pytest.mark.parametrize(
    ("segment_bytes", "pages", "fit"),
    [
        (0, 0, Fit.FAILS),
        (0, 1, Fit.FALLS_BACK),
        (0, 16, Fit.FALLS_BACK),
        (0, 17, Fit.FITS),
        (32 * MIB, 32, Fit.FAILS),  # the cache takes what the segment needs
        (32 * MIB, 33, Fit.FITS),
    ],
)
def test_a_hot_cache_that_comes_last_is_not_needed(
    segment_bytes: int, pages: int, fit: Fit
) -> None:
    """One page of host pool, 16 of a hot cache, then the segment. With 15 pages, and nothing behind
    the cache, the wheel of 0.3.13 started and took one."""
    settings = StoreSettings(
        hugepages=True,
        hugepage_bytes=2 * MIB,
        hot_cache=HotCache(32 * MIB, 16 * MIB, shared_memory=True),
    )
    client = StoreClient(segment_bytes, 0, Protocol.TCP)
    process = MappedProcess("rank 0", settings, (1,), (client,))
    usages = hugetlb_usages(Launch((process,), mooncake_release("0.3.13")))
    stock = {Spot(2 * MIB, None): Stock(pages, pages)}
    assert judge_fit(usages, stock).fit is fit
