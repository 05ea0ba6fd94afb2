"""How Mooncake's releases differ: one row for each release that changed a fact, in one table.

A new release is a row that names what it changed, and the flags that ``tools/add_release.py``
writes. What is mapped was read in source at each tag; the rows over TCP were also run (the wheels
0.3.8 to 0.3.14), see ``tests/real``.
"""

from enum import Enum
from itertools import accumulate
from typing import Any, NamedTuple

from checks.framework.units import GIB, MIB
from checks.framework.written_numbers import Numbers, version_numbers


class NumaSegments(Enum):
    """How a segment is mapped if the NICs sit on several NUMA nodes."""

    NONE = "one mapping, on no node in particular"
    REGULAR = "split over the NIC nodes, on regular pages even where huge pages are asked for"
    HUGETLB = "split over the NIC nodes, on huge pages"


class MooncakeRelease(NamedTuple):
    """The facts of one release.

    A field's default is the fact of the oldest release.
    """

    first: Numbers = (0, 0, 0, 0)

    # What it maps (mooncake-store/src: shm_helper.cpp, mmap_arena.cpp, real_client.cpp).
    hugepages: bool = False  # MC_STORE_USE_HUGEPAGE is read at all
    arena: bool = False
    arena_in_store_pages: bool = False  # else in pages of the kernel's default size
    numa_segments: NumaSegments = NumaSegments.NONE
    # A rank bound to some nodes (numactl --membind) splits its segment over those alone; else a
    # node that the process may not use makes mbind, and setup, fail.
    numa_segments_stay_bound: bool = False
    # MC_STORE_HCA_AFFINITY and MC_STORE_HCA_NUMA_SEGMENTS, both on: a segment of its own for each
    # node, of whole slabs of 16 MiB (measured: 80 MiB is 48 on the first node and 32 on the other).
    hca_segments: bool = False
    page_sizes_bytes: tuple[int, ...] = ()
    # What setup does when the local buffer finds no pages, and the allocator when an L2 pool does.
    no_local_buffer: str = "setup raises MemoryError: std::bad_alloc"
    no_host_pool: str = "RuntimeError: Failed to map shared memory: Cannot allocate memory"
    hot_cache: bool = False

    # What it registers (transfer_engine_impl.cpp, rdma_context.cpp).
    # Of an L2 host pool on huge pages all is registered, whatever part of it is handed over.
    registers_whole_pool: bool = False
    registers_hot_cache: bool = False
    registers_in_pieces: bool = False  # a region longer than the device takes; else it is cut off
    # Pieces, host pools and the blocks touched in advance end on huge pages.
    registrations_end_on_pages: bool = False
    reads_relaxed_ordering: bool = False  # MC_IB_PCI_RELAXED_ORDERING, for certain
    relaxed_ordering: bool = False  # it is on where the variable is not set

    # How it reads its environment (mooncake-common, utils.h).
    negative_sizes_wrap: bool = True  # a size of -5 is read as 2^64 - 5
    # "enable" and "disable" are truth values, numbers are read whole, and MOONCAKE_STORE_CHECKSUM
    # is read.
    common_reader: bool = False
    service_reads_units: bool = False  # mooncake_config.py: kb, mb and floats; else gb alone

    # What setup and the master know (real_client.cpp, master.cpp, types.h).
    setup_offloads: bool = (
        False  # else setup knows no SSD offload, and SGLang calls it again without
    )
    locks_offload_folder: bool = False
    # What a heartbeat leaves over, less than a bucket, never reaches SSD (file_storage.cpp
    # OffloadObjects; Mooncake #3006). Later it waits for more, or is written with
    # MOONCAKE_OFFLOAD_FLUSH_PARTIAL_BUCKETS (#3009).
    forgets_carried_objects: bool = False
    flushes_buckets: bool = False
    passes_offload_limit: bool = False  # MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES is not kept
    tenants: bool = False  # setup takes tenant_id
    eviction_watermark: float = 1.0  # the part of the pool above which the master evicts
    eviction_ratio: float = 0.1  # the part of all objects that it evicts at once
    lease_seconds: float = 0.2  # how long an object that was asked for is not evicted

    # Which NIC and which GID it takes (topology.cpp, rdma_context.cpp).
    reads_te_filters: bool = False  # MC_TE_FILTERS
    looks_at_nodes: bool = False  # for NICs of the GPU's own node, before it counts PCI bridges
    chooses_gid: bool = False  # else index 0 is taken
    takes_ipv6_gids: bool = False  # else the first IPv4 RoCE v2 or IB entry is taken
    ranks_gids: bool = False  # all entries, also behind an empty one
    takes_any_gid: bool = False  # else an entry without a network interface disables the device

    # Releases that store and read together over one master, among those that were tried over TCP:
    # masters 0.3.8 to 0.3.14 with clients 0.3.8 to 0.3.13.post1 (setup, put, get). The others
    # failed at the first call that changed. What client and master compare by themselves ("Version
    # mismatch") is another number, 2.0.0 in all of these.
    together: frozenset[str] = frozenset()


