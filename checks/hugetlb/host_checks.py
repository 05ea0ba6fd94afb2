"""Checks of what stands around the pools: limits, memory to make pages of, and the next boot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks.base.cgroup_mounts import no_limit
from checks.base.check import CheckSet
from checks.base.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    passed,
    skip,
    unknown,
)
from checks.base.needs import LaunchNeeds, sizes_taken
from checks.base.pages import Spot
from checks.base.units import (
    GIB,
    KIB,
    MIB,
    Quantity,
    counted,
    format_bytes,
    format_need,
    format_page_size,
    round_up,
)
from checks.base.unknown import Unknown, unread
from checks.hugetlb.boot import (
    drop_in,
    is_sysctl_file,
    overruling,
    pages_after_boot,
    shares_after_boot,
    unread_after_boot,
)
from checks.hugetlb.facts import BUDDYINFO, HugetlbFacts
from checks.hugetlb.fit import touched_pages
from checks.hugetlb.pools import GIGANTIC_BYTES
from checks.hugetlb.stock import HugeTlbLimit
from checks.hugetlb.targets import (
    FIT,
    RESERVATION,
    Target,
    all_targets,
    reserve_targets,
    room_bytes,
    why_refused,
)
from checks.hugetlb.wanted import Wanted, page_terms, wanted_pages
from checks.system.facts import SystemFacts

CHECKS = CheckSet()


@CHECKS.check("hugetlb.cgroup-limit", wanted_pages)
def cgroup_limit(wanted: Wanted, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge each page size by this process's cgroup and what the launch's containers ask for."""
    for spot in wanted.spots(bound=False):
        need_bytes = wanted.taken.get(spot, 0) * spot.page_size_bytes
        subject = f"{format_page_size(spot.page_size_bytes)} pages"
        pool = hugetlb.hugetlb.pool(spot.page_size_bytes)
        unread = pool if isinstance(pool, Unknown) else None
        limit = hugetlb.limits.get(spot.page_size_bytes, unread)
        usages = wanted.needs.usages
        touched = 0 if isinstance(usages, Unknown) else touched_pages(usages, spot)
        finding = _limit(subject, limit, need_bytes, page_terms(wanted.needs, spot))
        left = limit.left_bytes if isinstance(limit, HugeTlbLimit) and not limit.refuses else 0
        if finding.status is Status.FAIL and 0 < touched * spot.page_size_bytes <= left:
            text = (
                f"the arena is filled up to the cgroup's limit, and the {touched} pages before it "
                "and used of it fit: it starts, and a bus error ends it where it uses more"
            )
            finding = finding._replace(
                status=Status.WARN, text=text, consequence=Consequence.DIES_LATER
            )
        yield finding
    yield from _container_limits(wanted.needs)


def _limit(
    subject: str, limit: HugeTlbLimit | Unknown | None, need_bytes: int, formula: str
) -> Finding:
    """Hold the bytes needed against the tightest hugetlb limit of the cgroup."""
    need = format_bytes(need_bytes)
    if isinstance(limit, Unknown):
        return unknown(subject, limit, need=need)
    if limit is None:
        return passed(subject, "no limit", need, formula)
    have = format_bytes(limit.left_bytes, "{} allowed")
    need = format_need(need_bytes, limit.left_bytes)
    evidence = (Evidence(limit.source, f"{limit.left_bytes} bytes left"),)
    if limit.left_bytes >= need_bytes:
        return passed(subject, have, need, formula, evidence=evidence)
    text = "the cgroup's limit refuses the pages, however many are free"
    if not limit.refuses:
        text += "; the mapping succeeds, and a bus error ends the process that touches it"
    advice = "raise the limit of the cgroup, or ask for the pages in the container's resources"
    settings = (Setting(Kind.CGROUP, limit.source, no_limit(limit.source), str(limit.left_bytes)),)
    return passed(subject, have, need, formula, evidence=evidence).failed(text, advice, settings)


def _container_limits(needs: LaunchNeeds) -> Iterator[Finding]:
    """Judge the huge pages that a manifest asks for, summed over each container's processes."""
    taken: dict[tuple[str, str], int] = {}
    limits: dict[tuple[str, str], Mapping[int, int]] = {}
    for process in needs.processes:
        container = process.container
        if container is None or container.runtime != "kubernetes":
            continue
        if isinstance(process.hugetlb_bytes, Unknown):
            continue
        key = (container.runtime, container.origin)
        taken[key] = taken.get(key, 0) + process.hugetlb_bytes
        limits[key] = container.hugepages_bytes
    for key, need_bytes in taken.items():
        allowed = sum(limits[key].values())
        have = format_bytes(allowed, "{} of hugepages asked for")
        need = format_need(need_bytes, allowed)
        if not need_bytes or allowed >= need_bytes:
            yield passed(key[1], have, need)
            continue
        text = "Kubernetes limits the container to the hugepages that its resources name"
        wanted = round_up(need_bytes, MIB) // MIB
        advice = f"set resources.limits and requests: hugepages-2Mi: {wanted}Mi"
        yield passed(key[1], have, need).failed(text, advice)


