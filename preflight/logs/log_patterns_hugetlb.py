"""Known lines of Mooncake about huge pages and mappings.

Wording: Mooncake 0.3.8 to 0.3.14 (utils.cpp, mmap_arena.cpp, shm_helper.cpp, mmap_buffer.cpp);
most lines were provoked with the real library.
"""

from __future__ import annotations

from checks.base.units import format_bytes, format_page_size, round_up
from preflight.logs.log_pattern import (
    PAGE_BYTES,
    Groups,
    Layer,
    Pattern,
    Reading,
    Seen,
    Stage,
    mark,
    number,
)

_HUGE_CHECKS = ("hugetlb.shortage", "hugetlb.reservation", "hugetlb.cgroup-limit")
_RAM_CHECKS = ("memory.host", "memory.cgroup", "memory.overcommit", "memory.max-map-count")
_RESERVE = (
    "reserve the pages before the start (mooncake-hicache-sizing prints how many, by NUMA node) "
    "or lower the sizes"
)
_FREE_PAGES = (
    "free_hugepages less resv_hugepages in /sys/kernel/mm/hugepages is what may be had, "
    "nr_hugepages is not"
)
_HUGE_MARKS = ("mark.hugepage-size", "mark.hugepage-shm")


def _page_bytes(seen: Seen) -> int:
    hit = seen.get("mark.hugepage-size")
    return PAGE_BYTES.get(hit.last.get("page", ""), 2 << 20) if hit else 2 << 20


def _pages(size_bytes: int, page_bytes: int) -> str:
    pages = round_up(size_bytes, page_bytes) // page_bytes
    return f"{format_bytes(size_bytes)} take {pages} free pages of {format_page_size(page_bytes)}"


def _read_counted(groups: Groups, seen: Seen) -> Reading:
    page, size = PAGE_BYTES.get(groups.get("page", "")), number(groups, "size")
    return Reading(f"{_pages(size, page)}.") if page and size else Reading()


def _read_mapping(groups: Groups, seen: Seen) -> Reading:
    """A mapping of which the line does not say whether it was to be of huge pages."""
    hit = seen.get("mark.hugepage-shm")
    size = number(groups, "size") or (number(hit.last, "size") if hit else None)
    if any(id_ in seen for id_ in _HUGE_MARKS):
        sums = f"{_pages(size, _page_bytes(seen))}." if size else ""
        return Reading(
            sums,
            decided="huge pages were asked for before, so it is them.",
            remedy=_RESERVE,
            checks=_HUGE_CHECKS,
        )
    sums = f"The mapping was of {format_bytes(size)}." if size else ""
    return Reading(
        sums,
        decided="nothing in this log says that huge pages were asked for: look at memory first.",
        checks=(*_RAM_CHECKS, *_HUGE_CHECKS),
    )


def _read_numa_mapping(groups: Groups, seen: Seen) -> Reading:
    size = number(groups, "size")
    if groups.get("huge") == "yes":
        return Reading(f"{_pages(size, _page_bytes(seen))}." if size else "")
    return Reading(
        f"The mapping was of {format_bytes(size)} in regular pages." if size else "",
        decided="hugepage=no: memory or a limit on it, no huge pages.",
        checks=_RAM_CHECKS,
    )


def _read_arena(groups: Groups, seen: Seen) -> Reading:
    size = number(groups, "size")
    return Reading(f"{_pages(size, _page_bytes(seen))}, for every process." if size else "")


def _read_arena_full(groups: Groups, seen: Seen) -> Reading:
    asked, offset, size = (number(groups, name) for name in ("asked", "offset", "size"))
    if asked is None or offset is None or size is None:
        return Reading()
    return Reading(
        f"{format_bytes(asked)} were asked of an arena of {format_bytes(size)} with "
        f"{format_bytes(max(size - offset, 0))} left: it would have to be "
        f"{format_bytes(offset + asked)} at least."
    )


def _read_mbind(groups: Groups, seen: Seen) -> Reading:
    says = {
        "1": "errno 1 (EPERM): a seccomp profile without CAP_SYS_NICE.",
        "22": "errno 22 (EINVAL): the node is not in cpuset.mems, or does not exist.",
        "5": "errno 5 (EIO): pages that were there already could not be moved to the node.",
        "12": "errno 12 (ENOMEM): no memory for the policy itself.",
    }
    return Reading(decided=says.get(groups.get("errno", ""), ""))