def _change(version: str, **facts: Any) -> tuple[str, dict[str, Any]]:
    """Return the facts that a release changed; all others hold as before."""
    return version, facts


# What each release changed, the oldest first: a new one is a line here.
_CHANGES = (
    _change("0.3.5", lease_seconds=5.0),
    _change("0.3.6.post1", eviction_watermark=0.95, eviction_ratio=0.05),
    _change(
        "0.3.8",
        looks_at_nodes=True,
        chooses_gid=True,
        together=frozenset("0.3.8 0.3.8.post1".split()),
    ),
    _change(
        "0.3.8.post1", hugepages=True, page_sizes_bytes=(2 * MIB, GIB), reads_relaxed_ordering=True
    ),
    _change("0.3.9", together=frozenset("0.3.9 0.3.10".split())),
    _change("0.3.10", hot_cache=True, takes_ipv6_gids=True, takes_any_gid=True),
    _change(
        "0.3.10.post2",
        numa_segments=NumaSegments.REGULAR,
        setup_offloads=True,
        together=frozenset({"0.3.10.post2"}),
    ),
    _change("0.3.11", arena=True, together=frozenset("0.3.11 0.3.11.post1".split())),
    _change(
        "0.3.12",
        numa_segments=NumaSegments.HUGETLB,
        registers_hot_cache=True,
        negative_sizes_wrap=False,
        tenants=True,
        eviction_watermark=0.90,
        lease_seconds=10.0,
        reads_te_filters=True,
        ranks_gids=True,
        service_reads_units=True,
        forgets_carried_objects=True,
        passes_offload_limit=True,
        together=frozenset("0.3.12 0.3.12.post1".split()),
    ),
    # A client 0.3.14 was not tried with an older master.
    _change(
        "0.3.13",
        registers_in_pieces=True,
        relaxed_ordering=True,
        common_reader=True,
        together=frozenset("0.3.13 0.3.13.post1 0.3.14".split()),
    ),
    _change(
        "0.3.14",
        arena_in_store_pages=True,
        numa_segments_stay_bound=True,
        hca_segments=True,
        page_sizes_bytes=(2 * MIB, 512 * MIB, GIB),
        no_local_buffer="setup returns -1",
        no_host_pool="RuntimeError: Failed to map shared memory using {page} hugepages (size "
        "{size} bytes, need {pages} hugepages): Cannot allocate memory",
        registers_whole_pool=True,
        registrations_end_on_pages=True,
        locks_offload_folder=True,
        forgets_carried_objects=False,
        flushes_buckets=True,
    ),
)
# What of an answer follows from a release's row, for one that has no row yet.
RESTS_ON = (
    "which pages each mapping takes, what is registered with the NICs, how variables are read"
)

# The newest release that this table was held against.
NEWEST_KNOWN = _CHANGES[-1][0]
# What ``pip install mooncake-transfer-engine`` gives (2026-11-26): 0.3.14 is on PyPI as
# mooncake-transfer-engine-cuda13 alone.
USUALLY_INSTALLED = "0.3.13.post1"


def parse_version(text: str) -> Numbers:
    """Return ``"0.3.13.post1"`` as ``(0, 3, 13, 1)``.

    Raises:
        ValueError: With the right spelling.
    """
    return version_numbers(text, "a Mooncake", "0.3.13.post1 or 0.3.14")


def mooncake_release(text: str) -> MooncakeRelease:
    """Return the facts of the version ``text``.

    Raises:
        ValueError: As ``parse_version`` does.
    """
    version = parse_version(text)
    return next(row for row in reversed(RELEASES) if row.first <= version)


def release_of(text: str) -> MooncakeRelease | None:
    """Return the facts of the version ``text``; None if ``text`` is no version of Mooncake."""
    try:
        return mooncake_release(text)
    except ValueError:
        return None


def newer_than_known(text: str) -> bool:
    """Return whether ``text`` is newer than the table.

    Raises:
        ValueError: As ``parse_version``.
    """
    return parse_version(text) > parse_version(NEWEST_KNOWN)


def work_together(version: str, other: str) -> bool | None:
    """Tell whether two releases can share a master; None if one of them was not tried."""
    if version == other:
        return True
    groups = {row.together for row in RELEASES}
    tried = [group for group in groups if version in group or other in group]
    if len(tried) == 2:
        return False
    return True if tried and {version, other} <= tried[0] else None


def _changed(row: MooncakeRelease, change: tuple[str, dict[str, Any]]) -> MooncakeRelease:
    return row._replace(first=parse_version(change[0]), **change[1])


RELEASES = tuple(accumulate(_CHANGES, _changed, initial=MooncakeRelease()))
