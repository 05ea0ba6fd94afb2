"""Checks of the HugeTLB pools: enough pages, on the right nodes, of the right size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, passed, skip, unknown
from checks.base.pages import Spot
from checks.base.units import KIB, Quantity, counted, format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.fit import Stock
from checks.hugetlb.pools import POOLS, Pool
from checks.hugetlb.stock import stock_of
from checks.hugetlb.targets import FIT, Target, reserve_settings, reserve_targets, why_refused
from checks.hugetlb.wanted import Wanted, pool_terms, wanted_pages
from checks.numa.nodes import NODES

CHECKS = CheckSet()


def _targets(facts: HugetlbFacts, wanted: Wanted, spot: Spot) -> dict[Spot, Target]:
    """Return the targets of one spot that are not met; of a whole pool those of its nodes."""
    return {
        at: target
        for at, target in reserve_targets(facts.hugetlb, wanted.everything).items()
        if at.page_size_bytes == spot.page_size_bytes and (not spot.nodes or at.node in spot.nodes)
    }


def _judge_spot(spot: Spot, facts: HugetlbFacts, wanted: Wanted) -> Finding:
    """Judge a pool, or one NUMA node, by the pages that the launch takes from it."""
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
    pool = facts.hugetlb.pool(spot.page_size_bytes)
    if isinstance(stock, Unknown):
        have = "" if isinstance(pool, Unknown) else f"{pool.total_pages} pages in the pool"
        return unknown(subject, stock, have, need)
    formula = pool_terms(wanted, spot)
    barred = tuple(_barred(facts, pool, spot))
    evidence = (*_evidence(pool, spot), *barred)
    finding = passed(subject, _have(stock, pool, spot), need, formula, evidence=evidence)
    if barred and spot.node is not None:
        text = f"pages of node {spot.node} are closed to this process: {_consequence(spot)}"
        return finding.failed(text, "allow the process this node, or bind no memory there")
    if stock.least_pages >= everything:
        return finding
    targets = _targets(facts, wanted, spot)
    refused = why_refused(targets, facts.memory_available_bytes, facts.node_free_bytes)
    settings = () if refused else reserve_settings(targets, facts.hugetlb.default_page_size_bytes)
    advice = _advice(bool(targets), refused, pool)
    finding = finding._replace(asks=FIT if refused else "")
    short = everything - stock.least_pages
    if stock.least_pages >= start:
        text = (
            f"{short} pages are missing: the arena, or another mapping that can do without them, "
            "falls back, and the launch starts"
        )
        return finding.warned(text, advice, settings)
    if stock.most_pages < start:
        follows = _consequence(spot)
        if spot.node is None and stock.most_pages >= taken:
            follows = "a node has fewer than its share, and no other node stands in for it"
            if not _a_node_is_short(spot, facts, wanted):
                text = f"{taken} pages are in use at most, and where they come to lie is not known"
                return finding.unknown(text, advice=advice, settings=settings)
        text = f"{start - stock.most_pages} pages are missing: {follows}"
        return finding.failed(text, advice, settings)
    text = (
        f"between {stock.least_pages} and {stock.most_pages} pages can be had here, as reserved "
        f"and surplus pages are on no node until they are used; {start} are needed to be sure"
    )
    return finding.unknown(text, advice=advice, settings=settings)


def _a_node_is_short(pool: Spot, facts: HugetlbFacts, wanted: Wanted) -> bool:
    """Tell whether some node of the pool certainly has fewer pages than a start takes from it.

    Overcommit makes pages on the node where they are asked for, so a pool may do with fewer than
    its nodes' shares together.
    """
    size = pool.page_size_bytes
    nodes = [at for at in wanted.spots(bound=True) if at.page_size_bytes == size]
    stocks = stock_of(facts.hugetlb, {}, facts.memory_available_bytes, nodes)
    return any(
        isinstance(stock, Stock) and stock.most_pages < wanted.start.get(at, 0)
        for at, stock in stocks.items()
    )


def _consequence(spot: Spot) -> str:
    """Say what a missing page does: to a whole pool's mapping, or to a node's share."""
    if spot.node is None:
        return "mapping fails, and the process ends after it has loaded the model"
    return (
        "the mapping is refused, or, where all nodes together suffice, the process dies of a bus "
        "error (SIGBUS, exit code 135) when it touches this node's share"
    )


def _advice(short: bool, refused: str, pool: Pool | Unknown) -> str:
    """Say how to get the missing pages."""
    if refused:
        return f"cannot be reserved now ({refused})"
    if not short:
        return (
            "end the processes that hold the pages: for this launch alone the pool is large enough"
        )
    others = not isinstance(pool, Unknown) and pool.held_pages
    more = ", pages of other processes included" if others else ""
    return f"reserve the pages that the launch takes{more}"


def _have(stock: Stock, pool: Pool | Unknown, spot: Spot) -> Quantity:
    """Say how many pages can be had, of how many."""
    pages = str(stock.least_pages)
    if stock.most_pages != stock.least_pages:
        pages = f"{stock.least_pages} to {stock.most_pages}"
    total = None
    if not isinstance(pool, Unknown):
        shares = [pool.nodes[node] for node in spot.nodes if node in pool.nodes]
        total = sum(share.total_pages for share in shares) if shares else pool.total_pages
    text = f"{pages} pages available" if total is None else f"{pages} available of {total} pages"
    return Quantity(text, stock.least_pages, "pages")


def _evidence(pool: Pool | Unknown, spot: Spot) -> tuple[Evidence, ...]:
    """Return the kernel's counts of the pool, or of the spot's nodes."""
    if isinstance(pool, Unknown):
        return ()
    if not spot.nodes:
        more = pool.overcommit_pages
        overcommit = "not recorded" if isinstance(more, Unknown) else str(more)
        raw = (
            f"nr {pool.total_pages}, free {pool.free_pages}, resv {pool.reserved_pages}, surplus "
            f"{pool.surplus_pages}, overcommit {overcommit}"
        )
        return (Evidence(pool.source, raw),)
    name = f"hugepages/hugepages-{spot.page_size_bytes // KIB}kB"
    return tuple(
        Evidence(f"{NODES}/node{node}/{name}", f"nr {share.total_pages}, free {share.free_pages}")
        for node in spot.nodes
        if (share := pool.nodes.get(node)) is not None
    )


def _barred(facts: HugetlbFacts, pool: Pool | Unknown, spot: Spot) -> Iterable[Evidence]:
    """Return the evidence that a process may not use some NUMA nodes of the pool.

    Empty if all are allowed or this is not known.
    """
    barred = facts.hugetlb.barred
    if isinstance(pool, Unknown) or isinstance(barred, Unknown):
        return ()
    nodes = (node for node in spot.nodes or pool.nodes if node in barred and node in pool.nodes)
    return dict.fromkeys(barred[node] for node in nodes)


@CHECKS.check("hugetlb.shortage", wanted_pages)
def shortage(wanted: Wanted, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge each page size, over all nodes."""
    for spot in wanted.spots(bound=False):
        yield _judge_spot(spot, hugetlb, wanted)


@CHECKS.check("hugetlb.node-shortage", wanted_pages)
def node_shortage(wanted: Wanted, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge each NUMA node, or set of nodes, that pages are bound to."""
    spots = wanted.spots(bound=True)
    for spot in spots:
        yield _judge_spot(spot, hugetlb, wanted)
    if not spots:
        yield skip("nothing is bound to a NUMA node")


@CHECKS.check("hugetlb.page-size", wanted_pages)
def page_size(wanted: Wanted, hugetlb: HugetlbFacts) -> Iterator[Finding]:
    """Judge whether the kernel has each page size of the launch."""
    host = hugetlb.hugetlb
    for size in sorted({spot.page_size_bytes for spot in wanted.everything}):
        name = format_page_size(size)
        pool = host.pool(size)
        if not isinstance(pool, Unknown):
            yield passed(name, f"pool of {name} pages", name)
        elif pool.absent and host.page_sizes_complete and not isinstance(host.pools, Unknown):
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
            yield unknown(name, pool)
