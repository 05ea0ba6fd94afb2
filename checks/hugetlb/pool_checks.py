"""Checks of the HugeTLB pools (pages, page size, NUMA nodes), of limits and of the next boot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.framework.cgroup_mounts import no_limit
from checks.framework.finding import (
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
    UnjudgedError,
    or_unjudged,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.needs import LaunchNeeds, sizes_to_lower
from checks.framework.pages import Pages, Spot
from checks.framework.problem import Problems, the_launch
from checks.framework.units import (
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
from checks.framework.unknown import Unknown, require, unread
from checks.hugetlb.boot import (
    choose_sysctl_file,
    is_sysctl_file,
    overruling_writers,
    pages_after_boot,
    shares_after_boot,
    unread_after_boot,
)
from checks.hugetlb.facts import BUDDYINFO, HugetlbFacts
from checks.hugetlb.fit import (
    HEADROOM,
    Stock,
    fit_needs,
    pool_needs,
    spot_order,
    start_needs,
    touched_pages,
)
from checks.hugetlb.pools import GIGANTIC_BYTES, POOLS, Pool
from checks.hugetlb.stock import HugeTlbLimit, stock_of
from checks.hugetlb.targets import (
    FIT,
    RESERVATION,
    Target,
    all_targets,
    reserve_settings,
    reserve_targets,
    room_bytes,
    why_refused,
)
from checks.numa.nodes import NODES
from checks.system.facts import SystemFacts

NO_PAGES = "the launch takes no huge pages"


class PageNeed:
    """The huge pages of a launch.

    taken: the most that are in use at one time if all goes well. everything, start: what to set the
    pools to, for all that the launch asks for, and for a certain start.
    """

    def __init__(self, needs: LaunchNeeds) -> None:
        assert not isinstance(needs.usages, Unknown)
        self.needs = needs
        self.taken: Pages = fit_needs(needs.usages) if needs.usages else {}
        self.everything: Pages = pool_needs(self.taken)
        self.start: Pages = pool_needs(start_needs(needs.usages)) if needs.usages else {}

    def spots(self, bound: bool) -> list[Spot]:
        """Return the spots in order: those on NUMA nodes if ``bound``, else the whole pools."""
        spots = (spot for spot in {*self.everything, *self.start} if bool(spot.nodes) is bound)
        return sorted(spots, key=spot_order)


# Every check of pools asks about the same launch.
_last_wanted: list[PageNeed] = []


def wanted_pages(needs: LaunchNeeds | None) -> PageNeed:
    """Return the huge pages of a launch.

    Raises:
        UnjudgedError: If they are none or not known.
    """
    launch = the_launch(needs)
    passed("launch").require(launch.usages)
    if not _last_wanted or _last_wanted[0].needs is not launch:
        _last_wanted[:] = [PageNeed(launch)]
    wanted = _last_wanted[0]
    if not any(wanted.everything.values()):
        raise UnjudgedError(skip(NO_PAGES))
    return wanted


def pool_terms(wanted: PageNeed, spot: Spot) -> str:
    """Return, as text, the sum that gives the pages needed at ``spot``."""
    terms = page_terms(wanted.needs, spot)
    taken, pages = wanted.taken.get(spot, 0), wanted.everything.get(spot, 0)
    if pages == taken:
        return terms
    nodes = [at for at in wanted.spots(bound=True) if at.page_size_bytes == spot.page_size_bytes]
    shares = " + ".join(
        f"{wanted.everything.get(at, 0)}{at.where}" for at in nodes if at.node is not None
    )
    return f"{shares}; at most {taken} are taken at once ({terms})"


def page_terms(needs: LaunchNeeds | None, spot: Spot) -> str:
    """Return the pages at ``spot`` as a sum over processes, equal terms joined: ``8 x 14306 + 128
    ...``.

    Returns:
        "" if no process takes any, or that is not known.
    """
    counts: dict[int, int] = {}
    if needs is None or isinstance(needs.usages, Unknown):
        return ""
    for usage in needs.usages:
        pages = sum(count for at, count in usage.mapped.items() if spot.gives(at))
        if pages:
            counts[pages] = counts.get(pages, 0) + 1
    terms = [f"{n} x {pages}" if n > 1 else str(pages) for pages, n in counts.items()]
    more = max((usage.headroom.get(spot, 0) for usage in needs.usages), default=0)
    if not terms and not more:
        return ""
    text = f"{' + '.join(terms) or 0} pages of {format_page_size(spot.page_size_bytes)}"
    return f"{text}, and {more} free {HEADROOM}" if more else text


CHECKS = Problems()


def _unmet_targets(facts: HugetlbFacts, wanted: PageNeed, spot: Spot) -> dict[Spot, Target]:
    """Return the targets that are not met at one spot, or at the nodes of a whole pool."""
    return {
        at: target
        for at, target in reserve_targets(facts.hugetlb, wanted.everything).items()
        if at.page_size_bytes == spot.page_size_bytes and (not spot.nodes or at.node in spot.nodes)
    }


def _judge_spot(spot: Spot, facts: HugetlbFacts, wanted: PageNeed) -> Finding:
    """Judge whether a pool, or NUMA nodes, have the pages that the launch takes from them."""
    if spot.node is None:  # a closed node that it binds to fails by itself, and is to be opened
        facts = facts._replace(hugetlb=facts.hugetlb.once_allowed(wanted.everything))
    everything, start = wanted.everything.get(spot, 0), wanted.start.get(spot, 0)
    subject = f"{format_page_size(spot.page_size_bytes)} pages{spot.where}"
    size = str(format_bytes(everything * spot.page_size_bytes))
    taken = wanted.taken.get(spot, 0)
    if taken < everything:  # nodes that have to have more together than is ever taken
        size += f", at most {format_bytes(taken * spot.page_size_bytes)} in use"
    need = counted(everything, "pages", f"{{}} ({size})")
    stock = stock_of(facts.hugetlb, {}, facts.memory_available_bytes, [spot])[spot]
    hugepages = facts.hugetlb.pool(spot.page_size_bytes)
    if isinstance(stock, Unknown):
        total = None if isinstance(hugepages, Unknown) else hugepages.total_pages
        have = "" if total is None else f"{total} pages in the pool"
        return unknown_finding(subject, stock, have, need)
    formula = pool_terms(wanted, spot)
    barred = tuple(_bar_evidence(facts, hugepages, spot))
    evidence = (*_evidence(hugepages, spot), *barred)
    finding = passed(subject, _have(stock, hugepages, spot), need, formula, evidence=evidence)
    if barred and spot.node is not None:
        text = f"pages of node {spot.node} are closed to this process: {_consequence(spot)}"
        return finding.failed(text, "allow the process this node, or bind no memory there")
    if stock.least_pages >= everything:
        return finding
    targets = _unmet_targets(facts, wanted, spot)
    refused = why_refused(targets, facts.memory_available_bytes, facts.node_free_bytes)
    settings = () if refused else reserve_settings(targets, facts.hugetlb.default_page_size_bytes)
    advice = _advice(bool(targets), refused, hugepages)
    finding = finding._replace(asks=FIT if refused else "")
    short = everything - stock.least_pages
    if stock.least_pages >= start:
        text = (
            f"{short} pages are missing: the arena, or another mapping that can do without them, "
            "falls back, and the launch starts"
        )
        return finding.warned(text, advice, settings)
    if stock.most_pages < start and spot.node is None and stock.most_pages >= taken:
        text = f"{taken} pages are in use at most, and where they come to lie is not known"
        return finding.undecided(text, advice=advice, settings=settings)
    if stock.most_pages < start:
        text = f"{start - stock.most_pages} pages are missing: {_consequence(spot)}"
        return finding.failed(text, advice, settings)
    text = (
        f"between {stock.least_pages} and {stock.most_pages} pages can be had here, as reserved "
        f"and surplus pages are on no node until they are used; {start} are needed to be sure"
    )
    return finding.undecided(text, advice=advice, settings=settings)


def _consequence(spot: Spot) -> str:
    """Tell what happens if pages of ``spot`` are missing, as the end of a sentence.

    It differs for the whole pool (no node) and for one node.
    """
    if spot.node is None:
        return "mapping fails, and the process ends after it has loaded the model"
    return (
        "the mapping is refused, or, where all nodes together suffice, the process dies of a bus "
        "error (SIGBUS, exit code 135) when it touches this node's share"
    )


def _advice(short: bool, refused: str, hugepages: Pool | Unknown) -> str:
    """Say how to get missing pages.

    Args:
        short: A pool must grow.
        refused: Why it cannot grow, or "".
    """
    if refused:
        return f"cannot be reserved now ({refused})"
    if not short:
        return (
            "end the processes that hold the pages: for this launch alone the pool is large enough"
        )
    others = not isinstance(hugepages, Unknown) and hugepages.held_pages
    more = ", pages of other processes included" if others else ""
    return f"reserve the pages that the launch takes{more}"


def _have(stock: Stock, hugepages: Pool | Unknown, spot: Spot) -> Quantity:
    """Say how many pages can be had, and how many the pool or its nodes have, if that is known."""
    pages = str(stock.least_pages)
    if stock.most_pages != stock.least_pages:
        pages = f"{stock.least_pages} to {stock.most_pages}"
    total = None
    if not isinstance(hugepages, Unknown):
        shares = [hugepages.nodes[at] for at in spot.nodes if at in hugepages.nodes]
        total = sum(share.total_pages for share in shares) if shares else hugepages.total_pages
    text = f"{pages} pages available" if total is None else f"{pages} available of {total} pages"
    return Quantity(text, stock.least_pages, "pages")


def _evidence(hugepages: Pool | Unknown, spot: Spot) -> tuple[Evidence, ...]:
    """Return the kernel's counts of the pool, or of the spot's nodes."""
    if isinstance(hugepages, Unknown):
        return ()
    if not spot.nodes:
        more = hugepages.overcommit_pages
        overcommit = "not recorded" if isinstance(more, Unknown) else str(more)
        raw = (
            f"nr {hugepages.total_pages}, free {hugepages.free_pages}, "
            f"resv {hugepages.reserved_pages}, surplus {hugepages.surplus_pages}, "
            f"overcommit {overcommit}"
        )
        return (Evidence(hugepages.source, raw),)
    name = f"hugepages/hugepages-{spot.page_size_bytes // KIB}kB"
    return tuple(
        Evidence(f"{NODES}/node{at}/{name}", f"nr {share.total_pages}, free {share.free_pages}")
        for at in spot.nodes
        if (share := hugepages.nodes.get(at)) is not None
    )


def _bar_evidence(facts: HugetlbFacts, hugepages: Pool | Unknown, spot: Spot) -> Iterable[Evidence]:
    """Return the evidence that nodes of a pool or spot are barred; empty if none is known to be."""
    barred = facts.hugetlb.barred
    if isinstance(hugepages, Unknown) or isinstance(barred, Unknown):
        return ()
    nodes = (at for at in spot.nodes or hugepages.nodes if at in barred and at in hugepages.nodes)
    return dict.fromkeys(barred[at] for at in nodes)


@CHECKS("hugetlb.shortage", wanted=wanted_pages)
def shortage(wanted: PageNeed, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge whether each page size has the pages of the launch, over all nodes."""
    for spot in wanted.spots(bound=False):
        yield _judge_spot(spot, hugetlb, wanted)


