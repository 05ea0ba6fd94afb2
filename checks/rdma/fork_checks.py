"""Does each registration end on a page of its own size, where the library asks for that?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet
from checks.base.finding import Consequence, Evidence, Finding, Kind, Setting, passed
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import RdmaFacts
from checks.rdma.fork import BASE_PAGE_BYTES, DROPPED, VARIABLE, Forking, advises, bad_end
from checks.rdma.judging import Registered, judge_regions, rdma_launch
from checks.rdma.registration import largest_region_bytes

CHECKS = CheckSet()
FORK_SAFE = "rdma.fork-safe"


@CHECKS.check(FORK_SAFE, rdma_launch)
def fork_safe(needs: LaunchNeeds, rdma: RdmaFacts) -> Iterable[Finding]:
    return judge_regions(rdma, needs, lambda memory: _judge(rdma, memory))


def _judge(rdma: RdmaFacts, memory: Registered) -> Finding:
    finding = passed(memory.process.name, need="registrations of whole huge pages")
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
        return finding.unknown(doubts[-1])
    listed = "; ".join(ends)
    if isinstance(advised, Unknown):
        return finding.unknown(f"{listed}: {advised.reason}")
    if memory.release is None:
        text = f"{listed}: fatal with Mooncake before 0.3.14, and the version is not known"
        return finding.unknown(text)
    if all(what == DROPPED for what, end in found if end):
        text = f"{listed}: it is not registered, and Mooncake does without it"
        return finding.warned(text, consequence=Consequence.DEGRADED)
    text = f"{listed}: registration fails with 'Invalid argument [22]', setup returns -600"
    return finding.failed(text)