# /proc/buddyinfo counts in base pages: 4 KiB on x86-64, and on arm64 unless it was built otherwise.
_BASE_PAGE_BYTES = 4 * KIB


@CHECKS.check(RESERVATION, wanted_pages)
def reservation(wanted: Wanted, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge each pool, or NUMA node, that must grow: whether memory for it is free."""
    short = reserve_targets(hugetlb.hugetlb, wanted.everything)
    if not short:
        yield skip("no page is missing")
    for spot, target in short.items():
        yield _reservable(spot, target, hugetlb, sizes_taken(wanted.needs.processes, huge=True))


def _reservable(spot: Spot, target: Target, facts: HugetlbFacts, sizes: str) -> Finding:
    """Judge whether free memory can become the missing pages of one pool."""
    page = spot.page_size_bytes
    subject = f"{format_page_size(page)} pages{spot.where}"
    if target.now_pages is None:
        return unknown(subject, _why_unread(facts, spot))
    missing = target.pages - target.now_pages
    need = Quantity(f"{missing} more pages ({format_bytes(missing * page)})", missing, "pages")
    free_bytes = room_bytes(spot, facts.memory_available_bytes, facts.node_free_bytes)
    if isinstance(free_bytes, Unknown):
        return unknown(subject, free_bytes, need=need)
    blocks = _whole_blocks(facts, spot)
    have = format_bytes(free_bytes, "{} that can become huge pages")
    evidence: tuple[Evidence, ...] = ()
    if not isinstance(blocks, Unknown):
        have = Quantity(f"{have}, {blocks} pages free in one piece", free_bytes, "bytes")
        evidence = (Evidence(BUDDYINFO, f"{blocks} whole blocks of {format_page_size(page)}"),)
    formula = f"{target.pages} to set - {target.now_pages} now"
    if missing * page > free_bytes:
        text = (
            "the missing pages are more memory than is free: fewer are reserved than are asked for"
        )
        advice = f"end what uses the memory, lower {sizes}, or reserve at boot"
        pools = {} if isinstance(facts.hugetlb.pools, Unknown) else facts.hugetlb.pools
        for size, pool in pools.items():
            if size != page and not isinstance(pool, Unknown) and pool.free_pages:
                unused = f"{pool.free_pages} pages of {format_page_size(size)}"
                size_shown = format_bytes(pool.free_pages * size)
                advice += f"; the pool of {unused} ({size_shown}) is free, and may be made smaller"
        finding = passed(subject, have, need, formula, evidence=evidence)
        return finding.failed(text, advice, asks=FIT)
    if isinstance(blocks, Unknown):
        return unknown(subject, blocks, have, need)
    if blocks >= missing:
        return passed(subject, have, need, formula, evidence=evidence)
    text = "memory is in pieces: a reservation now may get fewer pages than it asks for"
    advice = "drop caches and compact memory first, and read the pool back; else reserve at boot"
    settings = (
        Setting(Kind.SYSCTL, "vm.drop_caches", "3"),
        Setting(Kind.SYSCTL, "vm.compact_memory", "1"),
    )
    return passed(subject, have, need, formula, evidence=evidence).warned(text, advice, settings)


def _why_unread(facts: HugetlbFacts, spot: Spot) -> str:
    pool = facts.hugetlb.pool(spot.page_size_bytes)
    if isinstance(pool, Unknown):
        return pool.reason
    return f"{pool.source}: the kernel shows no pool of node {spot.node}"


def _whole_blocks(facts: HugetlbFacts, spot: Spot) -> int | Unknown:
    """Count the free pages that lie in one piece; 0 above the allocator's largest order."""
    if isinstance(facts.free_blocks, Unknown):
        return facts.free_blocks
    if spot.page_size_bytes >= GIGANTIC_BYTES:
        return 0
    order = (spot.page_size_bytes // _BASE_PAGE_BYTES).bit_length() - 1
    rows = [
        row for node, row in facts.free_blocks.items() if spot.node is None or node == spot.node
    ]
    return sum(count << (at - order) for row in rows for at, count in enumerate(row) if at >= order)


@CHECKS.check("hugetlb.after-reboot", wanted_pages)
def after_reboot(wanted: Wanted, hugetlb: HugetlbFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether the pools are set at boot as large as the launch needs."""
    default = hugetlb.hugetlb.default_page_size_bytes
    contained = unread(system) is None and system.container.inside
    targets = all_targets(hugetlb.hugetlb, wanted.everything)
    for spot in wanted.spots(bound=False):
        page, total = spot.page_size_bytes, wanted.everything.get(spot, 0)
        bound = {
            at.node: target.own_pages
            for at, target in targets.items()
            if at.page_size_bytes == page and at.node is not None
        }
        # The nodes may have to have more together than is ever taken: see Usage.headroom.
        pages = max(total, sum(bound.values()))
        subject = f"{format_page_size(page)} pages"
        need = counted(pages, "pages")
        writers = hugetlb.boot_writers(page)
        later = pages_after_boot(writers, page, default)
        if hugetlb.boot_unread is not None and not contained:
            yield unknown(subject, hugetlb.boot_unread.reason, need=need)
            continue
        have, evidence = "none set at boot", tuple[Evidence, ...]()
        if later is not None:
            have = counted(later[0], "pages", "{} at boot")
            evidence = (Evidence(later[1], f"{later[0]} pages"),)
        script = unread_after_boot(writers, page, default)
        pool = hugetlb.hugetlb.pool(page)
        nodes = () if isinstance(pool, Unknown) else tuple(sorted(pool.nodes))
        shares = shares_after_boot(writers, page, default, nodes)
        short = [node for node in bound if node in shares and shares[node] < bound[node]]
        if later is not None and later[0] >= pages and not short:
            finding = passed(subject, have, need, evidence=evidence)
            if script:
                text = f"{script} writes the pool after that, by a script that is not read"
                advice = f"make sure that {script} leaves at least this number of pages"
                finding = finding.warned(text, advice)
            yield finding
            continue
        if contained:
            text = "a container does not show what its host sets at boot: ask there"
            yield passed(subject, need=need, evidence=evidence).skipped(text)
            continue
        at_boot = 0 if later is None else later[0]
        text = "what is set at boot is less than the launch takes"
        if isinstance(pool, Unknown) or pool.total_pages <= at_boot:
            text = text if at_boot else "nothing sets pages of this size at boot"
        else:
            text = "the pool was set by hand since the last boot, and is gone after the next one"
        if later is not None and later[0] >= pages:
            # In all there are enough: what is short is a node.
            node = max(short, key=lambda each: bound[each] - shares[each])
            have = counted(shares[node], "pages", f"{{}} on node {node} at boot")
            need = counted(bound[node], "pages", f"{{}} on node {node}")
            listed = ", ".join(f"{shares[node]} of {bound[node]} on node {node}" for node in short)
            text = f"pages that are set at boot are not where the launch takes them: {listed}"
        even = not bound or (set(bound) == set(nodes) and len(set(bound.values())) == 1)
        short_now = reserve_targets(hugetlb.hugetlb, wanted.everything)
        mine = {at: target for at, target in short_now.items() if at.page_size_bytes == page}
        finding = passed(subject, have, need, evidence=evidence)
        advice, settings = _boot_advice(page, even), tuple[Setting, ...]()
        if page == default and even:
            refused = why_refused(mine, hugetlb.memory_available_bytes, hugetlb.node_free_bytes)
            if refused:
                yield finding.warned(text, f"cannot be reserved now ({refused})", asks=FIT)
                continue
            advice, settings = _in_sysctl(hugetlb, pages, later)
        yield finding.warned(text, advice, settings)


def _in_sysctl(
    facts: HugetlbFacts, pages: int, later: tuple[int, str] | None
) -> tuple[str, tuple[Setting, ...]]:
    """Return the advice and setting for the default pool; never fewer pages than are set today."""
    wanted, now = (pages, "") if later is None else (max(pages, later[0]), str(later[0]))
    default = facts.hugetlb.default_page_size_bytes
    after = overruling((*(facts.lasting or ()), *facts.writers), wanted, default)
    others = [writer.source for writer in after if not is_sysctl_file(writer.source)]
    if others:
        return f"set {wanted} pages where it is last set at boot: {others[-1]}", ()
    last = after[-1].source if after else ""
    place = drop_in(facts.sysctl_files, last)
    advice = f"write vm.nr_hugepages into {place.path}"
    if last:
        advice += f", as {last} is read last at boot"
    if place.origin:
        advice += f", made of {place.origin} first"
    line = Setting(Kind.BOOT_SYSCTL, "vm.nr_hugepages", str(wanted), now)
    return advice, (line._replace(file=place.path, origin=place.origin),)


def _boot_advice(page: int, even: bool) -> str:
    """Say how to set a pool at boot that vm.nr_hugepages cannot set."""
    if page >= GIB:
        return f"add hugepagesz={page // GIB}G hugepages=N to the kernel command line"
    if not even:
        return (
            "write each node's pool from a systemd unit at boot (plan --format sysfs): "
            "vm.nr_hugepages would spread it evenly"
        )
    return "write the pool from a systemd unit at boot"
