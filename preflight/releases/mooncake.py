"""How Mooncake's releases differ in what they map: one table.

Every row was read in source at that tag; the TCP rows were also run (the wheels 0.3.8 to
0.3.13.post1 and 0.3.14), see ``tests/real``.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from checks.base.units import GIB, MIB
from checks.base.version_text import version_numbers


class NumaSegments(Enum):
    """What a segment is mapped from when the NICs sit on several NUMA nodes."""

    NONE = "one mapping, on no node in particular"
    REGULAR = "split over the NIC nodes, on regular pages even where huge pages are asked for"
    HUGETLB = "split over the NIC nodes, on huge pages"


class Release(NamedTuple):
    """What one release maps; each field holds until a later row changes it."""

    first: tuple[int, int, int, int]
    hugepages: bool  # MC_STORE_USE_HUGEPAGE is read at all
    arena: bool
    arena_in_store_pages: bool  # else in pages of the kernel's default size
    numa_segments: NumaSegments
    # True: a rank bound to some nodes (numactl --membind) splits its segment over those alone.
    numa_segments_stay_bound: bool
    page_sizes_bytes: tuple[int, ...]
    no_local_buffer: str  # what setup does when the local buffer finds no pages
    no_host_pool: str  # what the allocator says when an L2 host pool finds none
    # True: of an L2 host pool on huge pages all is registered, whatever part of it is handed over.
    registers_whole_pool: bool = False
    hot_cache: bool = True
    registers_hot_cache: bool = True
    # True: a size of -5 is read as 2^64 - 5.
    negative_sizes_wrap: bool = False
    # True: "enable" and "disable" are truth values, numbers are read whole, and
    # MOONCAKE_STORE_CHECKSUM is read.
    common_reader: bool = True
    # False: ``setup`` knows no SSD offload, and SGLang calls it again without.
    setup_offloads: bool = True
    locks_offload_folder: bool = False
    tenants: bool = True  # setup takes tenant_id


_RAISES, _MINUS_1 = "setup raises MemoryError: std::bad_alloc", "setup returns -1"
_PLAIN = "RuntimeError: Failed to map shared memory: Cannot allocate memory"
_LONG = (
    "RuntimeError: Failed to map shared memory using {page} hugepages (size {size} bytes, need "
    "{pages} hugepages): Cannot allocate memory"
)
_X86_SIZES = (2 * MIB, GIB)
_ALL_SIZES = (2 * MIB, 512 * MIB, GIB)
_NONE, _REGULAR, _HUGETLB = NumaSegments.NONE, NumaSegments.REGULAR, NumaSegments.HUGETLB

# fmt: off
RELEASES = (
    #       first          hugepages arena  in pages NUMA     bound  sizes       if short
    Release((0, 0, 0, 0),  False,    False, False,   _NONE,    False, (),         _RAISES, _PLAIN,
            hot_cache=False, registers_hot_cache=False, negative_sizes_wrap=True,
            common_reader=False, setup_offloads=False, tenants=False),
    Release((0, 3, 8, 1),  True,     False, False,   _NONE,    False, _X86_SIZES, _RAISES, _PLAIN,
            hot_cache=False, registers_hot_cache=False, negative_sizes_wrap=True,
            common_reader=False, setup_offloads=False, tenants=False),
    Release((0, 3, 10, 0), True,     False, False,   _NONE,    False, _X86_SIZES, _RAISES, _PLAIN,
            registers_hot_cache=False, negative_sizes_wrap=True, common_reader=False,
            setup_offloads=False, tenants=False),
    Release((0, 3, 10, 2), True,     False, False,   _REGULAR, False, _X86_SIZES, _RAISES, _PLAIN,
            registers_hot_cache=False, negative_sizes_wrap=True, common_reader=False,
            tenants=False),
    Release((0, 3, 11, 0), True,     True,  False,   _REGULAR, False, _X86_SIZES, _RAISES, _PLAIN,
            registers_hot_cache=False, negative_sizes_wrap=True, common_reader=False,
            tenants=False),
    Release((0, 3, 12, 0), True,     True,  False,   _HUGETLB, False, _X86_SIZES, _RAISES, _PLAIN,
            common_reader=False),
    Release((0, 3, 13, 0), True,     True,  False,   _HUGETLB, False, _X86_SIZES, _RAISES, _PLAIN),
    Release((0, 3, 14, 0), True,     True,  True,    _HUGETLB, True,  _ALL_SIZES, _MINUS_1, _LONG,
            registers_whole_pool=True, locks_offload_folder=True),
)
# fmt: on

# The newest release that this table was held against.
NEWEST_KNOWN = "0.3.14"


def parse_version(text: str) -> tuple[int, int, int, int]:
    """``"0.3.13.post1"`` as ``(0, 3, 13, 1)``. Raises ValueError with the right spelling."""
    return version_numbers(text, "a Mooncake", "0.3.13.post1 or 0.3.14")


def release(text: str) -> Release:
    """The behaviour of the version ``text``. Raises ValueError as ``parse_version`` does."""
    version = parse_version(text)
    return next(row for row in reversed(RELEASES) if row.first <= version)


def newer_than_known(text: str) -> bool:
    return parse_version(text) > parse_version(NEWEST_KNOWN)
