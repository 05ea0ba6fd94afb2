"""Whether pages may be taken from the rest of the host: one judgement for all that print or apply.

What is refused here is printed by nobody as a command: the kernel would press everything else out
of memory for pages that it cannot find.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from checks.base.finding import Finding, Kind, Setting, Status
from checks.base.needs import Spot
from checks.base.units import format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.targets import Target
from checks.numa.nodes import NODES

RESERVATION = "hugetlb.reservation"
# Where one of these is unknown, no page is taken.
_DECISIVE = (RESERVATION, "hugetlb.cgroup-limit", "memory.host", "launch.sizes")
# A size may be what the program refuses: what is taken without it is a default's, often all memory.
_REFUSED = "arguments-refused"
ASK_FIT = "mooncake-preflight fit finds sizes that fit"


class Refusal(NamedTuple):
    """impossible: memory that is not there. undecided: what could not be read, and decides."""

    impossible: tuple[str, ...]
    undecided: tuple[str, ...]


def refusal_of(findings: Iterable[Finding]) -> Refusal:
    """Return why the findings keep every pool from growing; empty where they do not."""
    findings = list(findings)
    impossible, undecided = [], list(refused_sizes(findings))
    for found in findings:
        if found.check == RESERVATION and found.status is Status.FAIL:
            impossible.append(
                f"{found.subject}: have {found.have}, need {found.need}: {found.text}"
            )
        elif found.check in _DECISIVE and found.status is Status.UNKNOWN:
            undecided.append(f"{found.check}, {found.subject}: {found.text or 'not known'}")
    return Refusal(tuple(dict.fromkeys(impossible)), tuple(dict.fromkeys(undecided)))


def refused_sizes(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield why no size of the launch is the one that was meant."""
    for found in findings:
        if found.check == _REFUSED and found.status is Status.FAIL:
            yield f"correct the launch first: {found.subject}: {found.text}"


def without_refused(findings: Iterable[Finding], beside: Iterable[Finding] = ()) -> list[Finding]:
    """Return the findings, with a sentence in place of each setting that is refused.

    beside: findings that decide with them and are not returned, those of the launch.
    """
    found = list(findings)
    refusal = refusal_of((*found, *beside))
    reasons = (*refusal.impossible, *refusal.undecided)
    return [_explained(finding, reasons[0]) for finding in found] if reasons else found


def _explained(finding: Finding, reason: str) -> Finding:
    kept = tuple(setting for setting in finding.settings if not grows_pool(setting))
    if len(kept) == len(finding.settings):
        return finding
    return finding._replace(settings=kept, advice=f"cannot be reserved now ({reason}); {ASK_FIT}")


def grows_pool(setting: Setting) -> bool:
    """Return whether a setting takes pages from the host, now or at each boot."""
    kinds = (Kind.SYSCTL, Kind.BOOT_SYSCTL, Kind.SYSFS)
    return setting.kind in kinds and setting.name.endswith("nr_hugepages")


def room_bytes(
    spot: Spot, available_bytes: int | Unknown, node_free_bytes: Mapping[int, int]
) -> int | Unknown:
    """Return the memory that a pool can grow out of: free, and page cache that gives way."""
    if spot.node is None:
        return available_bytes
    free = node_free_bytes.get(spot.node)
    if free is None:
        return Unknown(f"{NODES}/node{spot.node}/meminfo: its MemFree cannot be read")
    return free


def why_refused(
    targets: Mapping[Spot, Target],
    available_bytes: int | Unknown,
    node_free_bytes: Mapping[int, int],
) -> str:
    """Return why pools cannot grow to ``targets`` now, "" where they can."""
    for spot, target in targets.items():
        where = "" if spot.node is None else f" on node {spot.node}"
        name = f"{format_page_size(spot.page_size_bytes)} pages{where}"
        if target.now_pages is None:
            return f"{name}: how many there are cannot be read"
        missing_bytes = (target.pages - target.now_pages) * spot.page_size_bytes
        room = room_bytes(spot, available_bytes, node_free_bytes)
        if isinstance(room, Unknown):
            return f"{name}: what memory is free is not known ({room.reason})"
        if missing_bytes > room:
            return (
                f"{name}: {format_bytes(missing_bytes)} more are needed, {format_bytes(room)} "
                "can be had"
            )
    return ""