@CHECKS("hugetlb.node-shortage", wanted=wanted_pages)
def node_shortage(wanted: PageNeed, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge whether each NUMA node, or set of nodes, has the pages that are bound to it."""
    spots = wanted.spots(bound=True)
    for spot in spots:
        yield _judge_spot(spot, hugetlb, wanted)
    if not spots:
        yield skip("nothing is bound to a NUMA node")


@CHECKS("hugetlb.page-size", wanted=wanted_pages)
def page_size(wanted: PageNeed, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge whether the kernel has each page size of the launch."""
    host = hugetlb.hugetlb
    for size in sorted({spot.page_size_bytes for spot in wanted.everything}):
        name = format_page_size(size)
        hugepages = host.pool(size)
        if not isinstance(hugepages, Unknown):
            yield passed(name, f"pool of {name} pages", name)
        elif hugepages.absent and host.page_sizes_complete and not isinstance(host.pools, Unknown):
            sizes = ", ".join(format_page_size(known) for known in host.pools)
            finding = passed(
                name, sizes or "no huge pages", name, evidence=(Evidence(POOLS, sizes),)
            )
            advice = f"set MC_STORE_HUGEPAGE_SIZE to {sizes}" if sizes else ""
            yield finding.failed(
                f"this kernel has no {name} pages: every mapping of them fails",
                advice or "unset MC_STORE_USE_HUGEPAGE",
            )
        else:
            yield unknown_finding(name, hugepages)


@CHECKS("hugetlb.cgroup-limit", wanted=wanted_pages)
def cgroup_limit(wanted: PageNeed, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge each page size by this process's cgroup and what the launch's containers ask for."""
    for spot in wanted.spots(bound=False):
        need_bytes = wanted.taken.get(spot, 0) * spot.page_size_bytes
        subject = f"{format_page_size(spot.page_size_bytes)} pages"
        hugepages = hugetlb.hugetlb.pool(spot.page_size_bytes)
        unread_pool = hugepages if isinstance(hugepages, Unknown) else None
        limit = hugetlb.limits.get(spot.page_size_bytes, unread_pool)
        finding = _judge_limit(subject, limit, need_bytes, page_terms(wanted.needs, spot))
        touched = touched_pages(require(wanted.needs.usages), spot)
        left = limit.left_bytes if isinstance(limit, HugeTlbLimit) and not limit.refuses else 0
        if finding.status is Status.FAIL and 0 < touched * spot.page_size_bytes <= left:
            text = (
                f"the arena is filled up to the cgroup's limit, and the {touched} pages before it "
                "and used of it fit: it starts, and a bus error ends it where it uses more"
            )
            finding = finding.warned(text, consequence=Consequence.DIES_LATER)
        later = isinstance(limit, HugeTlbLimit) and not limit.refuses
        if finding.status is Status.FAIL and later and not wanted.needs.rdma_processes:
            # Nothing pins the segment at the start (seen with 0.3.13.post1 on 6.18, over TCP): a
            # put of its own process ended that with SIGBUS, one of another client returned -800.
            text = f"{finding.text}; a put into it returns -800, or ends the process (SIGBUS)"
            finding = finding._replace(text=text, consequence=Consequence.DIES_LATER)
        yield finding
    yield from _container_limits(wanted.needs)


def _judge_limit(
    subject: str, limit: HugeTlbLimit | Unknown | None, need_bytes: int, formula: str
) -> Finding:
    """Judge whether the tightest hugetlb limit of the cgroup allows the bytes that are needed."""
    need = format_bytes(need_bytes)
    if isinstance(limit, Unknown):
        return unknown_finding(subject, limit, need=need)
    if limit is None:
        return passed(subject, "no limit", need, formula)
    have = format_bytes(limit.left_bytes, "{} allowed")
    need = format_need(need_bytes, limit.left_bytes)
    evidence = (Evidence(limit.source, f"{limit.left_bytes} bytes left"),)
    finding = passed(subject, have, need, formula, evidence=evidence)
    if limit.left_bytes >= need_bytes:
        return finding
    text = "the cgroup's limit refuses the pages, however many are free"
    if not limit.refuses:
        text += "; the mapping succeeds, and a bus error ends the process that touches it"
    advice = "raise the limit of the cgroup, or ask for the pages in the container's resources"
    settings = (Setting(Kind.CGROUP, limit.source, no_limit(limit.source), str(limit.left_bytes)),)
    return finding.failed(text, advice, settings)


def _container_limits(needs: LaunchNeeds) -> Iterator[Finding]:
    """Judge whether each Kubernetes container asks for the huge pages that its processes take.

    Processes whose huge pages are not known are left out.
    """
    taken: dict[str, int] = {}
    limits: dict[str, int] = {}
    for process in needs.processes:
        container, size = process.container, process.hugetlb_bytes
        if container is None or container.runtime != "kubernetes" or isinstance(size, Unknown):
            continue
        taken[container.origin] = taken.get(container.origin, 0) + size
        limits[container.origin] = sum(container.hugepages_bytes.values())
    for origin, need_bytes in taken.items():
        allowed = limits[origin]
        have = format_bytes(allowed, "{} of hugepages asked for")
        finding = passed(origin, have, format_need(need_bytes, allowed))
        if need_bytes and allowed < need_bytes:
            text = "Kubernetes limits the container to the hugepages that its resources name"
            wanted = round_up(need_bytes, MIB) // MIB
            advice = f"set resources.limits and requests: hugepages-2Mi: {wanted}Mi"
            finding = finding.failed(text, advice)
        yield finding


# /proc/buddyinfo counts in base pages: 4 KiB on x86-64, and on arm64 unless it was built otherwise.
_BASE_PAGE_BYTES = 4 * KIB


@CHECKS(RESERVATION, wanted=wanted_pages)
def reservation(wanted: PageNeed, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge each pool, or NUMA node, that must grow: whether memory for it is free."""
    short = reserve_targets(hugetlb.hugetlb, wanted.everything)
    if not short:
        yield skip("no page is missing")
    for spot, target in short.items():
        yield _judge_room(spot, target, hugetlb, sizes_to_lower(wanted.needs.processes, huge=True))


@or_unjudged
def _judge_room(spot: Spot, target: Target, facts: HugetlbFacts, sizes: str) -> Finding:
    """Judge whether free memory can become the missing pages of one pool, or of one NUMA node.

    Args:
        sizes: The flags that set the launch's memory, for the advice.
    """
    page = spot.page_size_bytes
    finding = passed(f"{format_page_size(page)} pages{spot.where}")
    if target.now_pages is None:
        source = finding.require(facts.hugetlb.pool(page)).source
        return finding.undecided(f"{source}: the kernel shows no pool of node {spot.node}")
    missing = target.pages - target.now_pages
    need = Quantity(f"{missing} more pages ({format_bytes(missing * page)})", missing, "pages")
    finding = finding._replace(need=need)
    room = room_bytes(spot, facts.memory_available_bytes, facts.node_free_bytes)
    free_bytes = finding.require(room)
    blocks = _whole_blocks(facts, spot)
    have = format_bytes(free_bytes, "{} that can become huge pages")
    if isinstance(blocks, Unknown) and missing * page <= free_bytes:
        return finding._replace(have=have).undecided(blocks)
    formula = f"{target.pages} to set - {target.now_pages} now"
    finding = finding._replace(have=have, formula=formula)
    if not isinstance(blocks, Unknown):
        have = Quantity(f"{have}, {blocks} pages free in one piece", free_bytes, "bytes")
        evidence = Evidence(BUDDYINFO, f"{blocks} whole blocks of {format_page_size(page)}")
        finding = finding._replace(have=have, evidence=(evidence,))
        if missing <= blocks and missing * page <= free_bytes:
            return finding
    if missing * page <= free_bytes:
        text = "memory is in pieces: a reservation now may get fewer pages than it asks for"
        advice = "drop caches and compact memory, set the pool again and read it back; else "
        advice += "reserve at boot"
        wanted = (("vm.drop_caches", "3"), ("vm.compact_memory", "1"))
        settings = tuple(Setting(Kind.SYSCTL, name, value) for name, value in wanted)
        return finding.warned(text, advice, settings)
    text = "the missing pages are more memory than is free: fewer are reserved than are asked for"
    advice = f"end what uses the memory, lower {sizes}, or reserve at boot"
    pools = {} if isinstance(facts.hugetlb.pools, Unknown) else facts.hugetlb.pools
    for size, hugepages in pools.items():
        if size != page and not isinstance(hugepages, Unknown) and hugepages.free_pages:
            unused = f"{hugepages.free_pages} pages of {format_page_size(size)}"
            size_shown = format_bytes(hugepages.free_pages * size)
            advice += f"; the pool of {unused} ({size_shown}) is free, and may be made smaller"
    return finding.failed(text, advice, asks=FIT)


def _whole_blocks(facts: HugetlbFacts, spot: Spot) -> int | Unknown:
    """Count the free pages of the spot's size that lie in one piece of memory.

    Returns:
        0 for pages of 1 GiB or more, which the allocator does not keep.
    """
    if isinstance(facts.free_blocks, Unknown):
        return facts.free_blocks
    if spot.page_size_bytes >= GIGANTIC_BYTES:
        return 0
    order = (spot.page_size_bytes // _BASE_PAGE_BYTES).bit_length() - 1
    return sum(
        count << (at - order)
        for number, row in facts.free_blocks.items()
        if spot.node in (None, number)
        for at, count in enumerate(row)
        if at >= order
    )


@CHECKS("hugetlb.after-reboot", wanted=wanted_pages)
def after_reboot(wanted: PageNeed, hugetlb: HugetlbFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether the pools are set at boot as large as the launch needs."""
    contained = unread(system) is None and system.container.inside
    for spot in wanted.spots(bound=False):
        yield _judge_boot(spot.page_size_bytes, wanted, hugetlb, contained)


def _judge_boot(page: int, wanted: PageNeed, hugetlb: HugetlbFacts, contained: bool) -> Finding:
    """Judge whether the boot makes the pool of one page size as large as the launch needs.

    Args:
        page: The page size in bytes.
        contained: This is a container, which does not see the host's boot.
    """
    default = hugetlb.hugetlb.default_page_size_bytes
    bound = {
        at.node: target.own_pages
        for at, target in all_targets(hugetlb.hugetlb, wanted.everything).items()
        if at.page_size_bytes == page and at.node is not None
    }
    # The nodes may have to have more together than is ever taken: see Usage.headroom.
    pages = max(wanted.everything.get(Spot(page, None), 0), sum(bound.values()))
    need = counted(pages, "pages")
    finding = passed(f"{format_page_size(page)} pages", "none set at boot", need)
    if hugetlb.boot_unread is not None and not contained:
        return unknown_finding(finding.subject, hugetlb.boot_unread, need=need)
    writers = hugetlb.boot_writers(page)
    later = pages_after_boot(writers, page, default)
    at_boot = 0 if later is None else later[0]
    if later is not None:
        evidence = (Evidence(later[1], f"{at_boot} pages"),)
        have = counted(at_boot, "pages", "{} at boot")
        finding = finding._replace(have=have, evidence=evidence)
    script = unread_after_boot(writers, page, default)
    hugepages = hugetlb.hugetlb.pool(page)
    nodes = () if isinstance(hugepages, Unknown) else tuple(sorted(hugepages.nodes))
    shares = shares_after_boot(writers, page, default, nodes)
    short = [at for at in bound if at in shares and shares[at] < bound[at]]
    if later is not None and at_boot >= pages and not short:
        if not script:
            return finding
        text = f"{script} writes the pool after that, by a script that is not read"
        advice = f"make sure that {script} leaves at least this number of pages"
        return finding.warned(text, advice)
    if contained:
        text = "a container does not show what its host sets at boot: ask there"
        return finding._replace(have="").skipped(text)
    if later is not None and at_boot >= pages:
        # In all there are enough: what is short is a node.
        worst = max(short, key=lambda at: bound[at] - shares[at])
        finding = finding._replace(
            have=counted(shares[worst], "pages", f"{{}} on node {worst} at boot"),
            need=counted(bound[worst], "pages", f"{{}} on node {worst}"),
        )
        listed = ", ".join(f"{shares[at]} of {bound[at]} on node {at}" for at in short)
        text = f"pages that are set at boot are not where the launch takes them: {listed}"
    elif not isinstance(hugepages, Unknown) and hugepages.total_pages > at_boot:
        text = "the pool was set by hand since the last boot, and is gone after the next one"
    elif at_boot:
        text = "what is set at boot is less than the launch takes"
    else:
        text = "nothing sets pages of this size at boot"
    even = not bound or (set(bound) == set(nodes) and len(set(bound.values())) == 1)
    if page != default or not even:
        return finding.warned(text, _boot_advice(page, even))
    short_now = reserve_targets(hugetlb.hugetlb, wanted.everything)
    mine = {at: target for at, target in short_now.items() if at.page_size_bytes == page}
    refused = why_refused(mine, hugetlb.memory_available_bytes, hugetlb.node_free_bytes)
    if refused:
        return finding.warned(text, f"cannot be reserved now ({refused})", asks=FIT)
    return finding.warned(text, *_sysctl_remedy(hugetlb, pages, later))


def _sysctl_remedy(
    facts: HugetlbFacts, pages: int, later: tuple[int, str] | None
) -> tuple[str, tuple[Setting, ...]]:
    """Return ``(advice, settings)`` that make the boot set the default pool to ``pages``, or to
    what it sets already if that is more.

    Args:
        later: (pages, source) that the boot sets already, None if nothing does. The settings are ()
            if something other than a sysctl file sets the pool after our file; the advice names it.
    """
    wanted, now = (pages, "") if later is None else (max(pages, later[0]), str(later[0]))
    default = facts.hugetlb.default_page_size_bytes
    after = overruling_writers((*(facts.lasting or ()), *facts.writers), wanted, default)
    others = [writer.source for writer in after if not is_sysctl_file(writer.source)]
    if others:
        return f"set {wanted} pages where it is last set at boot: {others[-1]}", ()
    last = after[-1].source if after else ""
    path, origin = choose_sysctl_file(facts.sysctl_files, last)
    advice = f"write vm.nr_hugepages into {path}" + f", as {last} is read last at boot" * bool(last)
    advice += f", made of {origin} first" * bool(origin)
    line = Setting(Kind.BOOT_SYSCTL, "vm.nr_hugepages", str(wanted), now, file=path, origin=origin)
    return advice, (line,)


def _boot_advice(page: int, even: bool) -> str:
    """Say how to set a pool at boot if vm.nr_hugepages cannot.

    Args:
        even: Nodes have equal shares.
    """
    if page >= GIB:
        return f"add hugepagesz={page // GIB}G hugepages=N to the kernel command line"
    if not even:
        return (
            "write each node's pool from a systemd unit at boot (plan --format sysfs): "
            "vm.nr_hugepages would spread it evenly"
        )
    return "write the pool from a systemd unit at boot"
