"""Which registrations libibverbs refuses since they end inside a huge page: pure arithmetic.

Mooncake calls ibv_fork_init. libibverbs then calls madvise(MADV_DONTFORK) on every range that is
registered, rounded to pages of 4 KiB, which the kernel refuses for a part of a huge page, unless
the mapping has that flag already (Linux mm/madvise.c, madvise_update_vma), as Mooncake's arena has.

Source: rdma-core libibverbs/memory.c, 5a11b68ca; Mooncake ``rdma_transport.cpp``; measured with
rdma-core 44 and Mooncake 0.3.13.post1 and 0.3.14.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from checks.framework.finding import Consequence, Evidence, Finding, Kind, Setting, passed
from checks.framework.needs import LaunchNeeds
from checks.framework.pages import MemoryKind, Region
from checks.framework.problem import Problems
from checks.framework.units import GIB, format_page_size
from checks.framework.unknown import Unknown
from checks.rdma.device_table import BASE_PAGE_BYTES
from checks.rdma.facts import RdmaFacts
from checks.rdma.per_device import judge_regions, rdma_launch
from checks.rdma.registration import largest_region_bytes
from checks.rdma.use import Use
from checks.releases.mooncake import MooncakeRelease

# rdma-core 51 asks the kernel whether it copies pinned pages at fork, and then leaves madvise out.
FIRST_FORK_SAFE = 51
VARIABLE = "RDMAV_HUGEPAGES_SAFE"
# Where registrations end on huge pages, this does not.
LOCAL_BUFFER = MemoryKind.LOCAL_BUFFER
SEEN_ALIGNED = (MemoryKind.HOST_POOL, MemoryKind.SEGMENT)
# What Mooncake does without where it cannot be registered; all else ends setup.
DROPPED = MemoryKind.HOT_CACHE
# rdma_transport.cpp: regions from this length on are registered in blocks first, one a thread.
TOUCHED_FROM_BYTES = 4 * GIB
LEAST_CPUS, MANY_CPUS, FEW_THREADS, MANY_THREADS = 4, 64, 8, 16


class Forking(NamedTuple):
    """What decides whether a process registers whole huge pages, if libibverbs calls madvise."""

    cpus: int | Unknown
    largest_bytes: int | Unknown  # what one registration takes at most
    release: MooncakeRelease | None


def calls_madvise(rdma: RdmaFacts, environment: Mapping[str, str]) -> bool | Unknown:
    """Tell whether libibverbs, in a process with ``environment``, calls madvise on ranges rounded
    to 4 KiB.

    Returns:
        Unknown if the release of rdma-core, or what the kernel does at fork, is not known.
    """
    if VARIABLE in environment:
        return False
    version, kernel = rdma.libraries.version, rdma.kernel
    if isinstance(version, Unknown):
        return Unknown(f"fatal with rdma-core before {FIRST_FORK_SAFE}; {version.reason}")
    if version < FIRST_FORK_SAFE:
        return True
    if isinstance(kernel, Unknown) or isinstance(kernel.copy_on_fork, Unknown):
        return Unknown(
            "fatal if the kernel does not copy pinned pages at fork, and that could not be read"
        )
    return not kernel.copy_on_fork


def bad_end(region: Region, forking: Forking) -> str | Unknown:
    """Say which registration of ``region`` ends inside a huge page; "" if none does.

    If the release is not known, the region is judged as Mooncake before 0.3.14 registers it.

    Returns:
        Unknown if the answer depends on a fact that is not known, such as the number of CPUs.
    """
    page, what = region.page_bytes, region.what
    if page <= BASE_PAGE_BYTES or region.dontfork:
        return ""
    aligned = forking.release is not None and forking.release.registrations_end_on_pages
    if aligned and what != LOCAL_BUFFER:
        if region.bytes % page and what not in SEEN_ALIGNED:
            return Unknown(f"whether this Mooncake registers the {what} in one piece is unknown")
        return ""
    if region.bytes % page:
        return f"{what} of {region.bytes} B is no whole number of {format_page_size(page)} pages"
    if aligned or region.bytes < TOUCHED_FROM_BYTES:
        return ""
    cpus, largest = forking.cpus, forking.largest_bytes
    if isinstance(largest, Unknown) or isinstance(cpus, Unknown):
        return Unknown(next(fact.reason for fact in (largest, cpus) if isinstance(fact, Unknown)))
    touched = min(region.bytes, largest)
    threads = touching_threads(cpus)
    if threads and touched // threads % page:
        return (
            f"{what} of {region.bytes} B is first registered in {threads} blocks of "
            f"{touched // threads} B, no whole number of {format_page_size(page)} pages"
        )
    return ""


def touching_threads(cpus: int) -> int:
    """Return how many threads register a region of 4 GiB or more in blocks first; 0: no blocks."""
    if cpus < LEAST_CPUS:
        return 0
    return MANY_THREADS if cpus > MANY_CPUS else min(cpus, FEW_THREADS)


CHECKS = Problems()
FORK_SAFE = "rdma.fork-safe"


@CHECKS(FORK_SAFE, needs=rdma_launch)
def fork_safe(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    return judge_regions(rdma, needs, lambda *memory: _judge(rdma, *memory))


def _judge(rdma: RdmaFacts, name: str, regions: tuple[Region, ...], use: Use) -> Finding:
    """Judge whether the process ``name`` registers whole huge pages, as MADV_DONTFORK requires."""
    finding = passed(name, need="registrations of whole huge pages")
    huge = [region for region in regions if region.page_bytes > BASE_PAGE_BYTES]
    if not huge:
        return finding._replace(have="no huge pages are registered")
    if VARIABLE in use.environment:
        return finding._replace(have=f"{VARIABLE} is set")
    version, source = rdma.libraries.version, rdma.libraries.file
    shown = "unknown" if isinstance(version, Unknown) else str(version)
    finding = finding._replace(
        have=f"rdma-core {shown}",
        evidence=(Evidence(source if isinstance(source, str) else "libibverbs.so.1", shown),),
    )
    advised = calls_madvise(rdma, use.environment)
    if advised is False:
        return finding
    forking = Forking(rdma.cpus, largest_region_bytes(use.nics, use.environment), use.release)
    ends_by_region = [(region.what, bad_end(region, forking)) for region in huge]
    ends = [end for _, end in ends_by_region if isinstance(end, str) and end]
    doubts = [end.reason for _, end in ends_by_region if isinstance(end, Unknown)]
    if not ends and not doubts:
        return finding._replace(have=f"rdma-core {shown}, all lengths fit")
    finding = finding._replace(
        advice=f"set {VARIABLE}=1", settings=(Setting(Kind.ENVIRONMENT, VARIABLE, "1"),)
    )
    if not ends:
        return finding.undecided(doubts[-1])
    listed = "; ".join(ends)
    if isinstance(advised, Unknown):
        return finding.undecided(advised.of(f"{listed}: "))
    if use.release is None:
        text = f"{listed}: fatal with Mooncake before 0.3.14, and the version is unknown"
        return finding.undecided(text)
    if all(what == DROPPED for what, end in ends_by_region if end):
        text = f"{listed}: registering it fails, and Mooncake goes on without it"
        return finding.warned(text, consequence=Consequence.DEGRADED)
    text = f"{listed}: registration fails with 'Invalid argument [22]', setup returns -600"
    return finding.failed(text)
