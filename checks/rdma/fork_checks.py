"""Does each registration end on a page of its own size, where the library asks for that?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.finding import (
    Check,
    CheckSet,
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
)
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import RdmaFacts
from checks.rdma.fork import BASE_PAGE_BYTES, DROPPED, VARIABLE, Forking, advises, bad_end
from checks.rdma.judging import Registered, judge_regions
from checks.rdma.registration import largest_region_bytes
from checks.run.facts import Facts

CHECKS = CheckSet()
FORK_SAFE = "rdma.fork-safe"


@CHECKS.declare(
    Check(
        id=FORK_SAFE,
        asks="Does every registration of huge pages end on a huge page, where libibverbs wants it?",
        consequence=Consequence.WILL_NOT_START,
        why="Mooncake calls ibv_fork_init. libibverbs of rdma-core before 51 (Debian 12 has 44, "
        "Ubuntu 22.04 39, 24.04 50) then calls madvise(MADV_DONTFORK) on each registered range in "
        "steps of 4 KiB, which the kernel refuses for a part of a huge page: 'Failed to register "
        "memory ...: Invalid argument [22]', and setup returns -600. A length that is no whole "
        "number of huge pages fails; so does a region of 4 GiB or more whose share per thread is "
        "none, since Mooncake up to 0.3.13 registers such blocks in advance (16 threads on more "
        "than 64 CPUs, else up to 8). A hot cache that is refused is given back, and setup goes on "
        "without it. What lies in Mooncake's arena is never refused: the arena has that flag "
        "already. RDMAV_HUGEPAGES_SAFE makes libibverbs look at the real page size.",
        outcomes=(
            (Status.FAIL, "a registration would end inside a huge page"),
            (Status.WARN, "only that of the hot cache would, and Mooncake does without it"),
            (Status.PASS, "no huge pages, a newer rdma-core, the variable is set, or all fit"),
            (Status.UNKNOWN, "rdma-core's, Mooncake's version, the CPUs or the memory is unknown"),
            (Status.SKIP, "no launch, no RDMA, or no device in use"),
        ),
        remedy="RDMAV_HUGEPAGES_SAFE=1 in the environment of every process.",
        source="rdma-core libibverbs/memory.c, 5a11b68ca; Mooncake #3845; measured on 44",
        topics=("rdma",),
        or_else=(Consequence.DEGRADED,),
    )
)
def fork_safe(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    return judge_regions(FORK_SAFE, facts, needs, lambda memory: _judge(facts.rdma, memory))


def _judge(rdma: RdmaFacts, memory: Registered) -> Finding:
    finding = Finding(
        FORK_SAFE, Status.PASS, memory.process.name, need="registrations of whole huge pages"
    )
    huge = [region for region in memory.regions if region.page_bytes > BASE_PAGE_BYTES]
    if not huge:
        return finding._replace(have="no huge pages are registered")
    if VARIABLE in memory.environment:
        return finding._replace(have=f"{VARIABLE} is set")
    version, source = rdma.libraries.version, rdma.libraries.file
    shown = "unknown" if isinstance(version, Unknown) else str(version)
    finding = finding._replace(
        have=f"rdma-core {shown}",
        evidence=(Evidence(source if isinstance(source, str) else "libibverbs.so.1", shown),),
    )
    advised = advises(rdma, memory.environment)
    if advised is False:
        return finding
    largest = largest_region_bytes(memory.nics, memory.environment)
    forking = Forking(rdma.cpus, largest, memory.release)
    found = [(region.what, bad_end(region, forking)) for region in huge]
    ends = [end for _, end in found if isinstance(end, str) and end]
    doubts = [end.reason for _, end in found if isinstance(end, Unknown)]
    if not ends and not doubts:
        return finding._replace(have=f"rdma-core {shown}, all lengths fit")
    finding = finding._replace(
        advice=f"set {VARIABLE}=1",
        settings=(Setting(Kind.ENVIRONMENT, VARIABLE, "1"),),
    )
    if not ends:
        return finding._replace(status=Status.UNKNOWN, text=doubts[-1])
    listed = "; ".join(ends)
    if isinstance(advised, Unknown):
        return finding._replace(status=Status.UNKNOWN, text=f"{listed}: {advised.reason}")
    if memory.release is None:
        text = f"{listed}: fatal with Mooncake before 0.3.14, and the version is not known"
        return finding._replace(status=Status.UNKNOWN, text=text)
    if all(what == DROPPED for what, end in found if end):
        text = f"{listed}: it is not registered, and Mooncake does without it"
        return finding._replace(status=Status.WARN, text=text, consequence=Consequence.DEGRADED)
    text = f"{listed}: registration fails with 'Invalid argument [22]', setup returns -600"
    return finding._replace(status=Status.FAIL, text=text)