PATTERNS = (
    mark(
        "mark.hugepage-size",
        Layer.MOONCAKE,
        "Using hugepage size: ",
        r"Using hugepage size: (?P<page>\d+[MG]B)",
    ),
    mark(
        "mark.hugepage-shm",
        Layer.MOONCAKE,
        "Using huge pages for shared memory",
        r"Using huge pages for shared memory, size: (?P<size>\d+)",
    ),
    Pattern(
        "mooncake.l2-hugepages",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("Failed to map shared memory using",),
        r"Failed to map shared memory using (?P<page>\d+[MG]B) hugepages "
        r"\(size (?P<size>\d+) bytes, need (?P<pages>\d+) hugepages\): (?P<error>[^.\n]{1,60})",
        _HUGE_CHECKS,
        "the pool of {page} huge pages has not the {pages} free pages that an L2 host pool takes",
        f"{_RESERVE}; unsetting MC_STORE_REGISTER_SPDK, as the message says, changes this only "
        "where SPDK is used",
        f"{_FREE_PAGES}; with pages enough, a hugetlb cgroup limit says the same",
        _read_counted,
    ),
    Pattern(
        "mooncake.l2-map",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("Failed to map shared memory: ",),
        r"Failed to map shared memory: (?P<error>[^\n]{1,60})",
        (*_HUGE_CHECKS, "memory.cgroup"),
        "an L2 host pool could not be mapped; with MC_STORE_USE_HUGEPAGE set (to whatever value) "
        "this is what too few huge pages look like: the message does not name them",
        f"with huge pages: {_RESERVE}; without: lower --hicache-size or raise the memory limit",
        f"MC_STORE_USE_HUGEPAGE in the server's environment decides; {_FREE_PAGES}",
        _read_mapping,
    ),
    Pattern(
        "mooncake.memfd",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("Failed to create anonymous shared memory",),
        r"Failed to create anonymous shared memory(?: \((?P<hint>[^)\n]{1,60})\))?: "
        r"(?P<error>[^\n]{1,60})",
        ("hugetlb.page-size", "system.page-size", "limits.nofile"),
        "memfd_create was refused: the kernel has no huge pages of the size that "
        "MC_STORE_HUGEPAGE_SIZE asks for, or the process has no file descriptor left",
        "set MC_STORE_HUGEPAGE_SIZE to a size of which /sys/kernel/mm/hugepages has a folder",
        "the hint about nr_hugepages misleads: too few pages fail one step later, at the mapping",
    ),
    Pattern(
        "mooncake.arena-hugepages",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("regular-page fallback disabled",),
        r"Arena hugepage mmap failed for pool_size=(?P<size>\d+) bytes, errno=(?P<errno>\d+)",
        _HUGE_CHECKS,
        "too few huge pages for the mmap arena (MC_MMAP_ARENA_POOL_SIZE), which every process "
        "maps whole at its start",
        f"{_RESERVE}, or leave MC_MMAP_ARENA_POOL_SIZE unset: it serves no L2 pool",
        _FREE_PAGES,
        _read_arena,
    ),
    Pattern(
        "mooncake.arena-regular",
        Layer.MOONCAKE,
        Stage.WARNING,
        ("retrying without huge pages",),
        r"Arena hugepage mmap failed for pool_size=(?P<size>\d+) bytes, errno=(?P<errno>\d+)",
        ("hugetlb.shortage", "launch.unused"),
        "the mmap arena finds no huge pages and takes regular ones, because MC_STORE_USE_HUGEPAGE "
        "is not set",
        "nothing, if regular pages are meant; else set MC_STORE_USE_HUGEPAGE and reserve the pages",
        "nothing fails for this line alone",
        _read_arena,
    ),
    Pattern(
        "mooncake.arena-full",
        Layer.MOONCAKE,
        Stage.WARNING,
        ("Arena OOM: requested=",),
        r"Arena OOM: requested=(?P<asked>\d+), aligned_size=\d+, aligned_offset=(?P<offset>\d+), "
        r"pool_size=(?P<size>\d+)",
        ("launch.unused",),
        "the mmap arena is smaller than what is asked of it: the allocation is mapped beside it "
        "and the arena's memory is held for nothing",
        "size MC_MMAP_ARENA_POOL_SIZE for segment and local buffer together, or unset it",
        "logged as an error, but the allocation succeeds unless an mmap failed line follows",
        _read_arena_full,
    ),
    Pattern(
        "mooncake.mmap",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("mmap failed, size=",),
        r"mmap failed, size=(?P<size>\d+), errno=(?P<errno>\d+)",
        (*_HUGE_CHECKS, "memory.overcommit"),
        "the store's local buffer or segment could not be mapped: with MC_STORE_USE_HUGEPAGE set, "
        "too few huge pages",
        f"with huge pages: {_RESERVE}; without: raise the memory limit or lower the segment",
        f"MC_STORE_USE_HUGEPAGE in the server's environment decides; {_FREE_PAGES}",
        _read_mapping,
        ("mooncake.arena-hugepages",),
    ),
    Pattern(
        "mooncake.numa-mmap",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("mmap failed (hugepage=",),
        r"mmap failed \(hugepage=(?P<huge>yes|no)\), size=(?P<size>\d+), errno=(?P<errno>\d+)",
        ("hugetlb.shortage", "hugetlb.node-shortage", "hugetlb.cgroup-limit"),
        "a segment that is split over the NICs' NUMA nodes could not be mapped",
        f"{_RESERVE}; each node with a NIC in use needs its share",
        f"{_FREE_PAGES}; too few on one node alone do not fail here but as SIGBUS later",
        _read_numa_mapping,
    ),
    Pattern(
        "mooncake.mbind",
        Layer.MOONCAKE,
        Stage.CAUSE,
        ("mbind failed for NUMA",),
        r"mbind failed for NUMA (?P<name>-?\d+), errno=(?P<errno>\d+)",
        ("numa.policy-refused", "numa.cpuset-excludes"),
        "the kernel refuses to bind the segment to NUMA node {name}, so there is no segment",
        "start the container with --cap-add SYS_NICE, or give it the node in cpuset.mems",
        "cpuset.mems.effective of the cgroup tells the two apart",
        _read_mbind,
    ),
    Pattern(
        "mooncake.segment-memory",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        ("Failed to allocate segment memory", "Failed to allocate client buffer memory"),
        r"Failed to allocate (?P<what>segment|client buffer) memory",
        (*_HUGE_CHECKS, "memory.host", "memory.cgroup"),
        "the memory of the {what} could not be had",
        "see the line about mmap or mbind before it; without one, memory or its limit is short",
        "an mmap failed or mbind failed line just before names the reason",
        unless=("mooncake.mmap", "mooncake.numa-mmap", "mooncake.mbind"),
    ),
    Pattern(
        "mooncake.bad-alloc",
        Layer.MOONCAKE,
        Stage.SYMPTOM,
        ("std::bad_alloc",),
        r"std::bad_alloc",
        (*_HUGE_CHECKS, "memory.cgroup"),
        "an allocation failed: in setup it is the store's local buffer",
        f"with huge pages: {_RESERVE}; without: raise the memory limit",
        "an mmap failed line just before it names size and errno",
        unless=("mooncake.mmap", "mooncake.arena-hugepages"),
    ),
    Pattern(
        "mooncake.hugepage-size",
        Layer.MOONCAKE,
        Stage.WARNING,
        ("Invalid MC_STORE_HUGEPAGE_SIZE=",),
        r"Invalid MC_STORE_HUGEPAGE_SIZE='(?P<name>[^'\n]{0,60})'",
        ("choice-unknown", "hugetlb.page-size", "system.page-size"),
        "this Mooncake does not know the page size {name!r} and takes pages of 2 MiB: a pool "
        "reserved in another size stays unused, and a kernel without 2 MiB pages has none",
        "write 2MB or 1GB; 512MB (arm64 with 64 KiB pages) needs Mooncake 0.3.14",
        "getconf PAGESIZE: 65536 means that there are no pages of 2 MiB",
    ),
)
